"""Reads YAML that may be anything: within limits of size and depth, and without aliases."""

from typing import Any

import yaml

MOST_BYTES = 4 * 2**20
DEEPEST = 20


def read_yaml(path: Any) -> Any:
    """The value in a YAML file; raises as :func:`read_settings` and :func:`parse_yaml`."""
    return parse_yaml(read_settings(path))


def read_settings(path: Any) -> bytes:
    """The content of a YAML file, which may be a pipe and is read once.

    Raises:
        ValueError: it is larger than files of settings are.
        OSError: it cannot be read.
    """
    with path.open("rb") as file:
        content: bytes = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"larger than {MOST_BYTES >> 20} MiB, so it is no file of settings")
    return content


def parse_yaml(content: bytes) -> Any:
    """The value that YAML stands for.

    Raises:
        ValueError: it is deeper or otherwise than files of settings are.
        yaml.YAMLError: it is no YAML.
    """
    _check_events(content.decode())
    return yaml.safe_load(content)


def _check_events(text: str) -> None:
    """Looks at the structure before anything is built of it."""
    depth = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.AliasEvent):
            raise ValueError("aliases (*name) are not allowed in files of settings")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
