"""docs/results.md: the tables in it that a command writes, and which of them are of older code.

A table stands between ``<!-- table: NAME -->`` and ``<!-- end -->``. It says the digest of the code
that it rests on (``sources 0123456789ab``; ``sources unknown`` where it was measured before that
was written down).
"""

import re
from collections.abc import Mapping

UNKNOWN = "unknown"
OLDER = "**Of older code.**\n\n"
"""What a table begins with whose digest is not that of today's code."""
NOT_MADE = "Not made yet.\n"
"""In place of a table that nobody has made."""
_TABLE = re.compile(r"(<!-- table: ([\w.-]+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)
_SOURCES = re.compile(r"\bsources\s+([0-9a-f]{12}\b|unknown)")


def sources(page: str) -> dict[str, str]:
    """Each table's digest, as the page has it, by the table's name; ``UNKNOWN`` without one."""
    found = {}
    for _, name, body, _ in _TABLE.findall(page):
        said = _SOURCES.search(body)
        found[name] = said[1] if said else UNKNOWN
    return found


def replaced(page: str, name: str, body: str) -> str:
    """The page with another table in that one's place."""

    def put(found: re.Match[str]) -> str:
        return f"{found[1]}{body}{found[4]}" if found[2] == name else found[0]

    return _TABLE.sub(put, page)


def marked(page: str, current: Mapping[str, str]) -> str:
    """The page with ``OLDER`` on the tables whose digest is not the current one, and no others.

    A table that has no current digest, as no command makes it, is of older code.
    """
    said = sources(page)

    def mark(found: re.Match[str]) -> str:
        _, name, body, _ = found.groups()
        older = body != NOT_MADE and said[name] != current.get(name)
        return f"{found[1]}{OLDER if older else ''}{body.removeprefix(OLDER)}{found[4]}"

    return _TABLE.sub(mark, page)


def untrue(page: str, current: Mapping[str, str]) -> list[str]:
    """Names of the tables that are of older code and do not say so, or say so and are not."""
    tables, right = _TABLE.findall(page), _TABLE.findall(marked(page, current))
    return [own[1] for own, truth in zip(tables, right, strict=True) if own != truth]
