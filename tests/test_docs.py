"""Every link between the pages leads somewhere, and the site has every page and public name."""

import re
from pathlib import Path

import pytest

import onefold

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCS = ROOT / "docs"
PAGES += sorted(DOCS.rglob("*.md"))
MADE = re.compile(r"<!-- (table: |made by ).*?<!-- (end|until here) -->", re.DOTALL)
LINK = re.compile(r"(?<!`)\]\(([^)\s]+)\)")


def prose(page: Path) -> str:
    """The page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names of the page's headings, as forges and the site make them."""
    heads = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.is_file(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {link}"


def test_the_site_names_every_page_once() -> None:
    """By text: mkdocs.yml has a tag that a plain YAML reader refuses."""
    nav = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    named = re.findall(r"(\S+\.md)$", nav, re.MULTILINE)
    pages = {str(page.relative_to(DOCS if DOCS in page.parents else ROOT)) for page in PAGES}
    pages = pages - {"README.md"} | {"index.md"}
    assert sorted(named) == sorted(pages)


def test_the_api_page_has_every_public_name() -> None:
    named = re.findall(r"^::: (\S+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert {f"onefold.{name}" for name in onefold.__all__} <= set(named)


def test_the_docs_stay_short() -> None:
    """Lines that people write: neither tables that programs make, nor reference, nor history."""
    written = [p for p in PAGES if p.name != "CHANGELOG.md" and p.parent.name != "reference"]
    written = [p for p in written if p.name != "log.md"]
    lines = {page: len(MADE.sub("", page.read_text()).splitlines()) for page in written}
    assert sum(lines.values()) <= 2500
    assert lines[ROOT / "README.md"] <= 70
