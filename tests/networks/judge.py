"""Results of random networks judged by float64, beside eager's own errors."""

from __future__ import annotations

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

TIMES, LEAST, RUNS = 3.0, 1e-5, 12
# Of what is rounded on the way: float64 stands for float32; halves may not be rounded at all.
BITS = {torch.float64: 23, torch.bfloat16: 7, torch.float16: 10}


class Rounding(TorchDispatchMode):
    """Operators whose results are off by about their last bit, each time otherwise."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.noise = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        result = op(*args, **(kwargs or {}))
        if op.is_view or "rand" in str(op) or "bernoulli" in str(op) or op._schema.is_mutable:
            return result
        return tree_map_only(torch.Tensor, self.rounded, result)

    def rounded(self, x):
        if x.dtype not in BITS:
            return x
        noise = torch.randn(x.shape, generator=self.noise, dtype=torch.float64)
        return (x * (1 + noise * 2.0 ** -BITS[x.dtype])).to(x.dtype)


def problems(found, expected, exact, near, strides=True) -> list[str]:
    """What is wrong with lists of tensors; ``near`` makes exact results with some rounding."""
    if len(found) != len(expected):
        return [f"{len(found)} results for {len(expected)}"]
    said, others = [], []
    for place, (ours, theirs, right) in enumerate(zip(found, expected, exact, strict=True)):
        said += [f"result {place}: {text}" for text in _kind(ours, theirs, strides)]
        if ours is None or said or is_right(ours, theirs, right):
            continue
        others = others or [near(seed) for seed in range(RUNS)]
        if not is_among(ours, theirs, right, [other[place] for other in others]):
            said.append(f"result {place}: {_distance(ours, theirs, right)}")
    return said


def _kind(ours, theirs, strides):
    if ours is None or theirs is None:
        return [] if ours is theirs else [f"{type(ours)} for {type(theirs)}"]
    if (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
        return [f"{ours.dtype}{list(ours.shape)} for {theirs.dtype}{list(theirs.shape)}"]
    sizes = [n for n in range(ours.dim()) if ours.shape[n] > 1]
    if (
        strides
        and ours.numel()
        and [ours.stride(n) for n in sizes] != [theirs.stride(n) for n in sizes]
    ):
        return [f"strides {ours.stride()} for {theirs.stride()} of {list(ours.shape)}"]
    return []


def is_right(ours, theirs, right) -> bool:
    """Whether a result is about as near as eager's to what is exact."""
    if not theirs.is_floating_point():
        return torch.equal(ours, theirs)
    ours, theirs, right = ours.double(), theirs.double(), right.double()
    known = theirs.isfinite() & right.isfinite()
    same = (ours == theirs) | (ours.isnan() & theirs.isnan())
    if not bool((known | same).all()):
        return False
    if not bool(known.any()):
        return True
    largest = float(right[known].abs().max())
    limit = TIMES * float((theirs - right)[known].abs().max()) + _least(theirs) * largest
    return bool(((ours - right)[known].abs() <= limit).all())


def _least(x):
    return max(LEAST, 4 * torch.finfo(x.dtype).eps) if x.dtype != torch.float64 else LEAST


def is_among(ours, theirs, right, others) -> bool:
    """Whether each element is within what roundings on the way make of it."""
    ours = ours.double()
    every = torch.stack([right.double(), theirs.double(), *(x.double() for x in others)])
    low, high = every.amin(0), every.amax(0)
    slack = 2 * (high - low) + LEAST * (1 + every.abs().amax(0))
    odd = ~every.isfinite().all(0)
    return bool((((ours >= low - slack) & (ours <= high + slack)) | odd).all())


def _distance(ours, theirs, right):
    if not theirs.is_floating_point():
        return f"{int((ours != theirs).sum())} of {ours.numel()} whole numbers differ"
    off = [float((x.double() - right.double()).abs().nan_to_num().max()) for x in (ours, theirs)]
    return f"off by {off[0]:.2e}, eager by {off[1]:.2e}, largest {float(right.abs().max()):.2e}"
