"""Pages of the site that are made of files above docs/, and the API page without Sphinx's roles."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> None:
    """Adds the pages, README.md as the first, with links as seen from docs/."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text().replace("](docs/", "](")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))


def on_page_content(html: str, **_: Any) -> str:
    """Drops the roles, such as ``:func:``, that stand before names in docstrings."""
    return re.sub(r":(func|class|meth|mod|attr|data):(?=<code>)", "", html)
