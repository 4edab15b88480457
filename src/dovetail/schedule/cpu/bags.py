"""Bags of embeddings as gathers and scatters, for files that are to do without PyTorch.

Rows are looked up, and each is added to the bag that it lies in; where the bags start says which
that is: a running count of starts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dovetail.ir.call import Arg, OpCall, Ref, leaves
from dovetail.ir.segment import Segment
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.rules import static

_BAGS = ("aten._embedding_bag.default", "aten._embedding_bag_forward_only.default")
_SUM, _MEAN = range(2)  # PyTorch's numbers; the third is the largest
_DEFAULTS = (False, _SUM, False, None, False, -1)


def take_bags_apart(segment: Segment) -> Segment:
    """The segment with other calls in place of those that sum bags."""
    used = {(ref.name, ref.path) for call in segment.calls for ref in call.refs()}
    used |= {(r.name, r.path) for out in segment.outputs for r in leaves(out) if isinstance(r, Ref)}
    apart = {call.name for call in segment.calls if _covers(call, used)}
    if not apart:
        return segment
    calls: list[OpCall] = []
    for call in segment.calls:
        if call.name in apart:
            calls += _Bags(call).calls()
        else:
            kwargs = {key: _renamed(arg, apart) for key, arg in call.kwargs.items()}
            calls.append(replace(call, args=_renamed(call.args, apart), kwargs=kwargs))
    return replace(segment, calls=tuple(calls), outputs=_renamed(segment.outputs, apart))


def _renamed(arg: Arg, apart: set[str]) -> Arg:
    """The first results of these calls as results of calls that have no others."""
    if isinstance(arg, Ref) and arg.name in apart:
        return Ref(arg.name, arg.desc)
    return tuple(_renamed(a, apart) for a in arg) if isinstance(arg, tuple) else arg


def _covers(call: OpCall, used: set[tuple[str, tuple[int, ...]]]) -> bool:
    """Whether nothing but the bags of a call is used, and they are sums of floats.

    The largest of a bag is left out: it takes no NaN, where a scatter does. So are sums of less
    than float32, whose scatter rounds at every row, and sizes that vary.
    """
    if call.op not in _BAGS or any(path != (0,) for name, path in used if name == call.name):
        return False
    bags, weight, indices, starts = _Bags.tensors(call)
    plain = all(isinstance(n, int) for d in (bags, indices, starts) for n in d.shape)
    floats = bags.dtype == weight.dtype and bags.dtype in ("float32", "float64")
    mode, _, scales, last, _ = _Bags.options(call)
    known = scales is None or isinstance(scales, Ref)
    return plain and floats and mode in (_SUM, _MEAN) and indices.rank == 1 and not last and known


class _Bags:
    """The calls that stand for one."""

    def __init__(self, call: OpCall) -> None:
        self.call = call
        self.made: list[OpCall] = []
        self.out, _, indices, starts = self.tensors(call)
        self.count, self.bags = static(indices.shape[0], "rows"), static(starts.shape[0], "bags")

    @staticmethod
    def tensors(call: OpCall) -> tuple[TensorDesc, TensorDesc, TensorDesc, TensorDesc]:
        """The bags, the table, the indices, and where bags start."""
        weight, indices, starts = (arg.desc for arg in call.args[:3])
        return call.outputs[0], weight, indices, starts

    @staticmethod
    def options(call: OpCall) -> tuple[Arg, ...]:
        """Mode, sparsity of gradients, scales, whether the last start is an end, padding."""
        given = call.args[3:]
        return (*given, *_DEFAULTS[len(given) :])[1:]

    def calls(self) -> Iterator[OpCall]:
        """Rows, where each belongs, and their sums or means."""
        mode, _, scales, _, padding = self.options(self.call)
        table, indices, _ = self.call.args[:3]
        dtype, width = self.out.dtype, self.out.shape[1]
        where = self._places()
        rows = self._add("embedding.default", (table, indices), (self.count, width), dtype)
        kept = None
        if scales is not None:
            rows = self._add("mul.Tensor", (rows, self._beside(scales)), (self.count, width), dtype)
        if padding >= 0:
            kept = self._add("ne.Scalar", (indices, padding), (self.count,), "bool")
            nothing = self._full((), 0.0, dtype)
            choice = self._beside(kept), rows, nothing
            rows = self._add("where.self", choice, (self.count, width), dtype)
        sums = self._summed(where, rows, (self.bags, width))
        if mode == _MEAN:
            sums = self._mean(sums, where, kept)
        self.made[-1] = replace(self.made[-1], name=self.call.name)
        return iter(self.made)

    def _places(self) -> Ref:
        """The bag that each row lies in: how many start up to it, less one."""
        starts = self.call.args[2]
        none = self._full((self.count + 1,), 0, "int64")  # a bag may start behind the last row
        ones = self._full((self.bags,), 1, "int64")
        begun = self._add("index_add.default", (none, 0, starts, ones), (self.count + 1,), "int64")
        total = self._add("cumsum.default", (begun, 0), (self.count + 1,), "int64")
        cut = self._add("slice.Tensor", (total, 0, 0, self.count), (self.count,), "int64")
        return self._add("sub.Tensor", (cut, 1), (self.count,), "int64")

    def _mean(self, sums: Ref, where: Ref, kept: Ref | None) -> Ref:
        dtype = self.out.dtype
        one, zero = (self._full((self.count,), n, dtype) for n in (1.0, 0.0))
        each = one
        if kept is not None:
            each = self._add("where.self", (kept, one, zero), (self.count,), dtype)
        sizes = self._summed(where, each, (self.bags,))
        sizes = self._add("clamp_min.default", (sizes, 1.0), (self.bags,), dtype)
        return self._add("div.Tensor", (sums, self._beside(sizes)), self.out.shape, dtype)

    def _summed(self, where: Ref, rows: Ref, shape: tuple[Dim, ...]) -> Ref:
        none = self._full(shape, 0.0, self.out.dtype)
        return self._add("index_add.default", (none, 0, where, rows), shape, self.out.dtype)

    def _beside(self, column: Ref) -> Ref:
        desc = column.desc
        assert isinstance(desc, TensorDesc)
        return self._add("unsqueeze.default", (column, 1), (desc.shape[0], 1), desc.dtype)

    def _full(self, shape: tuple[Dim, ...], value: float, dtype: str) -> Ref:
        return self._add("full.default", (shape, value), shape, dtype)

    def _add(self, op: str, args: tuple[Arg, ...], shape: tuple[Dim, ...], dtype: str) -> Ref:
        name = f"{self.call.name}_apart_{len(self.made)}"
        desc = TensorDesc(dtype, shape, contiguous_strides(shape))
        self.made.append(OpCall(name, f"aten.{op}", args, {}, desc))
        return Ref(name, desc)
