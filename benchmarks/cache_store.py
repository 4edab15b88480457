"""The cache's own part of a warm start: a hit by size of its entry, a miss, a store; medians."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable

from dovetail import cache

PARTS = {f"part {i}": f"what part {i} depends on" for i in range(12)}


def milliseconds(work: Callable[[], object], repeat: int = 20) -> float:
    taken = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        taken.append(time.perf_counter() - start)
    return 1e3 * statistics.median(taken)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        cache.configure(folder=f"{folder}/cache")
        for size in (10_000, 1_000_000, 10_000_000):
            key, payload = cache.Key.of({**PARTS, "size": str(size)}), os.urandom(size)
            stored = milliseconds(lambda key=key, payload=payload: cache.store(key, payload))
            hit = milliseconds(lambda key=key: cache.lookup(key))
            print(f"{size:>12,} bytes   hit {hit:7.3f} ms   store {stored:7.3f} ms")
        for i in range(300):
            cache.store(cache.Key.of({**PARTS, "graph": str(i)}), b"")
        missed = cache.Key.of({**PARTS, "graph": "another"})
        print(
            f"a miss, compared with 300 keys: {milliseconds(lambda: cache.lookup(missed)):.3f} ms"
        )


if __name__ == "__main__":
    main()
