"""How many light clients (those that share a process) are given to a process in one call."""

CALL_SECONDS = 0.5
"""Seconds that a call may take. Each call costs the process some milliseconds of waiting, as long
as small clients train; a longer call would delay its results and leave other processes idle."""
MOST = 16
"""Clients in a call, at most: their uploads are in memory together."""


def clients_per_call(cohort: int, left: int, processes: int, seconds_each: float | None) -> int:
    """How many of the ``left`` clients go into one call: a whole number of cohorts.

    Args:
        cohort: clients that train together.
        left: clients that wait.
        processes: how many processes may share them.
        seconds_each: what a client takes; None while that is not measured.
    """
    fair = -(-left // processes)
    cohort = min(cohort, fair)
    if not seconds_each:
        return cohort
    # Half a fair share at most, so that the last calls are short and all end together.
    clients = min(CALL_SECONDS / seconds_each, fair / 2, MOST)
    return cohort * max(1, int(clients / cohort))
