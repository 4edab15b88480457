"""Processes killed while they store: ``python -m tests.cache.killed 1000`` (make kill-cache).

Each child stores entries as fast as it can until kill -9 ends it; meanwhile and afterwards every
lookup must give nothing or what was stored, whole.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from dovetail import cache
from tests.cache.samples import key

KEYS = [key(graph=str(i)) for i in range(3)]


def payload_of(digest: str) -> bytes:
    """400 kB that belong to the key, so that a write takes a while."""
    return hashlib.sha256(digest.encode()).digest() * 12_500


def store_forever() -> None:
    for each in itertools.cycle(KEYS):
        cache.store(each, payload_of(each.digest))


def check() -> None:
    """No entry is there, or the whole of it; never one that must be refused."""
    for each in KEYS:
        found = cache.lookup(each)
        if isinstance(found, cache.Hit):
            assert found.payload == payload_of(each.digest), "a corrupt hit"
        else:
            assert found.reason == "nothing is stored under this key", found


def kill_one(after: float) -> None:
    child = os.fork()
    if not child:
        store_forever()
    try:
        end = time.monotonic() + after
        while time.monotonic() < end:
            check()
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    check()


def main(count: int) -> None:
    """Kill ``count`` processes, and say how many of them left a half-written file."""
    with tempfile.TemporaryDirectory() as folder:
        cache.configure(folder=f"{folder}/cache", size="100M")
        for at in range(count):
            if at % 10 == 0:
                cache.clear()
            kill_one(random.uniform(0.0, 0.02))
        left = len(list(Path(folder, "cache").glob("*.tmp")))
        hits = cache.stats().hits
    print(f"killed {count}, {left} within a write; {hits:,} whole hits, none corrupt")
    if not (left and hits):
        sys.exit("no kill came within a write, or nothing was ever read: this showed nothing")


if __name__ == "__main__":
    main(int(sys.argv[1]))
