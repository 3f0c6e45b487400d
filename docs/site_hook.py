"""Makes pages of the site of the files that lie above docs/: README.md is its first page."""

from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]


def on_files(files: Files, config: Any) -> None:
    """Adds them, their links as seen from docs/."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text().replace("](docs/", "](")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))
