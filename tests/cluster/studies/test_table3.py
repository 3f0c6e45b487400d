"""Table 3's MNIST row, all eight methods through the suite, in a size for every day."""

import json
from pathlib import Path

import pytest
import yaml

from cluster import suite
from cluster.run import command_line
from cluster.run.command_line import load_preset
from tests.cluster.commands import events

SIZES = {
    "data": {"max_train": 1000, "max_test": 200},
    "num_samples": 200,
    "classifier": {"width": 0.05, "epochs": 2},
    "generator": {"width": 0.1, "epochs": 3},
    "large_width": 0.05,
    "small_width": 0.5,
    "global_width": 0.05,
    "fusion": {"epochs": 2},
    "distil": {"epochs": 2},
    "classify": {"epochs": 2},
    "decoder": {"num_samples": 100, "epochs": 1},
    "inversion": {"steps": 2, "batch_size": 8, "width": 0.1},
    "kd": {"epochs": 2},
    "auxiliary": {"max_images": 100},
}


@pytest.fixture
def tiny_preset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 3's own cells, whose preset is the real one made small."""
    preset = load_preset("mnist-small")
    for name, value in SIZES.items():
        preset[name] = {**preset.get(name, {}), **value} if isinstance(value, dict) else value
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "mnist-small.yaml").write_text(yaml.safe_dump(preset))
    monkeypatch.setattr(command_line, "_preset_dir", lambda: folder)


@pytest.mark.slow
@pytest.mark.usefixtures("tiny_preset")
def test_every_method_has_its_figure_and_no_client_is_trained_twice(
    tmp_path: Path, mnist_root: Path
) -> None:
    runs = tmp_path / "runs"
    asked = ["table3", "--only", "mnist-alpha0.5-*", "--seeds=0", "--runtime=inprocess"]
    assert suite.main([*asked, f"--output-dir={runs}", f"--data-root={mnist_root}"]) == 0
    cells = json.loads((runs / "table3-small.json").read_text())["cells"]
    assert len({cell["method"] for cell in cells}) == len(cells) == 8
    for cell in cells:
        assert cell["protocol"] == "one-shot"
        assert 0 < cell["mean"] < 100
        assert cell["paper_mean"] > 80
    ends = [e for run in runs.glob("table3-*") if run.is_dir() for e in events(run)]
    ends = [e for e in ends if e["event"] == "client_end"]
    assert len(ends) == 8 * 10
    # VGG-9 and CNN, or VGG-9 and small CVAE, or large CVAE and small CVAE: five of each.
    trained = [(e["client"], e["model"]) for e in ends if not e["reused"]]
    assert len(trained) == len(set(trained)) == 20
