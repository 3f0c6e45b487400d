"""The launch command's help on one screen; ``--help-all`` has every setting."""

import textwrap
from collections.abc import Iterable

WIDTH = 80
EXAMPLES = """examples:
  onefold run                            FedMHO-SD on the digits
  onefold run --method fedavg --rounds 5 --num-large 10
  onefold run --dataset my.npz --plugin my.py --classifier.model mynet
  onefold run --preset mnist-small --data-root DIR
  onefold run --dry-run                  configuration and placement
  onefold run --smoke                    one step of everything; time and memory
  onefold run --slurm --slurm.nodes 2    as a Slurm job
"""


def short_help(prog: str, method: str, methods: Iterable[str], settings: Iterable[str]) -> str:
    """Usage, examples, methods, and the settings' names: those at the top, and by group.

    Args:
        prog: the command.
        method: whose settings they are.
        methods: names of all methods.
        settings: dotted names of all settings that the method has.
    """
    groups: dict[str, list[str]] = {}
    for name in sorted(settings):
        group, dot, rest = name.replace("_", "-").partition(".")
        groups.setdefault(group if dot else "", []).append(rest if dot else group)
    alone = groups.pop("", [])
    parts = [
        f"usage: {prog} [--SETTING VALUE ...]\n",
        EXAMPLES,
        "methods:\n" + wrapped(methods),
        f"settings of {method}, for one of another method name it with --method:\n"
        + wrapped(f"--{name}" for name in alone),
        "groups of settings, as in --data.max-train 1000:\n"
        + wrapped(f"{group}.* ({len(names)})" for group, names in sorted(groups.items())),
        "--help-all says what each of them means, and its default.\n",
    ]
    return "\n".join(parts)


def wrapped(words: Iterable[str], indent: int = 2) -> str:
    """The words in lines of at most ``WIDTH`` columns; none is broken."""
    text = ", ".join(words)
    return (
        textwrap.fill(
            text,
            WIDTH,
            initial_indent=" " * indent,
            subsequent_indent=" " * indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def within_width(text: str) -> str:
    """The help of all settings, whose boxes fit and whose other lines are wrapped."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        boxed = line.strip().startswith(("│", "╭", "╰"))
        lines += [line] if boxed else textwrap.wrap(line, WIDTH, subsequent_indent=indent) or [""]
    return "\n".join(lines) + "\n"
