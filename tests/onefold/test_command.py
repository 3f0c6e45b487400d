"""The words of the onefold command, and its packages before a user's of the same names."""

import subprocess
import sys
from pathlib import Path

import pytest

from fl.own_process import CLOSED_PIPE
from onefold.command import HELP, MODULES, main


def test_help_is_one_screen_and_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()[: len(HELP.splitlines())]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= 80
    words = {line.split()[0] for line in lines if line.startswith("  ")}
    assert MODULES.keys() <= words


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("onefold 0.")


def test_an_unknown_word_is_one_line_with_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["swep"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("onefold: no command 'swep'; did you mean sweep? commands: run, ")
    assert said.count("\n") == 1
    assert main(["frobnicate"]) == 2
    assert capsys.readouterr().err.startswith("onefold: no command 'frobnicate'; commands: run, ")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["data"], "say what to fetch: onefold data prepare NAME [NAME ...]"),
        (["data", "--no"], "unknown option --no; --help lists those there are"),
        (["report"], "name one run directory or more: onefold report RUN [RUN ...]"),
        (["report", "--no"], "unknown option --no; --help lists those there are"),
        (["compare"], "name one run directory or more: onefold report RUN [RUN ...]"),
    ],
)
def test_what_is_missing_is_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"onefold: {line}\n")


@pytest.mark.parametrize(("more", "page"), [([], "compare.html"), (["-o", "c.html"], "c.html")])
def test_a_comparison_has_a_page_of_its_own(
    more: list[str], page: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr("runpy.run_module", lambda *_, **__: asked.append(sys.argv))
    assert main(["compare", "runs/a", "runs/b", *more]) == 0
    assert asked[0][1:3] == ["runs/a", "runs/b"]
    assert asked[0][-1] == page


@pytest.mark.process
def test_a_pipe_that_is_closed_early_is_no_error() -> None:
    command = [Path(sys.executable).with_name("onefold"), "run", "--help-all"]
    done = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.stdout is not None
    assert done.stderr is not None
    done.stdout.close()
    assert not done.stderr.read()
    assert done.wait() == CLOSED_PIPE


SCRIPT = """
import onefold._packages, sys, os; print('torch' in sys.modules)
print(os.environ['OMP_WAIT_POLICY'], os.environ['PYTORCH_NVML_BASED_CUDA_CHECK'])
import kernels; print(kernels.nearest_to_centroid.__module__, 'torch' in sys.modules)
import onefold; print(onefold.methods.OneClassifier.__name__, onefold.method.__name__)
onefold.run; import cluster; print(cluster.__file__, sys.path[0])
"""


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The words of a script beside which is a cluster.py of the user's, and last its folder."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "cluster.py").write_text("raise RuntimeError('not ours')")
    (folder / "script.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, folder / "script.py"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return [*done.stdout.split(), str(folder)]


@pytest.mark.process
def test_a_cluster_py_beside_a_script_is_not_taken_for_onefolds(printed: list[str]) -> None:
    found, first, folder = printed[7:]
    assert Path(found).name == "__init__.py"
    assert first == folder  # the user's own modules come first again


@pytest.mark.process
def test_the_packages_come_without_torch_cluster_before_it_and_methods_unasked(
    printed: list[str],
) -> None:
    expected = ["False", "PASSIVE", "1", "kernels.filter", "True", "OneClassifier", "method"]
    assert printed[:7] == expected


@pytest.mark.process
def test_a_users_package_that_was_imported_before_is_named(tmp_path: Path) -> None:
    (tmp_path / "tune.py").write_text("")
    (tmp_path / "script.py").write_text("import tune, onefold; onefold.run")
    done = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True)
    assert "import onefold before your own module tune" in done.stderr
