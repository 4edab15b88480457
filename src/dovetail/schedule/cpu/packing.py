"""Constant matrices packed for products: a tile's columns lie together, step after step.

A matrix of [K, N] becomes [N / W, K, W], which a product's kernel reads from one end to the other.
The change is written in calls of ATen, so that whoever runs the segment gets the same results:
those that pack depend on constants alone and run once (``place/prepare.py``), and the product
becomes one by each panel, whose results stand side by side.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from dovetail.ir.affine import mul
from dovetail.ir.call import Attr, OpCall, Ref
from dovetail.ir.layout import Layout
from dovetail.ir.segment import Segment
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides, is_row_major
from dovetail.ir.target import PAIRS_OF_BFLOAT16, Target
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import lowered_alone
from dovetail.schedule.cpu.convolution import WIDE
from dovetail.schedule.cpu.dots import most_rows_in_pairs
from dovetail.schedule.cpu.library import FEW_ROWS, library_reason, multiplies
from dovetail.schedule.way import LIBRARY, Way

# Columns of a panel, the best first: whole vectors of 64 bytes that fill registers with
# accumulators (three by eight rows); a line where vectors are half of one, so that none is read in
# several turns (2 by 2048 by 4096 takes 0.53 of the time with 16 columns that it takes with 64).
WIDTHS, NARROW_WIDTHS = (48, 64, 32, 96, 80, 16), (16,)
_ROW_MAJOR = {"memory_format": Attr("memory_format", "contiguous_format")}
_PRODUCTS = {"aten.mm.default": 0, "aten.addmm.default": 1}  # where the left matrix stands


def pack_products(segment: Segment, target: Target, once: frozenset[str]) -> Segment:
    """The segment with products by constant matrices as products by packed ones."""
    packer = _ConstantPacker(segment, target, once)
    calls = tuple(made for call in segment.calls for made in packer.rewritten(call))
    return replace(segment, calls=calls) if packer.packed else segment


def panel_width(columns: int, target: Target, way: Way | None = None) -> int:
    """Columns of a panel; 0 where none divides a matrix into whole ones."""
    wanted = WIDTHS if target.vector_bytes >= WIDE else NARROW_WIDTHS
    given = wanted if way is None or way.panels is None else (way.panels,)
    return next((width for width in given if width and columns % width == 0), 0)


def packed_width(call: OpCall, target: Target, once: frozenset[str]) -> int:
    """Columns of a panel for a product by a constant matrix; 0: it is not worth packing for.

    Where measuring chose a kernel, it alone says whether that has panels, and of what width.
    """
    first, way = _PRODUCTS.get(call.op, 0), Way.parse(call.candidate)
    if call.op not in _PRODUCTS or len(call.args) != first + 2 or call.kwargs or way == LIBRARY:
        return 0
    left, right = call.args[first:]
    if not isinstance(left, Ref) or not isinstance(right, Ref) or right.name not in once:
        return 0
    x, w, out = _tensor(left.desc), _tensor(right.desc), _tensor(call.output)
    sizes = (x.shape[1], *w.shape, *w.strides)
    if not all(isinstance(n, int) for n in sizes) or x.shape[0] == 1 or not is_row_major(out):
        return 0
    width = panel_width(int(w.shape[1]), target, way)  # type: ignore[arg-type]
    if width == w.shape[1] and is_row_major(w):  # one panel, as it lies
        return 0
    if way is None and _is_read_in_pairs(x, w, target):
        return 0
    return width if way is not None or _is_own(call, w.dtype, target) else 0


def _is_read_in_pairs(x: TensorDesc, w: TensorDesc, target: Target) -> bool:
    """Whether vectors of pairs of steps are read from where a matrix lies, for few rows.

    That takes less time than a copy of its panels as pairs (``cpu/dots.py``): of 768 by 3072, 2
    rows 0.44, 8 rows 0.75, 16 rows 0.9.
    """
    rows, types = x.shape[0], {x.dtype, w.dtype}
    if PAIRS_OF_BFLOAT16 not in target.features or types != {"bfloat16"}:
        return False
    few = isinstance(rows, int) and rows <= most_rows_in_pairs(x.shape[1])
    return few and x.strides[1] == 1 and w.strides[0] == 1 and int(x.shape[1]) >= target.lanes  # type: ignore[arg-type]


def _is_own(call: OpCall, dtype: str, target: Target) -> bool:
    """Whether a product is a kernel's by the rules, once its columns are laid out."""
    found = lowered_alone(call)
    if found.refusal or not multiplies(dtype, target):
        return False
    return library_reason(found.contractions, target) in ("", FEW_ROWS)


@dataclass
class _ConstantPacker:
    segment: Segment
    target: Target
    once: frozenset[str]
    packed: dict[tuple[Ref, int], Ref] = field(default_factory=dict)  # by matrix and width

    def __post_init__(self) -> None:
        self.names = {i.name for i in self.segment.inputs} | {c.name for c in self.segment.calls}

    def rewritten(self, call: OpCall) -> Iterator[OpCall]:
        """A call, or what stands for it."""
        width = packed_width(call, self.target, self.once)
        if not width:
            yield call
            return
        left, right = call.args[-2:]
        assert isinstance(left, Ref)
        assert isinstance(right, Ref)
        if (right, width) not in self.packed:
            *most, last = self._pack(right, width)
            self.packed[right, width] = _ref(last)
            yield from (*most, last)
        yield from self._product(call, left, self.packed[right, width])

    def _pack(self, matrix: Ref, width: int) -> Iterator[OpCall]:
        """[K, N] as [N / W, K, W]."""
        desc = _tensor(matrix.desc)
        steps, columns = map(int, desc.shape)  # type: ignore[arg-type]
        count, (down, across) = columns // width, desc.strides
        if count == 1:
            yield self._copy(matrix, matrix, _dense(desc, desc.shape))
            return
        split = _as(desc, (steps, count, width), (down, mul(across, width), across))
        view = self._call(matrix.name, "aten.view.default", (matrix, split.shape), split)
        turned = _permuted(split, (1, 0, 2))
        panels = self._call(matrix.name, "aten.permute.default", (_ref(view), (1, 0, 2)), turned)
        layout = Layout.of(desc.shape, [(1, width), (0, 1), (1, 1)])
        dense = replace(_dense(desc, turned.shape), layout=layout)
        yield from (view, panels, self._copy(matrix, _ref(panels), dense))

    def _copy(self, matrix: Ref, source: Ref, desc: TensorDesc) -> OpCall:
        """What products by a matrix take instead of it."""
        made = self._call(matrix.name, "aten.clone.default", (source,), desc)
        return replace(made, kwargs=_ROW_MAJOR)

    def _product(self, call: OpCall, left: Ref, packed: Ref) -> Iterator[OpCall]:
        """The product by each panel, side by side; then what is added to it."""
        if len(_tensor(packed.desc).shape) == 2:
            yield replace(call, args=(*call.args[:-1], packed))
            return
        x, panels, out = _tensor(left.desc), _tensor(packed.desc), _tensor(call.output)
        (rows, steps), (count, _, width) = x.shape, panels.shape
        one = _as(x, (1, rows, steps), (mul(x.strides[0], rows), *x.strides))
        again = _as(x, (count, rows, steps), (0, *x.strides))
        first = self._call(call.name, "aten.unsqueeze.default", (left, 0), one)
        same = self._call(call.name, "aten.expand.default", (_ref(first), (count, -1, -1)), again)
        parts = _dense(out, (count, rows, width))
        product = self._call(call.name, "aten.bmm.default", (_ref(same), packed), parts)
        product = replace(product, candidate=call.candidate)
        turned = _permuted(parts, (1, 0, 2))
        beside = self._call(call.name, "aten.permute.default", (_ref(product), (1, 0, 2)), turned)
        # No size is named that may be known when the segment runs alone: it has no input for it.
        shape = -1, out.shape[1]
        whole = self._call(call.name, "aten.reshape.default", (_ref(beside), shape), out)
        yield from (first, same, product, beside)
        if call.op == "aten.mm.default":
            yield replace(whole, name=call.name)
            return
        yield whole
        yield OpCall(call.name, "aten.add.Tensor", (_ref(whole), call.args[0]), {}, out)

    def _call(self, stem: str, op: str, args: tuple[object, ...], output: TensorDesc) -> OpCall:
        name = f"{stem}_packed"
        while name in self.names:
            name += "_"
        self.names.add(name)
        return OpCall(name, op, args, {}, output)


def _tensor(desc: object) -> TensorDesc:
    assert isinstance(desc, TensorDesc)
    return desc


def _ref(call: OpCall) -> Ref:
    return Ref(call.name, call.output)


def _dense(like: TensorDesc, shape: Sequence[Dim]) -> TensorDesc:
    return _as(like, shape, contiguous_strides(shape))


def _permuted(desc: TensorDesc, order: tuple[int, ...]) -> TensorDesc:
    return _as(desc, [desc.shape[d] for d in order], [desc.strides[d] for d in order])


def _as(like: TensorDesc, shape: Sequence[Dim], strides: Sequence[Dim]) -> TensorDesc:
    return TensorDesc(like.dtype, tuple(shape), tuple(strides), like.device)
