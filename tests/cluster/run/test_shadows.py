"""A user's file with the name of one of Onefold's packages is named before Ray starts."""

from pathlib import Path

import pytest

from cluster.run.shadows import refuse_shadows
from fl.errors import UserError


@pytest.mark.parametrize("name", ["cluster.py", "fl/__init__.py"])
def test_a_shadow_in_the_present_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse_shadows()
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(UserError, match="has the name of a package of Onefold's"):
        refuse_shadows()
