"""On TAB, real shells complete the command, its options and their values, and start no Python."""

import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster.run.help import EXAMPLES
from onefold.completion import SHELLS, script
from onefold.words import FIRST, words

ASK = {
    "bash": """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _onefold
printf '%s\\n' "${COMPREPLY[@]}"
""",
    "fish": 'source $argv[1]; complete -C "$argv[2..]"',
}
"""What prints a line per completion of the words after the script."""

CONTROL = r"\x1b\[[0-9;?]*[a-zA-Z]|[\x08\x07]"
"""What a terminal is told beside text."""


@pytest.fixture(scope="session")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Each shell's script in a file."""
    folder = tmp_path_factory.mktemp("completion")
    files = {shell: folder / shell for shell in SHELLS}
    for shell, file in files.items():
        file.write_text(script(shell))
    return files


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder with a run and what is none."""
    (tmp_path / "runs/mine").mkdir(parents=True)
    (tmp_path / "runs/mine/config.yaml").touch()
    (tmp_path / "runs/.store").mkdir()
    (tmp_path / "runs/other").mkdir()
    return tmp_path


Ask = Callable[..., set[str]]


@pytest.fixture(params=sorted(ASK))
def ask(request: pytest.FixtureRequest, scripts: dict[str, Path], runs: Path) -> Ask:
    """Completions of the last of these words, by each shell; PATH has no Python."""
    shell = request.param
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"{shell} is not installed")

    def completions(*typed: str) -> set[str]:
        command = [found, "-c", ASK[shell], *([shell] if shell == "bash" else [])]
        done = subprocess.run(
            [*command, scripts[shell], "onefold", *typed],
            cwd=runs,
            env={"PATH": "/usr/bin:/bin", "HOME": str(runs)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert not done.stderr
        return {line.partition("\t")[0] for line in done.stdout.splitlines() if line}

    return completions


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        (("su",), {"suite"}),
        (("run", "--meth"), {"--method"}),
        (("run", "--classifier.mod"), {"--classifier.model"}),
        (("run", "--method", "fedmho-"), {"fedmho-md", "fedmho-open", "fedmho-sd"}),
        (
            ("run", "--method=fedmho-"),
            {"--method=fedmho-md", "--method=fedmho-open", "--method=fedmho-sd"},
        ),
        (("run", "--dataset", "cifar"), {"cifar10", "cifar100"}),
        (("run", "--preset", "mnist"), {"mnist-small"}),
        (("sweep", "--classifier.model", "v"), {"vgg9"}),
        (("sweep", "--space", "b"), {"both"}),
        (("study", "--samp"), {"--samples-per-client"}),
        (("suite", "fedd2s-t"), {"fedd2s-table2", "fedd2s-table3"}),
        (("suite", "--scale", "sm"), {"small"}),
        (("suite", "--dry-run", "fedd2s-t"), {"fedd2s-table2", "fedd2s-table3"}),
        (("data", "prepare", "cin"), {"cinic10"}),
        (("export", ""), {"mine"}),
        (("rm", "--yes", "m"), {"mine"}),
        (("report", "runs/m"), {"runs/mine"}),
        (("compare", "runs/m"), {"runs/mine"}),
        (("rm", "--output-dir", "runs", "m"), {"mine"}),
    ],
)
def test_words_options_values_and_runs(ask: Ask, typed: list[str], expected: set[str]) -> None:
    assert ask(*typed) == expected


@pytest.mark.parametrize("typed", ["", "--"])
def test_before_anything_is_typed_the_options_that_most_want_are_offered(
    ask: Ask, typed: str
) -> None:
    offered = {word for word in ask("run", typed) if word.startswith("-")}
    assert offered == set(FIRST)
    assert ask("run", "--classifier.model", "") >= {"cnn", "vgg9"}
    assert ask("run", "--generator.wi") == {"--generator.width"}
    assert {"--space", "--method"} <= ask("sweep", typed)
    assert "--seeds" in ask("study", typed)
    assert "--generator.width" not in ask("study", typed)


def test_all_that_is_offered_first_is_an_option_and_the_helps_examples_are_in_it() -> None:
    for name, word in words().items():
        assert set(word.first) <= set(word.options), name
    assert set(re.findall(r"--[\w.-]+", EXAMPLES)) <= set(FIRST)


def test_bash_splits_a_value_from_its_option(scripts: dict[str, Path], runs: Path) -> None:
    command = ["bash", "-c", ASK["bash"], "bash", scripts["bash"], "onefold", "run", "--dataset"]
    for typed in (["=", "cifar100"], ["="]):
        done = subprocess.run([*command, *typed], capture_output=True, text=True, check=True)
        assert "cifar100" in done.stdout.splitlines()


def test_a_file_is_left_to_the_shell(scripts: dict[str, Path], runs: Path) -> None:
    command = ["bash", "-c", ASK["bash"], "bash", scripts["bash"], "onefold"]
    for typed in (["run", "--config", "r"], ["run", "--dataset", "my.n"], ["export", "--csv", ""]):
        done = subprocess.run([*command, *typed], capture_output=True, text=True, check=True)
        assert not done.stdout.strip()


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not installed")
def test_zsh_completes_in_a_terminal(scripts: dict[str, Path], runs: Path) -> None:
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(runs)
        os.execvpe("zsh", ["zsh", "-f", "-i"], {"PATH": "/usr/bin:/bin", "TERM": "dumb"})
    try:
        typed = f"PS1='> '; source {scripts['zsh']}; echo rea''dy\n"
        assert "ready" in answer(terminal, typed, "ready")
        for half, whole in (
            ("onefold su", "suite"),
            ("onefold run --meth", "--method"),
            ("onefold run --method=fedmho-m", "=fedmho-md"),
            ("onefold run --dataset mni", "mnist"),
            ("onefold rm m", "rm mine"),
        ):
            assert whole in answer(terminal, f"{half}\t", whole), half
            answer(terminal, "\x15", "")  # Ctrl-U: a line is left as it was found
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)


def answer(terminal: int, typed: str, wanted: str) -> str:
    """What the terminal says to what is typed, up to what is wanted, or for 20 seconds."""
    os.write(terminal, typed.encode())
    said, end = "", time.monotonic() + (20 if wanted else 0.2)
    while time.monotonic() < end and (not wanted or wanted not in said):
        if select.select([terminal], [], [], 0.1)[0]:
            said += re.sub(CONTROL, "", os.read(terminal, 4096).decode())
    return said
