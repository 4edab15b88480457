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


def product_settings(float32: bool) -> bool | None:
    """Whether factors of products in float32 are rounded to TF32, which is asked for those alone.

    None: products are to be computed otherwise than usually (sums rounded to fewer bits or never,
    always in one order, by measured choice, on some of the multiprocessors), as only PyTorch does.
    """
    import torch

    c: Any = torch._C
    rounding = (
        c._get_cublas_allow_fp16_reduced_precision_reduction(),
        c._get_cublas_allow_bf16_reduced_precision_reduction(),
    )
    usual = all(each is True or each == (True, True) for each in rounding)
    if (
        not usual
        or c._get_cublas_allow_fp16_accumulation()
        or c._get_deterministic_algorithms()
        or c._get_sm_carveout_experimental() is not None
        or (torch.version.cuda is not None and torch.cuda.tunable.is_enabled())
    ):
        return None
    return bool(float32 and c._get_cublas_allow_tf32())
