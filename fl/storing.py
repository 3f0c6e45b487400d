"""Uploads that came together are stored in threads, beside the checks of those behind them."""

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

from fl.errors import ClientFailed
from fl.exchange import Upload
from fl.federation import Job

Ended = tuple[Job, Upload | ClientFailed]
"""A job, and what became of it."""
MOST_THREADS = 3
"""To hash and write a small upload takes twice as long as to check it."""


def store_each(
    ended: Iterable[Ended], put: Callable[[Job, Upload], None]
) -> Generator[Ended, None, None]:
    """Yields what has ended, in its order, each upload once it is stored.

    Threads store only where torch may use several cores, and what another upload follows at once:
    after any other the next one may be long in coming. One upload more is being stored than there
    are threads, at most. What an end or an error finds at work is stored before it goes on.

    Args:
        ended: what may be stored.
        put: stores an upload; what it raises is raised here when it is the upload's turn.
    """
    threads = min(torch.get_num_threads(), MOST_THREADS)
    with ThreadPoolExecutor(threads) as pool:
        at_work = deque[tuple[Ended, Callable[[], None]]]()
        for job, outcome in ended:
            follows, wait = False, lambda: None
            if isinstance(outcome, Upload):
                follows = outcome.followed and threads > 1
                if follows or at_work:
                    wait = pool.submit(put, job, outcome).result
                else:
                    put(job, outcome)
            at_work.append(((job, outcome), wait))
            while len(at_work) > (threads if follows else 0):
                first, wait = at_work.popleft()
                wait()
                yield first
