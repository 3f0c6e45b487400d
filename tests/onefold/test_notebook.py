"""The page about own code as a notebook: its cells have no file, and one of its runs is on Ray."""

from pathlib import Path

import pytest

from tests.test_tutorials import blocks

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")


@pytest.mark.slow
def test_the_page_runs_as_a_notebook_and_shows_its_result(tmp_path: Path) -> None:
    data, method, afterwards = blocks("own.md")
    on_ray = method.replace('runtime="inprocess"', 'runtime="ray"')
    assert on_ray != method
    sources = [data, on_ray, "own", afterwards]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(s) for s in sources])
    client = nbclient.NotebookClient(
        book, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
    )
    done = client.execute()
    shown = done.cells[2].outputs[-1]["data"]["text/html"]
    assert "fedmedian on own: accuracy" in shown
    assert "data:image/png;base64," in shown
    assert "torch.Size([1, 3])" in done.cells[3].outputs[-1]["text"]
