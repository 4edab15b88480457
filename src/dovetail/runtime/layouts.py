"""Tensors in the layout that was promised for them, whatever its strides are."""

from __future__ import annotations

from collections.abc import Sequence

import torch


def extent(sizes: Sequence[int], strides: Sequence[int]) -> int:
    """How many elements lie from the first address of a layout to its last."""
    if 0 in sizes:
        return 0
    return 1 + sum((n - 1) * stride for n, stride in zip(sizes, strides, strict=True))


def leaves_no_gap(sizes: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether every address from the first to the last is an element's, of none twice but by 0."""
    moving = [(stride, n) for n, stride in zip(sizes, strides, strict=True) if n > 1 and stride]
    filled = 1
    for stride, n in sorted(moving):
        if stride != filled:
            return False
        filled *= n
    return True


def has_strides(tensor: torch.Tensor, strides: Sequence[int]) -> bool:
    """Whether a tensor's elements lie as these strides say; dimensions of one element do not."""
    pairs = zip(tensor.shape, tensor.stride(), strides, strict=True)
    return not tensor.numel() or all(n == 1 or has == want for n, has, want in pairs)


def with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A tensor with these strides: itself, or a copy."""
    return tensor if has_strides(tensor, strides) else copy_with_strides(tensor, strides)


def copy_with_strides(tensor: torch.Tensor, strides: Sequence[int]) -> torch.Tensor:
    """A copy with these strides.

    Elements that share an address, as those of an expanded view do, are written once: PyTorch
    refuses to write to them all. Memory between elements is zero.
    """
    sizes = tensor.shape
    allocate = torch.empty if leaves_no_gap(sizes, strides) else torch.zeros
    memory = allocate(extent(sizes, strides), dtype=tensor.dtype, device=tensor.device)
    made = memory.as_strided(sizes, list(strides))
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    made[once].copy_(tensor[once])
    return made
