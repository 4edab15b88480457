"""CUDA: what PyTorch's own compiler calls on every run, at a fraction of the public way's time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def current_device_reader() -> Callable[[], int]:
    """A function that returns the number of the current device, which there has to be."""
    import torch

    found: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)
    return found


def memory_maker() -> Callable[[Sequence[int], Sequence[int], Any], Any]:
    """A function of sizes, strides and dtype that returns new memory on the current device."""
    import torch

    def plain(sizes: Sequence[int], strides: Sequence[int], dtype: Any) -> Any:
        return torch.empty_strided(sizes, strides, dtype=dtype, device="cuda")

    guards: Any = torch._C._dynamo.guards
    found: Callable[..., Any] = getattr(guards, "_empty_strided_cuda", plain)
    return found
