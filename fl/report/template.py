"""Renders pages from templates: everything is escaped, and undefined values are errors."""

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from fl.json_files import SettingValues

HERE = Path(__file__).parent


def render(template: Path, filters: SettingValues, **values: Any) -> str:
    """The page. A template in any folder may include the templates of this package."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template.name).render(**values)
