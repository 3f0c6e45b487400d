"""The model of the best round is kept, beside the last one that every run keeps.

Theirs: 365, adap/flower: examples/advanced-pytorch/pytorch_example/*.py
Differs: theirs logs to W&B too, ours by itself to TensorBoard.
"""

import onefold

result = onefold.run(
    data="digits",
    model="mlp",
    method="fedavg",
    num_clients=5,
    rounds=4,
    classifier={"epochs": 2, "lr": 0.03, "round_decay": 0.8},
    save_best=True,
    runtime="inprocess",
)
best = onefold.load_model(result.path / "model" / "best.safetensors")
print(result.figures["best_accuracy"])  # above 0.4
