"""Runs of many rounds that go on later, that are watched, and whose models are kept on the way."""

import functools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import onefold
from cluster.run.command_line import parse
from cluster.run.run_dir import can_go_on
from fl.clients import Clients
from fl.federation import TaskInput, TaskOutput
from fl.fusion.server import Server
from fl.methods.method import Method
from fl.rounds import Rounds
from fl.server import Outcome
from fl.training.task import train_by_recipe
from tests.onefold.test_running import Tiny, blobs

pytestmark = pytest.mark.usefixtures("elsewhere", "undrawn")


def run(
    name: str, rounds: int, method: str | Method = "fedavg", **options: object
) -> onefold.Result:
    base: dict[str, object] = {"num_clients": 3, "classifier": {"epochs": 2, "lr": 0.05}}
    more = {"name": name, "rounds": rounds, "runtime": "inprocess", "progress": False}
    return onefold.run(blobs(), Tiny, method, **{**base, **more, **options})  # type: ignore[arg-type]


def curve(result: onefold.Result) -> list[float]:
    return list(result.figures["accuracy_curve"])


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "ditto"])
def test_a_run_that_has_ended_goes_on_as_if_it_had_been_begun_with_more_rounds(method: str) -> None:
    options = {"partition.test_fraction": 0.3, "classifier.momentum": 0.0}
    run("grown", 2, method, **options)
    grown = run("grown", 3, method, resume=True, **options)
    whole = run("whole", 3, method, **options)
    assert curve(grown) == curve(whole)
    assert len(curve(grown)) == 3
    assert grown.figures["bytes_up"] == whole.figures["bytes_up"]
    if method != "ditto":
        for name, tensor in grown.model.state_dict().items():
            torch.testing.assert_close(tensor, whole.model.state_dict()[name], rtol=0, atol=0)


def test_a_callback_may_end_the_rounds_which_go_on_when_more_are_asked_for() -> None:
    def stop(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd) and event.round == 2:
            raise onefold.StopRounds

    stopped, two = run("a", 4, callbacks=[stop]), run("two", 2)
    assert (stopped.figures["stopped_after"], curve(stopped)) == (2, curve(two))
    assert "stopped_after" not in two.figures
    assert all(map(torch.equal, stopped.model.parameters(), two.model.parameters()))
    assert len(curve(run("a", 4, resume=True))) == 2
    assert len(curve(run("a", 5, resume=True))) == 5


def test_a_finished_run_is_unfinished_while_it_goes_on_to_more_rounds() -> None:
    def stop(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd):
            raise KeyboardInterrupt

    run("a", 2)
    assert onefold.load_result("runs/a").figures["rounds"] == 2
    with pytest.raises(KeyboardInterrupt):
        run("a", 4, resume=True, callbacks=[stop])
    with pytest.raises(onefold.UserError):
        onefold.load_result("runs/a")
    assert len(curve(run("a", 4, resume=True))) == 4


def test_the_seconds_of_a_resumed_run_are_those_of_all_its_rounds() -> None:
    before = run("a", 4).figures["seconds"]
    after = run("a", 5, resume=True).figures["seconds"]
    assert after["local"] > before["local"]
    assert after["total"] > after["local"]


@pytest.mark.parametrize(("first", "then"), [(3, 2), (1, 2)])
def test_a_run_that_more_rounds_would_change_is_not_gone_on_with(first: int, then: int) -> None:
    run("a", first)
    before = (Path("runs/a") / "result.json").read_bytes()
    with pytest.raises(onefold.UserError, match=f"rounds: {first} -> {then}"):
        run("a", then, resume=True)
    assert (Path("runs/a") / "result.json").read_bytes() == before


def test_a_private_run_cannot_grow_since_its_noise_is_by_its_rounds() -> None:
    assert can_go_on(parse(["--method=fedavg", "--rounds=2"]).run)
    assert not can_go_on(parse(["--method=fedavg", "--rounds=2", "--dp.epsilon=8"]).run)


def test_a_callback_has_the_model_and_the_metrics_of_each_round() -> None:
    seen: list[onefold.RoundEnd] = []
    states: list[dict[str, Tensor]] = []

    def watch(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd):
            seen.append(event)
            assert isinstance(event.model, Tiny)
            states.append({n: t.clone() for n, t in event.model.state_dict().items()})

    def share(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        assert images.shape == (24, 3, 8, 8)
        torch.rand(3)  # must change nothing of what is trained
        return float((model(images).argmax(1) == labels).float().mean())

    def spoiled(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        return float(images.zero_().sum())

    result = run("a", 3, callbacks=[watch], metrics={"spoiled": spoiled, "share": share})
    assert [e.metrics["share"] for e in seen] == pytest.approx(curve(result))
    per_round = [r["metrics"]["share"] for r in result.figures["per_round"]]
    assert per_round == [e.metrics["share"] for e in seen]
    assert result.figures["metrics"]["share"] == per_round[-1]
    for name, tensor in result.model.state_dict().items():
        torch.testing.assert_close(states[-1][name], tensor)
    alone = run("b", 3)
    assert curve(alone) == curve(result)
    lines = (result.path / "metrics.jsonl").read_text().splitlines()
    assert any('"metrics": {"spoiled"' in line for line in lines)
    assert not any('"model": "Tiny' in line for line in lines if '"round"' in line[:20])


def drawing(inputs: TaskInput) -> TaskOutput:
    drawn = torch.tensor([float(torch.rand(())), np.random.rand(), random.random()])
    return TaskOutput(tensors={"drawn": drawn})


def draws(clients: Clients, server: Server, config: Any, rounds: Rounds) -> Outcome:
    """Draws from the global streams, at the server and at the clients."""
    model, drawn = onefold.starting_model(config, server), []
    for number in rounds.play(clients, server, model):
        chosen = {0, number % 2 + 1}  # other clients, and so another order of the work
        told = clients.map(drawing, only=chosen)
        drawn += [float(torch.rand(())), *(float(t) for u in told for t in u.tensors["drawn"])]
        onefold.average(model, clients.train(broadcast=onefold.sent(model)))
    return rounds.outcome(model, figures={"drawn": drawn})


def test_what_a_method_and_its_tasks_draw_is_of_seed_round_and_client() -> None:
    """On Ray: see tests/onefold/test_read_when_needed.py."""
    own = onefold.method("draws")(draws)
    torch.rand(3)  # who has drawn before must not matter
    whole = run("whole", 3, own, output_dir="a").figures["drawn"]
    assert len(set(whole)) == len(whole) == 3 * 7
    run("grown", 2, own, output_dir="b")
    grown = run("grown", 3, own, output_dir="b", resume=True)
    assert grown.figures["drawn"] == whole[-7:]


@pytest.mark.parametrize("saved", [False, True])
def test_what_a_method_keeps_in_variables_is_saved_as_memory_or_warned_of(
    saved: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """FedAvg with momentum at the server."""

    def momentum(clients: Clients, server: Server, config: Any, rounds: Rounds) -> Outcome:
        model = onefold.starting_model(config, server)
        velocity = {n: torch.zeros_like(p) for n, p in model.named_parameters()}
        for _ in rounds.play(clients, server, model, velocity if saved else None):
            before = {n: p.detach().clone() for n, p in model.named_parameters()}
            onefold.average(model, clients.train(broadcast=onefold.sent(model)))
            for name, p in model.named_parameters():
                velocity[name].mul_(0.9).add_(p.detach() - before[name])
                p.data = before[name] + velocity[name]
        return rounds.outcome(model)

    own = onefold.method("momentum")(momentum)
    whole = run("whole", 3, own)
    run("grown", 2, own)
    assert not caplog.messages
    grown = run("grown", 3, own, resume=True)
    same = map(torch.equal, grown.model.parameters(), whole.model.parameters())
    assert all(same) == saved
    assert ["only the method's model is restored" in line for line in caplog.messages] == [True] * (
        not saved
    )


@functools.wraps(train_by_recipe)
def shrunk(inputs: TaskInput) -> TaskOutput:
    trained = train_by_recipe(inputs)
    return replace(trained, tensors={n: 0 * t for n, t in trained.tensors.items()})


def shrinks(clients: Clients, server: Server, config: Any) -> nn.Module:
    model = onefold.starting_model(config, server)
    onefold.average(model, clients.map(shrunk))
    return model


def test_a_function_around_a_task_of_ours_runs() -> None:
    own = onefold.method("shrinks", over_rounds=False)(shrinks)
    assert not any(t.any() for t in run("a", 1, own).model.state_dict().values())


def test_metrics_and_callbacks_that_change_the_model_change_a_copy() -> None:
    def emptied(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        for parameter in model.parameters():
            parameter.zero_()
        return 0.0

    def spoil(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd) and event.model is not None:
            emptied(event.model.requires_grad_(False), torch.empty(0), torch.empty(0))

    plain, spoiled = run("a", 3), run("b", 3, callbacks=[spoil], metrics={"zero": emptied})
    assert curve(spoiled) == curve(plain)
    assert all(map(torch.equal, spoiled.model.parameters(), plain.model.parameters()))


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({"m": lambda model, x, y: model(x)}, "metric m must give one number, but fails"),
        ({"m": lambda model, x, y: 1 / 0}, "metric m .*ZeroDivisionError"),
        ({"m": lambda model, x, y: None}, "metric m must give one number"),
        ({"m": 3}, "expected a mapping of names to functions"),
        ([lambda model, x, y: 1.0], "expected a mapping of names to functions"),
    ],
)
def test_a_metric_that_gives_no_number_is_refused_before_anyone_trains(
    metrics: object, message: str
) -> None:
    with pytest.raises(onefold.UserError, match=message):
        run("a", 2, metrics=metrics)
    assert not Path("runs/a").exists()
    with pytest.raises(onefold.UserError, match="metrics need a global model"):
        run("a", 2, "local", metrics={"one": lambda model, x, y: 1.0})


def test_metrics_are_not_of_a_model_with_layers_that_nobody_trains() -> None:
    options: dict[str, Any] = {"num_clients": 3, "rounds": 2, "runtime": "inprocess"}
    options["metrics"] = {"one": lambda model, x, y: 1.0}
    with pytest.raises(onefold.UserError, match="trains only some of its layers"):
        onefold.run(blobs(), "mlp", "fedper", **options, shared_layers=1)
    assert onefold.run(blobs(), "mlp", "fedper", **options, shared_layers=3).figures["metrics"]


@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_metrics_are_of_held_out_samples_where_the_accuracy_is(method: str) -> None:
    """ditto scores clients: then each holds out its own, and the test split stays as it was."""
    (images, labels), split = blobs(), 90
    seen: list[Tensor] = []

    def count(model: nn.Module, x: Tensor, y: Tensor) -> float:
        seen.append(x)
        return float(len(x))

    data = ((images[:split], labels[:split]), (images[split:] * 0, labels[split:]))
    own = {"num_clients": 3, "data.validation": 0.2, "runtime": "inprocess", "progress": False}
    result = onefold.run(data, Tiny, method, rounds=2, metrics={"count": count}, **own)
    assert result.figures["scored_on"] == "validation"
    assert result.figures["metrics"]["count"] < 30
    assert all(x.flatten(1).any(1).all() for x in seen)


def test_models_of_rounds_are_kept_where_that_is_asked_for() -> None:
    accuracies: list[float] = []
    states: list[dict[str, Tensor]] = []

    def watch(event: onefold.Event) -> None:
        if isinstance(event, onefold.RoundEnd):
            assert event.model is not None
            accuracies.append(event.accuracy)
            states.append({n: t.clone() for n, t in event.model.state_dict().items()})

    result = run("a", 4, save_best=True, save_every=2, callbacks=[watch])
    folder = result.path / "model"
    names = sorted(f.name for f in folder.iterdir())
    assert names == [f"{n}.safetensors" for n in ("best", "global", "round-00002", "round-00004")]
    for name, place in (("best", accuracies.index(max(accuracies))), ("round-00002", 1)):
        kept = onefold.load_model(folder / f"{name}.safetensors").state_dict()
        assert all(torch.equal(kept[n], t) for n, t in states[place].items())


def test_models_of_rounds_are_refused_where_there_are_none() -> None:
    with pytest.raises(onefold.UserError, match="fedmho has one"):
        onefold.run(method="fedmho", save_best=True, runtime="inprocess")
    with pytest.raises(onefold.UserError, match="no global model"):
        run("a", 2, "local", save_best=True)
    assert not Path("runs/a/result.json").exists()


def test_rounds_end_when_accuracy_has_settled_however_many_there_were_to_be() -> None:
    still = {"classifier": {"epochs": 1, "lr": 1e-9}}
    whole = curve(run("whole", 6, **still))
    assert len(set(whole)) == 1  # nothing is learned
    for rounds in (6, 8):
        stopped = run("a", rounds, stop_after=3, resume=rounds > 6, **still)
        assert curve(stopped) == whole[:4]
        assert stopped.figures["stopped_after"] == 4
    rising = run("b", 3, stop_after=3)
    assert len(curve(rising)) == 3
    with pytest.raises(onefold.UserError, match="stop_after needs rounds above 1"):
        run("c", 1, stop_after=2)


def test_newcomers_take_part_in_no_round_and_are_scored() -> None:
    options = {"num_clients": 5, "partition": "iid", "partition.test_fraction": 0.2}
    result = run("a", 3, newcomers=2, tested="tuned", **options)
    lines = [json.loads(x) for x in (result.path / "metrics.jsonl").read_text().splitlines()]
    assert {e["client"] for e in lines if e["event"] == "client_end"} == {0, 1, 2}
    assert all(own is not None for own in result.figures["client_accuracy"])
    half = run("b", 3, newcomers=1, participation=0.5, **options)
    lines = [json.loads(x) for x in (half.path / "metrics.jsonl").read_text().splitlines()]
    took_part = [e["client"] for e in lines if e["event"] == "client_end"]
    assert len(took_part) == 6
    assert 4 not in took_part
    with pytest.raises(onefold.UserError, match="newcomers must be in 0 to 4"):
        run("c", 2, newcomers=5, **options)
