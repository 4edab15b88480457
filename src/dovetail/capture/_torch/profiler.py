"""torch.profiler: whether one runs, and the range by which it knows a kernel by name."""

from __future__ import annotations

import functools
from typing import Any


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
        _native.watch_profiler(vars(profiler), "_is_profiler_enabled", make)


def span_of(name: str) -> Any:
    """A context manager whose time is shown under this name; None while nobody is profiling."""
    from torch.autograd import profiler

    is_on = getattr(profiler, "_is_profiler_enabled", True)
    return profiler.record_function(name) if is_on else None
