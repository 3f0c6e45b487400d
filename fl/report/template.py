"""Renders pages from templates: everything is escaped, and undefined values are errors."""

from base64 import b64encode
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fl.json_files import SettingValues
from fl.report import words
from fl.whole_files import write_atomically

HERE = Path(__file__).parent
FILTERS: SettingValues = {
    "base64": lambda content: b64encode(content).decode(),
    "columns": lambda rows: [n for n in rows[0] if any(row[n] != words.NONE for row in rows)],
    "duration": words.duration,
    "percent": words.percent,
    "points": words.points,
    "size": words.size,
}
"""The filters that every template has."""


def write_page(page: Path, template: Path, filters: SettingValues | None = None, **of: Any) -> None:
    """Writes a page from a template and its values; a folder that is missing is made.

    A template in any folder may include the templates of this package. ``filters`` are its own.
    """
    environment = Environment(
        loader=FileSystemLoader([template.parent, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {**FILTERS, **(filters or {})}
    write_file(page, environment.get_template(template.name).render(**of).encode())


def write_file(path: Path, content: bytes) -> None:
    """Writes the file in one piece, and its folder if there is none."""
    path.parent.mkdir(exist_ok=True)
    write_atomically(path, content)
