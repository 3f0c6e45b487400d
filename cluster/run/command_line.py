"""From a command line to typed options: preset, then YAML file, then the command line itself."""

import argparse
import difflib
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from types import GenericAlias
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import tyro
import yaml

from cluster.run.options import Launch, LaunchOptions
from fl.bounds import OneOf, bounds_in, check_tree, deferred
from fl.command import parsed
from fl.data.catalogue import DatasetName
from fl.errors import UserError, reason_of, unknown
from fl.json_files import JsonObject, flatten
from fl.methods.registry import METHODS, get_method
from fl.plugins import load_plugin
from fl.whole_files import no_pipe, printable

# The launch command's help on one screen; ``--help-all`` has every setting.

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
    """Usage of the command, examples, all methods, and the dotted names of the ``settings`` that a
    method has: those at the top, and by group."""
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
    whole: Any = {"break_long_words": False, "break_on_hyphens": False}
    lines = textwrap.wrap(", ".join(words), WIDTH - indent, **whole)
    return "\n".join(" " * indent + line for line in lines) + "\n"


def within_width(text: str) -> str:
    """The help of all settings, whose boxes fit and whose other lines are wrapped."""
    lines: list[str] = []
    for line in text.splitlines():
        indent = " " * (len(line) - len(line.lstrip()))
        boxed = line.strip().startswith(("│", "╭", "╰"))
        lines += [line] if boxed else textwrap.wrap(line, WIDTH, subsequent_indent=indent) or [""]
    return "\n".join(lines) + "\n"


# The name of a run: one folder of the output directory, and never another place.

LONGEST_BYTES = 200
"""Below what file systems take, 255, for what is made of a name."""


def check_run_name(name: str) -> None:
    """Raises `UserError` for a name that is no plain name of a folder."""
    size = len(name.encode(errors="replace"))
    plain = name.isprintable() and "/" not in name and not name.startswith(".")
    if not plain or not name.strip() or size > LONGEST_BYTES:
        shown = repr(name if size <= LONGEST_BYTES else f"{name[:40]}...")
        raise UserError(
            f"name must be a folder name of 1 to {LONGEST_BYTES} printable bytes, without / or a "
            f"leading dot, got {shown}"
        )


def choices_help(settings: Mapping[str, Any]) -> str:
    """The words that settings may have for values, each list once, below those that take them; the
    ``settings`` as of :func:`setting_types`."""
    takers: dict[tuple[str, ...], list[str]] = {tuple(presets()): ["--preset"]}
    for name, kind in settings.items():
        lists = (bound.names for bound in bounds_in(kind) if isinstance(bound, OneOf | DatasetName))
        if words := tuple(sorted(str(word) for words in lists for word in words)):
            takers.setdefault(words, []).append("--" + name.replace("_", "-"))
    parts = [wrapped(names, indent=0) + wrapped(words) for words, names in takers.items()]
    return "choices:\n\n" + "\n".join(parts)


FLATTENED = ("run", "options")
"""Records with their fields at the top level on the command line and in YAML."""

CALL = "call"
"""In a run's config.yaml the Python call of one that was given objects."""
OWN = "own"
"""The same: digests of the user's code and data, by the settings that name them."""
RECORDED = ("versions", CALL, OWN)
"""What a run's config.yaml holds beside settings; ignored when it is read back."""

PRESETS = files("cluster") / "presets"
MOST_LISTED = 20
"""Most names that an error lists."""


def parse(
    argv: Sequence[str], *, prog: str = "python -m cluster.launch", beside: Iterable[str] = ()
) -> Launch:
    """Parses the command line.

    Settings from a preset or a file are turned into arguments in front of the user's own, so one
    parser converts and checks them all, and what comes last wins. A preset serves all methods:
    settings in it that only other methods have are ignored, and those below a method's name are
    that method's alone.

    Args:
        argv: the arguments.
        prog: the command, for its help.
        beside: the command's own options, which an error about an unknown one lists too.

    Raises:
        UserError: one line, for whatever is wrong.
        SystemExit: with 0, after printing help.
    """
    for argument in argv:
        if argument.encode(errors="replace").decode() != argument:
            raise UserError(f"{printable(argument)} cannot be printed: it is not UTF-8")
    early = _early_arguments(argv)
    try:
        return _parsed(argv, early, prog, beside)
    except UserError as error:
        file = Path(early.config or "")
        if not (file.is_file() and (call := load_mapping(file).get(CALL))):
            raise
        how = f"register these by --plugin FILE, or call {call}"
        raise UserError(f"{error}; that run used objects from Python: {how}") from None


def _parsed(
    argv: Sequence[str], early: argparse.Namespace, prog: str, beside: Iterable[str]
) -> Launch:
    layers: list[tuple[str, JsonObject]] = []
    if early.preset is not None:
        layers.append((f"preset {early.preset}", load_preset(early.preset)))
    if early.config is not None:
        layers.append((str(early.config), load_yaml(Path(early.config))))
    settings = [flatten(values) for _, values in layers]
    for plugin in early.plugin or _last(settings, "plugin") or ():
        load_plugin(str(plugin))
    method = early.method or _last(settings, "method") or "fedmho-sd"
    if early.preset:
        settings[0] = for_method(str(method), layers[0][1])
    record: Any = GenericAlias(LaunchOptions, (get_method(str(method)).config,))
    valid = dict(setting_types(record))
    if {"-h", "--help"} & set(argv):
        print(short_help(prog, str(method), METHODS, valid), end="")
        raise SystemExit(0)
    arguments: list[str] = []
    for (source, _), values in zip(layers, settings, strict=True):
        arguments += _arguments_of(source, values, valid)
    own = ["--help" if a == "--help-all" else a for a in with_slurm(argv)]
    try:
        launch: Launch = parse_record(record, [*arguments, *own], prog, beside)
    except SystemExit:  # after help
        print(choices_help(valid), end="")
        raise
    if launch.name is not None:
        check_run_name(launch.name)
    return launch


def with_slurm(argv: Sequence[str]) -> list[str]:
    """The arguments, in which ``--slurm`` or any setting of it means ``--slurm.submit``."""
    if any(a == "--slurm" or a.startswith("--slurm.") for a in argv):
        return ["--slurm.submit", *(a for a in argv if a != "--slurm")]
    return list(argv)


def presets() -> list[str]:
    """Names of the presets that come with Onefold."""
    return sorted(f.name.removesuffix(".yaml") for f in PRESETS.iterdir())


def load_preset(name: str) -> JsonObject:
    """The settings of a preset, or of a YAML file of the user's that is used as one."""
    if name.endswith((".yaml", ".yml")):
        return load_yaml(Path(name))
    if name not in presets():
        raise UserError(f"{unknown('preset', name, presets())}; or the path of a YAML file")
    return load_yaml(PRESETS / f"{name}.yaml")


def for_method(method: str, preset: JsonObject) -> JsonObject:
    """A preset's settings for a method, flat: those below its name win over the shared ones."""
    shared = {name: value for name, value in preset.items() if name not in METHODS}
    return flatten(shared) | flatten(preset.get(method, {}))


def load_yaml(path: Any) -> JsonObject:
    """A mapping of settings from a YAML file, without what a finished run recorded beside them."""
    return {k: v for k, v in load_mapping(path).items() if k not in RECORDED}


def load_mapping(path: Any) -> JsonObject:
    """All that a YAML file of settings holds; raises `UserError`, of one line, if it cannot be read
    or holds something else."""
    try:
        values = read_yaml(path)
    except FileNotFoundError:
        raise UserError(f"no such configuration file: {path}") from None
    except (yaml.YAMLError, ValueError, OSError) as error:
        raise UserError(f"cannot read {printable(str(path))}: {reason_of(error)[:200]}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold a mapping of settings, got {type(values).__name__}")
    return values


@cache
def _settings_of(methods: tuple[str, ...]) -> frozenset[str]:
    """Names of the settings that any of these methods has; looking at all records takes a while."""
    return frozenset(
        name
        for method in methods
        for name, _ in setting_types(GenericAlias(LaunchOptions, (get_method(method).config,)))
    )


def setting_types(record: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every setting's dotted name, as command line and YAML spell it, and its annotated type."""
    origin = get_origin(record) or record
    bound = dict(zip(getattr(origin, "__parameters__", ()), get_args(record), strict=False))
    hints = get_type_hints(origin, include_extras=True)
    for field in fields(origin):
        kind = hints[field.name]
        if get_origin(kind) is Annotated and not bounds_in(kind):  # for tyro alone
            kind = get_args(kind)[0]
        if get_origin(kind) and get_args(kind) and get_args(kind)[0] in bound:
            kind = get_origin(kind)[bound[get_args(kind)[0]]]
        kind = bound.get(kind, kind)
        if is_dataclass(get_origin(kind) or kind):
            below = prefix if field.name in FLATTENED else f"{prefix}{field.name}."
            yield from setting_types(kind, below)
        else:
            yield prefix + field.name, kind


def as_arguments(name: str, value: object) -> list[str]:
    """One setting as command-line arguments."""
    *parents, last = name.replace("_", "-").split(".")
    flag = "--" + ".".join([*parents, f"no-{last}" if value is False else last])
    if isinstance(value, bool):
        return [flag]
    return [flag, *map(str, value if isinstance(value, list | tuple) else [value])]


def _arguments_of(source: str, values: JsonObject, valid: Mapping[str, Any]) -> list[str]:
    """A preset's or a file's settings as arguments; of a preset without those of other methods."""
    arguments: list[str] = []
    for name, value in values.items():
        if name in valid:
            _refuse_other_options(source, name, value, flag=valid[name] is bool)
            arguments += as_arguments(name, value)
        elif not (source.startswith("preset ") and name in _settings_of(tuple(METHODS))):
            raise UserError(f"{source}: {unknown_setting(name, valid)}")
    return arguments


def _refuse_other_options(source: str, name: str, value: object, *, flag: bool) -> None:
    """Refuses values of a file that would be read as another option, or as a flag's presence."""
    if flag and not isinstance(value, bool):
        raise UserError(f"{source}: {name} must be true or false, got {str(value)[:60]!r}")
    for part in value if isinstance(value, list | tuple) else (value,):
        if isinstance(part, str) and part.startswith("--"):
            raise UserError(f"{source}: {name} cannot be {part[:60]!r}")


def _early_arguments(argv: Sequence[str]) -> argparse.Namespace:
    """The options that decide which settings there are, so they are read before the rest."""
    early = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name in ("--preset", "--config", "--method"):
        early.add_argument(name, nargs="?")
    early.add_argument("--plugin", nargs="*")
    return early.parse_known_args(list(argv))[0]


def _last(settings: list[JsonObject], name: str) -> Any:
    return next((s[name] for s in reversed(settings) if name in s), None)


def parse_record(
    record: Any, arguments: Sequence[str], prog: str, beside: Iterable[str] = (), **how: Any
) -> Any:
    """Arguments to a record of that type, which is checked once it is complete, so that errors name
    settings as the user types them.

    ``beside``: names of settings that an error about an unknown option lists beside the record's.
    ``how``: further arguments of ``tyro.cli``.

    Raises:
        UserError: whatever is wrong.
        SystemExit: with 0, after printing help.
    """
    # Descriptions are read from the sources, a fifth of the time, which only help is worth.
    config = () if {"-h", "--help"} & set(arguments) else (tyro.conf.HelptextFromCommentsOff,)

    def no_option(name: str) -> str:
        kinds = dict(setting_types(record))
        named = [n for n, kind in kinds.items() if tyro.conf.Positional not in get_args(kind)]
        return unknown_setting(name, [*named, *beside], "option")

    with deferred():
        found = parsed(record, arguments, prog, no_option, within_width, config=config, **how)
    check_tree(found[0] if isinstance(found, tuple) else found, flat=FLATTENED)
    return found


def unknown_setting(name: str, valid: Iterable[str], kind: str = "setting") -> str:
    """The line for a name that is no setting; lists those there are, unless they are many."""
    spell = (lambda n: "--" + n.replace("_", "-")) if kind == "option" else str
    valid = sorted(valid)
    near = difflib.get_close_matches(name, valid, n=1)
    hint = f" (did you mean {spell(near[0])}?)" if near else ""
    several = f"valid: {', '.join(map(spell, valid))}"
    if len(valid) > MOST_LISTED:
        several = "--help-all names all"
    return f"unknown {kind} {spell(name)!r}{hint}; {several}"


# YAML that may be anything is read within limits of size and depth, without aliases, each key once.

MOST_BYTES = 2**19
DEEPEST = 20


def read_yaml(path: Any) -> Any:
    """The value in a YAML file, or in what a shell has opened, such as ``/dev/fd/63``.

    Raises:
        ValueError: it is larger, deeper or otherwise than files of settings are.
        yaml.YAMLError: it is no YAML.
        OSError: it cannot be read.
    """
    opened = str(path).startswith(("/dev/fd/", "/dev/stdin"))
    with (path if opened else no_pipe(path)).open("rb") as file:
        content: bytes = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 10} KiB, so it is no file of settings")
    return yaml.load(content.decode("utf-8-sig"), Loader=_Strict)


class _Strict(yaml.SafeLoader):
    """Refuses what no file of settings has, before anything is built of it."""

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise ValueError("aliases (*name) are not allowed in files of settings")
        self.depth += self.check_event(yaml.CollectionStartEvent)
        if self.depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
        node = super().compose_node(parent, index)
        self.depth -= isinstance(node, yaml.CollectionNode)
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Refuses a key that stands twice, of which YAML's own loader would take the last."""
        node = super().compose_mapping_node(anchor)
        names = Counter(key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode))
        for name, count in names.items():
            if count > 1:
                raise ValueError(f"{name[:60]!r} stands {count} times in one mapping")
        return node
