"""torch.profiler: whether one runs, and the range by which it knows a kernel by name."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

LINES = "lines"  # what the lines of a kernel are called among a range's values
_lines: dict[str, dict[str, None]] = {}  # by name, each line once
_untold: deque[Callable[[], Mapping[str, list[str]]]] = deque(maxlen=256)  # as history keeps


@functools.cache
def name_kernels_in_profiles() -> None:
    """Have the C runtime tell a running profiler of each instruction.

    The flag and the class are those by which Inductor names its kernels. The runtime looks at the
    flag once a run.
    """
    import torch
    import torch.autograd.profiler as profiler

    from dovetail import _native

    make = getattr(torch._C._profiler, "_RecordFunctionFast", None)
    if make is not None and hasattr(profiler, "_is_profiler_enabled"):
        make = functools.partial(_with_lines, make) if _lines or _untold else make
        _native.watch_profiler(vars(profiler), "_is_profiler_enabled", make)


def tell_lines(find: Callable[[], Mapping[str, list[str]]]) -> None:
    """Have profiles show a model's lines at what runs; ``find`` gives them by what that is called.

    It is called when a profiler first sees something run. Kernels alike have one name, and the
    lines of all.
    """
    _untold.append(find)
    name_kernels_in_profiles.cache_clear()
    name_kernels_in_profiles()


def _with_lines(make: Callable[..., Any], name: str) -> Any:
    while _untold:
        for called, lines in _untold.pop()().items():
            _lines.setdefault(called, {}).update(dict.fromkeys(lines))
    known = _lines.get(name)
    return make(name, [], {LINES: "\n".join(known)}) if known else make(name)


def span_of(name: str) -> Any:
    """A context manager whose time is shown under this name; None while nobody is profiling."""
    from torch.autograd import profiler

    is_on = getattr(profiler, "_is_profiler_enabled", True)
    return profiler.record_function(name) if is_on else None
