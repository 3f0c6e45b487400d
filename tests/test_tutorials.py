"""The pages that teach do as they say; what they have on Slurm is run where a Slurm is started."""

from pathlib import Path

import pytest

from tests.test_examples import elsewhere as elsewhere
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
@pytest.mark.parametrize("page", ["sweep.md", "many-clients.md"])
def test_commands(page: str, tmp_path: Path) -> None:
    write_files(page, tmp_path)
    type_commands(page, tmp_path)
    if page == "many-clients.md":
        assert len(list((tmp_path / "runs" / "study").glob("*.png"))) == 5
