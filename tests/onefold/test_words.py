"""What the shells complete is what the commands take."""

from cluster.run.command_line import presets
from fl.methods.registry import METHODS
from onefold.command import MODULES
from onefold.words import words


def test_every_word_of_the_command_has_its_options() -> None:
    found = words()
    assert found.keys() == MODULES.keys()
    assert set(found["run"].values["--method"]) == METHODS.keys()
    assert set(found["run"].values["--preset"]) == set(presets())
    assert {"--slurm", "--fusion.lr", "--help-all"} <= set(found["run"].options)
    assert {"--fid", "--no-fid", "--partition.no-recut"} <= set(found["run"].flags)
