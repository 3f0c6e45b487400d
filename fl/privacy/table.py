"""What was measured of a run's privacy, as lines of at most 80 columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from fl.json_values import JsonObject


def lines(found: JsonObject) -> Iterator[str]:
    """Tables of the attacks and of the images, and how to read them."""
    attacked = [(f"client {u['client']}", u["model"], u["attacks"]) for u in found["uploads"]]
    if found["global"]:
        attacked.append(("global", "", found["global"]["attacks"]))
    if attacked:
        yield "membership  model        attack samples  AUC   +-     TPR at FPR 1 % (95 %)"
        for who, model, attacks in attacked:
            for name, curve in attacks.items():
                yield _attack(who, model, name, curve)
        yield "AUC 0.5: a coin; 1: every member known. ratio: likelihood ratio."
    if found["images"]:
        yield "images      made       images  to own data  to test data  ratio  nearer to own"
        for row in found["images"]:
            yield (
                f"client {row['client']:<4} {row['kind']:<10}{row['images']:>7}"
                f"{row['to_train']:>13.4f}{row['to_test']:>14.4f}{row['ratio']:>7.2f}"
                f"{row['nearer']:>15.0%}"
            )
        yield "ratio of median distances: near 1 is new, far below 1 repeats training images"
    if not attacked and not found["images"]:
        yield "no upload here is a whole classifier, a decoder or condensed images"


def _attack(who: str, model: str, name: str, curve: Mapping[str, Any]) -> str:
    at = curve["at"]["0.01"]
    spread = f"{at['value']:.1%} ({at['low']:.1%} to {at['high']:.1%})"
    return (
        f"{who[:11]:<12}{model[:12]:<13}{name:<7}{curve['members']:>7}"
        f"  {curve['auc']:.3f} {2 * curve['error']:.3f}  {spread}"
    )
