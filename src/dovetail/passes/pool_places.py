"""Where the largest elements of windows lie, saved for the backward pass in few bytes.

PyTorch saves places in the whole image, eight bytes each: of ResNet's first pool as much as its
input. Counted from where a window begins a byte or two tell them.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dovetail.passes.base import Pass
from dovetail.passes.graphs import calls, insert_call, value_of

aten = torch.ops.aten
_POOL, _GRADIENT = aten.max_pool2d_with_indices, aten.max_pool2d_with_indices_backward
_INDICES = 7  # the position of the places among the gradient's arguments


def narrow_places(gm: fx.GraphModule) -> fx.GraphModule:
    """Rewrite the places of each pool that its own gradient alone reads."""
    for node in calls(gm, _GRADIENT.default):
        places = node.args[_INDICES]
        windows = _PoolWindows.of(node)
        if windows is not None and set(places.users) == {node} and _is_of(places, node):
            kept = windows.narrow(gm, places)
            node.update_arg(_INDICES, windows.widen(gm, kept, node))
    return gm


def _is_of(places: fx.Node, gradient: fx.Node) -> bool:
    """Whether these are the places of the pool whose gradient this is."""
    if places.target is not operator.getitem or places.args[1] != 1:
        return False
    pool = places.args[0]
    same = pool.args[1:] == gradient.args[2 : 1 + len(pool.args)]
    return pool.target is _POOL.default and pool.args[0] is gradient.args[1] and same


@dataclass(frozen=True)
class _PoolWindows:
    """How many windows an image has, where each begins, and what tells the places in one."""

    shape: tuple[int, int]
    steps: tuple[int, int]
    pads: tuple[int, int]
    width: int  # of the image
    dtype: torch.dtype
    device: torch.device

    @staticmethod
    def of(gradient: fx.Node) -> _PoolWindows | None:
        """None where sizes vary, or windows are too large."""
        _, image, sizes, steps, pads, holes = gradient.args[:6]
        made, width = value_of(gradient.args[0]), value_of(image).shape[-1]
        shape = tuple(made.shape[-2:])
        if not all(type(n) is int for n in (*shape, width)):
            return None
        (high, wide), (down, across) = _pair(sizes), _pair(holes)
        most = (high - 1) * down * width + (wide - 1) * across
        kinds = [k for k in (torch.uint8, torch.int16) if most <= torch.iinfo(k).max]
        if not kinds:
            return None
        return _PoolWindows(shape, _pair(steps or sizes), _pair(pads), width, kinds[0], made.device)

    def narrow(self, gm: fx.GraphModule, places: fx.Node) -> fx.Node:
        """Places from where windows begin, of places in the image."""
        after = places.next
        inside = insert_call(gm, after, aten.sub.Tensor, places, self._starts(gm, after))
        return insert_call(gm, after, aten._to_copy.default, inside, dtype=self.dtype)

    def widen(self, gm: fx.GraphModule, kept: fx.Node, before: fx.Node) -> fx.Node:
        """Places in the image again."""
        inside = insert_call(gm, before, aten._to_copy.default, kept, dtype=torch.int64)
        return insert_call(gm, before, aten.add.Tensor, inside, self._starts(gm, before))

    def _starts(self, gm: fx.GraphModule, before: fx.Node) -> fx.Node:
        """The place in the image where each window begins; it may be in the padding before it."""
        kind = {"dtype": torch.int64, "device": self.device}
        lines = []
        for count, step, pad, apart in zip(
            self.shape, self.steps, self.pads, (self.width, 1), strict=True
        ):
            bounds = -pad * apart, (count * step - pad) * apart, step * apart
            lines.append(insert_call(gm, before, aten.arange.start_step, *bounds, **kind))
        rows = insert_call(gm, before, aten.unsqueeze.default, lines[0], 1)
        return insert_call(gm, before, aten.add.Tensor, rows, lines[1])


def _pair(numbers: Any) -> tuple[int, int]:
    """One number for each dimension, given as such or as one for both."""
    found = (*numbers,) * 2 if len(numbers) == 1 else (*numbers,)
    return found[0], found[1]


POOL_PLACES = Pass("pool_places", narrow_places)
