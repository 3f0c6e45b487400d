"""Fetches data sets: the only module of Onefold that ever downloads."""

from http.client import HTTPException
from pathlib import Path

from fl.data.datasets import dataset_info
from fl.data.files import DAMAGED, FileProblem, describe, find_problems, how_to_get, open_split
from fl.errors import UserError


def prepare(name: str, data_root: Path) -> str:
    """Makes data set `name` ready under `data_root`; returns one line on what was done.

    Downloads only where files are missing or damaged. Raises UserError for an unknown name, and
    where the files cannot be fetched or written.
    """
    dataset_info(name)
    if name == "digits":
        return "digits: comes with Onefold, nothing to fetch"
    problems = find_problems(name, data_root)
    if not problems:
        return f"{name}: already whole in {data_root}, nothing to fetch"
    if name == "cinic10":
        raise UserError(f"{name}: {describe(problems)}; {how_to_get(name, data_root)}")
    _fetch(name, data_root, problems)
    remaining = find_problems(name, data_root)
    if remaining:
        raise UserError(f"{name}: still not usable after fetching: {describe(remaining)}")
    return f"{name}: fetched into {data_root}"


def _fetch(name: str, data_root: Path, problems: list[FileProblem]) -> None:
    try:
        for problem in problems:
            # For the MNIST family torchvision only checks whether a file exists.
            if problem.state == DAMAGED:
                problem.path.unlink()
        for train in (True, False):
            open_split(name, data_root, train=train, download=True)
    except (OSError, HTTPException, RuntimeError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{name}: cannot fetch it into {data_root}: {reason}") from error
