"""Reads YAML that may be anything: within limits of size and depth, no aliases, each key once."""

from collections import Counter
from typing import Any

import yaml

from fl.whole_files import no_pipe

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
