"""What this machine can do at most, measured: a copy of memory, and multiply-adds.

It takes a tenth of a second. The best that was ever measured is kept in the cache's folder, by
processor and threads, so that a busy moment does not lower the limits for good. The multiply-add
test is a matrix product of the library that PyTorch calls, the best of several: what
its units give to real code, a little below what their clock promises.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dovetail.cache.settings import current

_FILE = "limits.json"
_COPIED = 128 << 20  # bytes of the array that is copied: more than most caches hold
_CHUNK = 4 << 20  # bytes copied at a time: half a millisecond, which a busy machine may leave us
_ORDER = 384  # of the square matrices: a millisecond
_ROUNDS = 32
_KEYS = ("bytes_per_second", "operations_per_second")
_MOST_KEPT = 1 << 20  # bytes of the file


def machine_limits() -> dict[str, Any]:
    """Bytes and float32 operations a second that this process can reach, with its threads."""
    import torch

    from dovetail.file.processors import target_here

    threads = torch.get_num_threads()
    place = f"{target_here().name}, {threads} threads"
    kept = {name: limits for name, limits in _read().items() if _is_limits(limits)}
    found = _measure(torch)
    best = {key: max(found[key], kept.get(place, found)[key]) for key in _KEYS}
    if kept.get(place) != best:
        _write({**kept, place: best})
    return {"threads": threads, **best}


def _measure(torch: Any) -> dict[str, float]:
    with torch.no_grad():
        source, target = torch.ones(_COPIED // 4), torch.zeros(_COPIED // 4)
        pieces = zip(target.split(_CHUNK // 4), source.split(_CHUNK // 4), strict=True)
        copying = _least([partial(to.copy_, of) for to, of in pieces])
        a, b = torch.rand(_ORDER, _ORDER), torch.rand(_ORDER, _ORDER)
        out = torch.empty_like(a)
        multiplying = _least([lambda: torch.mm(a, b, out=out)] * _ROUNDS)
    return {
        "bytes_per_second": 2 * _CHUNK / copying,  # read and written
        "operations_per_second": 2 * _ORDER**3 / multiplying,
    }


def _least(works: Sequence[Callable[[], Any]]) -> float:
    """Seconds of the fastest, the first left out."""
    works[0]()
    times = []
    for work in works[1:]:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _is_limits(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), float) and 0 < value[key] < math.inf for key in _KEYS
    )


def _path() -> Path | None:
    settings = current()
    return Path(settings.folder) / _FILE if settings.enabled else None


def _read() -> dict[str, Any]:
    path = _path()
    if path is None:
        return {}
    try:
        with path.open("rb") as file:
            kept = json.loads(file.read(_MOST_KEPT))
    except (OSError, ValueError, RecursionError):  # not there, or no JSON: measured anew
        return {}
    return kept if isinstance(kept, dict) else {}


def _write(kept: dict[str, Any]) -> None:
    """Keep it, if the folder can be written to; a reader never sees half a file."""
    path = _path()
    if path is None:
        return
    part = path.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part.write_text(json.dumps(kept))
        part.replace(path)
