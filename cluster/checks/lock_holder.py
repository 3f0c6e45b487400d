"""``python -m cluster.checks.lock_holder FILE NAME...``: another process, which tries locks.

It writes one line, for each name whether it acquired the lock, and holds what it acquired until its
input ends.
"""

import sys
from pathlib import Path

from cluster.clients.locks import Locks


def main() -> None:
    """Tries the locks, and waits."""
    file, *names = sys.argv[1:]
    locks = Locks(Path(file))
    print(*(locks.acquire(name) for name in names), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
