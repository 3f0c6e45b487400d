"""What the report says in words of clients that were each scored."""

from fl.report.read import RunRecord
from fl.report.scores import ALONE, Alone, Scores, on_whole_split
from fl.report.words import clients, percent


def kind_of_samples(run: RunRecord) -> str:
    """The kind of samples that each client was scored on."""
    held_out = (run.config.get("data") or {}).get("validation")
    return "held-out training samples" if held_out else "test samples"


def which_samples(run: RunRecord) -> str:
    """The samples that each client was scored on."""
    kind = kind_of_samples(run)
    return f"all {kind}" if on_whole_split(run.config) else f"{kind} of its own"


def last_round(scores: Scores, alone: Alone | None) -> str:
    """The clients after the last round, in figures."""
    worst = len(scores.worst)
    tenth = f"the worst tenth ({worst} clients) has" if worst > 1 else "the worst client has"
    text = (
        f"Each client after the last round: mean {percent(scores.mean)}, standard deviation "
        f"{100 * scores.spread:.1f} points, {tenth} {percent(scores.worst_tenth)}."
    )
    if alone is None:
        return text
    below = len(scores.below(alone.scores))
    does = "client is" if below == 1 else "clients are"
    return f"{text} {below:,} {does} below training alone (run {alone.name})."


def beside_table(run: RunRecord) -> list[str]:
    """Sentences on what left the clients, and on their accuracies where they were scored."""
    notes = _distilled(run)
    scores = run.scores
    if scores is None:
        return notes
    if run.result is not None and run.config["method"] != ALONE and not on_whole_split(run.config):
        notes.append(_against_alone(scores, run.alone))
    dropped = set(scores.untested) & _dropped(run)
    for left_out, why in (
        (sorted(set(scores.untested) - dropped), f"for want of {kind_of_samples(run)}"),
        (sorted(dropped), "as they failed for good"),
    ):
        if left_out:
            notes.append(f"Left out of the mean {why}: {clients(left_out)}.")
    return notes


def _distilled(run: RunRecord) -> list[str]:
    """How near the images that left clients are to real ones, which clients have measured."""
    figures = (run.result or {}).get("distilled")
    if not figures:
        return []
    steps = figures["steps"]
    how = f"after {steps:,.0f} step{'' if steps == 1 else 's'} of distillation"
    return [
        f"{figures['images']:,} images left the clients, {how if steps else 'without distillation'}"
        "; their mean distance to the nearest real image of their class at their client is "
        f"{figures['nearest_real']:.2g} of the pixels' range (0: equal to a real image)."
    ]


def _against_alone(scores: Scores, alone: Alone | None) -> str:
    if alone is None:
        return (
            f"No finished run of method {ALONE} on this partition, with as many rounds, lies "
            "beside this one, so it cannot be said which clients are better off alone: "
            f"python -m cluster.launch --method {ALONE} ..."
        )
    below = scores.below(alone.scores)
    if not below:
        return f"No client is below training alone (run {alone.name})."
    return f"Below training alone (run {alone.name}): {clients(below)}."


def _dropped(run: RunRecord) -> set[int]:
    """Clients that failed for good; a resumed run's result tells of those of earlier starts."""
    before = (run.result or {}).get("dropped") or {}
    return {int(k) for k in before} | {f.client for f in run.failures if f.attempt is None}
