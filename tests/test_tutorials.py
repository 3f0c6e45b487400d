"""The pages that teach do as they say; what they have on Slurm is run where a Slurm is started."""

from pathlib import Path

import pytest

from tests.tutorials import PAGES, blocks, run_script, type_commands, typed, write_files


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_one_that_is_run(page: str) -> None:
    found = blocks(page)
    for block in found:
        assert block.language in ("python", "yaml", "console")
        assert block.language != "yaml" or block.title
        assert block.language != "console" or typed(block.text)
    files = [block.title for block in found if block.title]
    commands = "".join(block.text for block in found if block.language == "console")
    assert all(file in commands for file in files)


@pytest.mark.process
@pytest.mark.usefixtures("elsewhere")
def test_own_data_and_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_script("own-data.md", tmp_path)
    assert capsys.readouterr().out.splitlines()[-1].startswith("torch.Size([1, 3])")
    write_files("own-data.md", tmp_path)
    type_commands("own-data.md", tmp_path)


@pytest.mark.ray
@pytest.mark.slow
def test_the_page_about_a_method_runs_as_a_notebook_whose_cells_have_no_file(
    tmp_path: Path,
) -> None:
    nbformat, nbclient = map(pytest.importorskip, ("nbformat", "nbclient"))
    (script,) = (b.text for b in blocks("own-method.md") if b.title == "my.py")
    cells = [nbformat.v4.new_code_cell(s) for s in (script, "result")]
    where = {"metadata": {"path": str(tmp_path)}}
    book = nbformat.v4.new_notebook(cells=cells)
    done = nbclient.NotebookClient(book, timeout=None, resources=where).execute()
    shown = done.cells[1].outputs[-1]["data"]["text/html"]
    assert "fedmedian on own: accuracy" in shown
    assert "data:image/svg+xml;base64," in shown
    (figures,) = tmp_path.glob("runs/*/result.json")
    assert '"runtime": "ray"' in figures.read_text()


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize("page", ["sweep.md", "many-clients.md"])
def test_commands(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    type_commands(page, tmp_path)
    if page == "many-clients.md":
        assert len(list((tmp_path / "runs" / "study").glob("*.png"))) == 5
