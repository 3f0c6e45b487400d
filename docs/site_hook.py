"""Pages of the site that are made of files above docs/ or of commands' own help; roles dropped."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
HELP = re.compile(r"^    onefold (.*--help(?:-all)?)$", re.MULTILINE)
COMMAND = "import sys; from onefold.command import main; sys.exit(main())"


def on_files(files: Files, config: Any) -> None:
    """Adds the pages, README.md as the first, with links as seen from docs/."""
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md"):
        text = (ROOT / name).read_text().replace("](docs/", "](")
        page = "index.md" if name == "README.md" else name
        files.append(File.generated(config, page, content=text))


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """On a reference page, puts what ``onefold ... --help`` prints below that line."""
    if not page.file.src_uri.startswith("reference/"):
        return markdown
    return HELP.sub(lambda line: f"```text\n$ {line[0].strip()}\n\n{_help(line[1])}```", markdown)


def _help(arguments: str) -> str:
    printed = subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments.split()],
        cwd=ROOT,
        env=os.environ | {"COLUMNS": "100"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return printed.stdout


def on_page_content(html: str, **_: Any) -> str:
    """Drops the roles, such as ``:func:``, that stand before names in docstrings."""
    return re.sub(r":(func|class|meth|mod|attr|data):(?=<code>)", "", html)
