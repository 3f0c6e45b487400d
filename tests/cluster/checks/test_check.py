import pickle
import time

import pytest

from cluster.checks.check import Check, CheckFailed, CheckSkipped, Result, last_line, within


def check(run, timeout_s: float = 10.0) -> Check:  # type: ignore[no-untyped-def]
    return Check(name="weather", run=run, advice="wait", timeout_s=timeout_s)


def fails(error: Exception) -> Result:
    def run(_: object) -> str:
        raise error

    return check(run).perform(None)


def test_what_the_check_saw_is_its_finding() -> None:
    result = check(lambda place: f"sun in {place}").perform("Rome")
    assert (result.name, result.status, result.finding) == ("weather", "passed", "sun in Rome")
    assert result.advice == ""
    assert 0 <= result.seconds < 5


def test_any_error_is_a_failure_with_its_last_line_and_advice() -> None:
    result = fails(OSError("a long story\n\n  the disk is gone\n"))
    assert (result.status, result.finding) == ("failed", "OSError: the disk is gone")
    assert result.advice == "wait"
    assert fails(ZeroDivisionError()).finding == "ZeroDivisionError"


def test_a_failure_may_have_advice_of_its_own() -> None:
    assert fails(CheckFailed("rain")).advice == "wait"
    result = fails(CheckFailed("rain", "take an umbrella"))
    assert (result.finding, result.advice) == ("rain", "take an umbrella")


def test_a_skipped_check_says_why() -> None:
    result = fails(CheckSkipped("no sky"))
    assert (result.status, result.finding, result.advice) == ("skipped", "no sky", "")
    assert check(str).skipped("no sky").status == "skipped"


def test_a_check_that_hangs_has_failed() -> None:
    began = time.monotonic()
    result = check(lambda _: time.sleep(60), timeout_s=0.2).perform(None)
    assert time.monotonic() - began < 10
    assert (result.status, result.finding) == ("failed", "no answer within 0.2 s")


def test_work_within_its_time_gives_its_value_or_its_error() -> None:
    assert within(10, lambda: 3) == 3
    with pytest.raises(TimeoutError, match="of its own"):
        within(10, raises_a_timeout)


def raises_a_timeout() -> None:
    raise TimeoutError("of its own")


def test_a_failure_passes_between_processes() -> None:
    sent = pickle.loads(pickle.dumps(CheckFailed("rain", "take an umbrella")))
    assert (str(sent), sent.advice, last_line(sent)) == ("rain", "take an umbrella", "rain")
