"""Co-Boosting (Dai et al., ICLR 2024): DENSE with harder samples and a better ensemble.

The generator looks for samples on which the ensemble is unsure and the global model disagrees; the
ensemble weighs its members so that it is right on the pool; and each batch is pushed a little in a
direction that changes the ensemble's answer, just before the global model learns from it.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim

from fl.clients import Clients
from fl.errors import UserError
from fl.fusion.distillation import kl_to_teacher
from fl.fusion.inversion import InversionConfig, InversionLoss, invert
from fl.fusion.pool import DistillationConfig, Pool, distil_epoch
from fl.methods.dense import assign
from fl.methods.method import Method
from fl.methods.prototypes import LOCAL, PrototypesConfig, all_classifiers
from fl.methods.uploads import untrained_classifier
from fl.models.ensemble import Ensemble, weighted_mean
from fl.seeding import torch_generator
from fl.server import Outcome, Server
from fl.spaces import Choice, LogUniform, Spaces, Uniform
from fl.validate import positive

CLIP = 10.0
"""Norm to which the generator's gradient is cut."""
ADV_TEMPERATURE = 3.0
"""Temperature at which generator and global model compete."""
PERTURBATION_TEMPERATURE = 4.0
"""Temperature of the answers that the perturbation changes."""


@dataclass(frozen=True, kw_only=True)
class CoBoostingConfig(PrototypesConfig):
    """Co-Boosting's own settings, sized for a laptop; the released code's: docs/methods.md."""

    ce: float = 1.0
    """Weight of the ensemble's cross-entropy, each sample's times 1 minus its probability."""
    adv: float = 1.0
    """Weight of the term that sets the generator against the global model."""
    perturbation: float = 8 / 255
    """Step by which pixels move before the global model learns from them."""
    weight_step: float = 0.01
    """First step of the ensemble's weights."""
    weight_decay: float = 0.99
    """Factor on that step from epoch to epoch."""
    inversion: InversionConfig = InversionConfig()
    # At the released 0.01, which is for batches of 128, batches of 16 end in a dead network.
    kd: DistillationConfig = DistillationConfig(lr=3e-3, temperature=4.0, weight_decay=1e-4)

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(self.ce, self.adv, self.perturbation, self.weight_step) < 0:
            raise UserError("ce, adv, perturbation, weight_step must not be negative")
        positive("weight_decay", self.weight_decay)


SPACES = Spaces(
    server={
        "adv": Uniform(0.1, 2.0),
        "perturbation": Uniform(0.0, 16 / 255),
        "weight_step": LogUniform(1e-3, 1e-1),
        "inversion.lr": LogUniform(1e-4, 1e-2),
        "kd.lr": LogUniform(1e-3, 1e-1),
        "kd.temperature": Choice((1.0, 4.0, 20.0)),
    },
    local=LOCAL,
    epochs="kd.epochs",
)


def run(clients: Clients, server: Server, config: CoBoostingConfig) -> Outcome:
    """Algorithm 1; ``start`` is the untrained global model. The last epoch counts."""
    updates, seed = clients.train(), server.problem.seed
    teacher = all_classifiers(updates, server)
    student = untrained_classifier(updates[0].client.training, server)
    start = server.evaluate(student)
    optimizer = config.kd.optimizer(student)
    schedule = optim.lr_scheduler.CosineAnnealingLR(optimizer, config.kd.epochs)
    pool, epochs = Pool(seed), []
    for epoch in range(1, config.kd.epochs + 1):
        with server.events.phase("synthesis"):
            images, labels = invert(
                hard_sample_loss(teacher, student, config),
                server.problem,
                config.inversion,
                epoch=epoch,
                device=server.device,
                clip=CLIP,
            )
            with torch.no_grad():
                each = teacher.each(images).transpose(0, 1)
            pool.add(images=images, labels=labels, member_logits=each)
        with server.events.phase("fusion"):
            if epoch > 1:
                reweigh(teacher, pool, config, epoch)
            batches = pool.batches("fusion/order", epoch, config.kd.batch_size)
            stream = torch_generator(seed, f"perturbation/{epoch}")
            harder = (perturbed(b["images"], teacher, config.perturbation, stream) for b in batches)
            lessons = ((images, ask(teacher, images)) for images in harder)
            found = distil_epoch(student, lessons, optimizer, config.kd, server, epoch)
            epochs.append(found)
            schedule.step()
    figures = {"ensemble_weights": teacher.weights.tolist()}
    return Outcome(model=student, start=start, epochs=epochs, **pool.told(**figures))


def hard_sample_loss(
    teacher: Ensemble, student: nn.Module, config: CoBoostingConfig
) -> InversionLoss:
    """mean((1 - p_y) CE) - T^2 mean KL(ensemble || student) of images; p_y is not trained."""
    student.eval().requires_grad_(False)

    def loss(images: Tensor, labels: Tensor) -> Tensor:
        wanted = teacher(images)
        cross_entropy = F.cross_entropy(wanted, labels, reduction="none")
        hardness = 1 - (-cross_entropy.detach()).exp()
        value = config.ce * (hardness * cross_entropy).mean()
        if config.adv:
            apart = kl_to_teacher(student(images), wanted, ADV_TEMPERATURE).mean()
            value = value - config.adv * apart
        return value

    return loss


def reweigh(teacher: Ensemble, pool: Pool, config: CoBoostingConfig, epoch: int) -> None:
    """Moves each member's weight by a step towards less cross-entropy, batch by batch."""
    step = config.weight_step * config.weight_decay ** (epoch - 1)
    for batch in pool.batches("weights/order", epoch, config.kd.batch_size):
        weights = teacher.weights.clone().requires_grad_()
        logits = weighted_mean(batch["member_logits"].transpose(0, 1), weights)
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits, batch["labels"]), weights)
        # A member that hurts has a positive gradient, and then another's is negative: the
        # weighted gradients sum to zero. So the weights never all reach zero.
        teacher.weights.copy_((teacher.weights - step * gradient.sign()).clamp(0, 1))


def perturbed(images: Tensor, teacher: Ensemble, size: float, stream: torch.Generator) -> Tensor:
    """x + size sign(grad_x <u, softmax(ensemble(x) / T)>), u ~ U(-1, 1) for each sample, class."""
    x = images.detach().requires_grad_()
    answers = (teacher(x) / PERTURBATION_TEMPERATURE).softmax(1)
    direction = 2 * torch.rand(answers.shape, generator=stream).to(x.device) - 1
    (gradient,) = torch.autograd.grad((direction * answers).sum(), x)
    return images + size * gradient.sign()


@torch.no_grad()
def ask(teacher: Ensemble, images: Tensor) -> Tensor:
    """The ensemble's logits, of which nothing is differentiated."""
    return teacher(images)


METHOD = Method(
    name="co-boosting",
    config=CoBoostingConfig,
    assign=assign,
    run=run,
    one_rank=True,
    spaces=SPACES,
)
