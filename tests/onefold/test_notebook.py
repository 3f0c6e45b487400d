"""The page about a method of one's own as a notebook, on Ray: its cells have no file."""

from pathlib import Path

import pytest

from tests.tutorials import blocks

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


@pytest.mark.ray
@pytest.mark.slow
def test_the_page_runs_as_a_notebook_and_shows_its_result(tmp_path: Path) -> None:
    (script,) = (b.text for b in blocks("own-method.md") if b.title == "my.py")
    book = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(s) for s in (script, "result")]
    )
    client = nbclient.NotebookClient(
        book, timeout=None, resources={"metadata": {"path": str(tmp_path)}}
    )
    done = client.execute()
    shown = done.cells[1].outputs[-1]["data"]["text/html"]
    assert "fedmedian on own: accuracy" in shown
    assert "data:image/svg+xml;base64," in shown
    (figures,) = tmp_path.glob("runs/*/result.json")
    assert '"runtime": "ray"' in figures.read_text()
