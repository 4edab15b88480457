"""Gathers and joins: embedding, index, gather, cat, pad, flip, scatters of slices."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from dovetail.ir.affine import Affine, add, mul
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.size import Dim, Size
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices
from dovetail.lower.masks import all_of, between
from dovetail.lower.pointwise import check_number, element
from dovetail.lower.reindex import diagonal_of, moved
from dovetail.lower.rules import (
    Lower,
    Refused,
    argument,
    axis,
    compute,
    rule,
    scalar,
    size_of,
    static,
    tensor,
)
from dovetail.lower.values import Pointwise, Value, broadcast_index
from dovetail.lower.views import slice_start

_MOST_PIECES = 4  # more are better copied one by one
_MOST_INNER = 16  # along the last dimension, where loops are cut at the borders
_MOST_SHORT = 8  # and where that is too short for it
_SHORT = 64


@rule("cat.default")
def lower_cat(lower: Lower, call: OpCall) -> Pointwise:
    """Each element from the piece it lies in; loads of the others do not happen."""
    desc = tensor(call.output)
    pieces = [lower.value(ref) for ref in call.args[0]]
    pieces = [p for p in pieces if p.shape != (0,)]
    dim = axis(argument(call, 1, "dim", 0), len(desc.shape))
    most = _MOST_PIECES
    if dim == len(desc.shape) - 1:
        size = desc.shape[dim]
        most = _MOST_INNER if isinstance(size, int) and size >= _SHORT else _MOST_SHORT
    if not pieces:
        raise Refused("nothing to join")
    if len(pieces) > most:
        raise Refused("too many pieces")
    starts: list[Dim] = [0]
    for piece in pieces:
        starts.append(add(starts[-1], piece.shape[dim]))
    result = compute(desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        total = ""
        for n in reversed(range(len(pieces))):
            place = moved(index, dim, mul(starts[n], -1))
            low = starts[n] if n else None
            high = starts[n + 1] if n + 1 < len(pieces) else None
            mask = between(b, index[dim], low, high)
            value = b.cast(b.masked(mask, partial(b.read, pieces[n], place)), result)
            total = b.apply("where", result, mask, value, total) if total else value
        return total

    return lower.pointwise(call, body, tuple(pieces), 2.0 * len(pieces))


@rule("constant_pad_nd.default")
def lower_pad(lower: Lower, call: OpCall) -> Pointwise:
    """A number around; negative padding cuts."""
    source, desc = lower.value(call.args[0]), tensor(call.output)
    fill = argument(call, 2, "value", 0)
    pads = call.args[1]
    if not scalar(fill) or not all(isinstance(p, int | Size) for p in pads):
        raise Refused("padding that is no number")
    check_number(fill, desc.dtype)
    rank, dtype = len(source.shape), compute(desc.dtype)

    def body(b: Builder, index: Indices) -> str:
        masks = []
        place = index
        for n, (before, after) in enumerate(zip(pads[::2], pads[1::2], strict=True), 1):
            place = moved(place, rank - n, mul(-1, before))
            if not all(isinstance(p, int) and p <= 0 for p in (before, after)):
                masks.append(between(b, place[rank - n], 0, source.shape[rank - n]))
        mask = all_of(b, masks)
        if mask is None:
            return b.read(source, place)
        value = b.masked(mask, lambda: b.read(source, place))
        return b.apply("where", dtype, mask, value, element(b, fill, (), dtype, desc.dtype))

    return lower.pointwise(call, body, (source,), 3.0)


@rule("roll.default")
def lower_roll(lower: Lower, call: OpCall) -> Pointwise:
    """Dimensions rolled round: what leaves at the end comes in at the front."""
    source = lower.value(call.args[0])
    shifts, dims = call.args[1], argument(call, 2, "dims", ())
    rank = len(source.shape)
    if len(shifts) != len(dims) or not dims:
        raise Refused("a roll of all elements in row-major order")
    total: dict[int, Dim] = {}
    for shift, d in zip(shifts, dims, strict=True):
        dim = axis(d, rank)
        total[dim] = add(total.get(dim, 0), size_of(shift, "a shift"))
    sizes = {d: source.shape[d] if source.shape[d] != 0 else 1 for d in total}
    moves = {d: Size.binary("mod", n, sizes[d]) for d, n in total.items()}
    moves = {d: n for d, n in moves.items() if n != 0}
    dtype = compute(tensor(call.output).dtype)

    def rolled(b: Builder, index: Indices, left: tuple[int, ...]) -> str:
        if not left:
            return b.read(source, index)
        dim, rest = left[0], left[1:]
        shift, size = moves[dim], source.shape[dim]
        later, earlier = between(b, index[dim], shift, None), between(b, index[dim], None, shift)
        end = b.masked(
            earlier, lambda: rolled(b, moved(index, dim, Size.binary("sub", size, shift)), rest)
        )
        start = b.masked(later, lambda: rolled(b, moved(index, dim, mul(shift, -1)), rest))
        return b.apply("where", dtype, later, start, end)

    cost = 2.0 + 2.0 * len(moves)
    return lower.pointwise(call, lambda b, i: rolled(b, i, tuple(moves)), (source,), cost)


@rule("copy.default")
def lower_copy_over(lower: Lower, call: OpCall) -> Pointwise:
    """One value in the shape and type of another, of which nothing else is used."""
    source, desc = lower.value(call.args[1]), tensor(call.output)
    form = compute(desc.dtype), desc.dtype
    return lower.pointwise(call, lambda b, index: element(b, source, index, *form), (source,))


@rule("empty.memory_format", "empty_strided.default")
@rule("new_empty.default", "new_empty_strided.default")
def lower_empty(lower: Lower, call: OpCall) -> Pointwise:
    """Memory that nothing is promised of: nothing is written where it is written over."""
    dtype = compute(tensor(call.output).dtype)
    return lower.pointwise(call, lambda b, _: b.const(0, dtype), (), 0)


@rule("flip.default")
def lower_flip(lower: Lower, call: OpCall) -> Pointwise:
    """Dimensions backwards."""
    source = lower.value(call.args[0])
    dims = {axis(d, len(source.shape)) for d in call.args[1]}

    def body(b: Builder, index: Indices) -> str:
        place = tuple(
            i.scale(-1).shift(source.shape[n]).shift(-1) if n in dims else i
            for n, i in enumerate(index)
        )
        return b.read(source, place)

    return lower.pointwise(call, body, (source,))


def _replaced(
    lower: Lower,
    call: OpCall,
    where: Callable[[Builder, Indices, Value], tuple[str, Indices]],
    cost: float = 3.0,
) -> Pointwise:
    """A value with a piece of it replaced; ``where``: whether an element is, and by which."""
    source, piece = lower.value(call.args[0]), lower.value(call.args[1])
    stored = tensor(call.output).dtype
    dtype = compute(stored)

    def body(b: Builder, index: Indices) -> str:
        mask, place = where(b, index, piece)
        inside = b.masked(mask, lambda: element(b, piece, place, dtype, stored))
        return b.apply("where", dtype, mask, inside, b.cast(b.read(source, index), dtype))

    return lower.pointwise(call, body, (source, piece), cost)


@rule("slice_scatter.default")
def lower_slice_scatter(lower: Lower, call: OpCall) -> Pointwise:
    """A value with a range of one dimension replaced."""
    shape = tensor(call.output).shape
    dim = axis(argument(call, 2, "dim", 0), len(shape))
    step = static(argument(call, 5, "step", 1), "a step")
    start = argument(call, 3, "start", 0)
    start = slice_start(0 if start is None else size_of(start, "a start"), shape[dim], shape)

    def where(b: Builder, index: Indices, piece: Value) -> tuple[str, Indices]:
        end = add(start, mul(piece.shape[dim], step))
        if step == 1:
            return between(b, index[dim], start, end), moved(index, dim, mul(start, -1))
        at, by = b.position(index[dim].shift(mul(start, -1))), b.const(step, "int64")
        on = b.apply("eq", "bool", b.apply("floormod", "int64", at, by), b.const(0, "int64"))
        mask = b.apply("and", "bool", on, between(b, index[dim], start, end))
        place = Affine.value(b.apply("floordiv", "int64", at, by))
        return mask, (*index[:dim], place, *index[dim + 1 :])

    return _replaced(lower, call, where, 3.0 if step == 1 else 6.0)


@rule("diagonal_scatter.default")
def lower_diagonal_scatter(lower: Lower, call: OpCall) -> Pointwise:
    """A value with a diagonal replaced."""
    rows, columns, down, right = diagonal_of(call, 2, len(tensor(call.output).shape))

    def where(b: Builder, index: Indices, _: Value) -> tuple[str, Indices]:
        along = index[rows].shift(-down)
        across = b.position(index[columns].shift(-right))
        on = b.apply("eq", "bool", b.position(along), across)
        mask = b.apply("and", "bool", on, between(b, along, 0, None))
        return mask, (*(i for d, i in enumerate(index) if d not in (rows, columns)), along)

    return _replaced(lower, call, where, 4.0)


@rule("select_scatter.default")
def lower_select_scatter(lower: Lower, call: OpCall) -> Pointwise:
    """A value with one position of a dimension replaced."""
    shape = tensor(call.output).shape
    dim = axis(call.args[2], len(shape))
    place = slice_start(static(call.args[3], "a position"), shape[dim], shape)

    def where(b: Builder, index: Indices, _: Value) -> tuple[str, Indices]:
        return between(b, index[dim], place, add(place, 1)), (*index[:dim], *index[dim + 1 :])

    return _replaced(lower, call, where)


# ---- gathers -----------------------------------------------------------------------------------


def checked(b: Builder, name: str, extent: Dim, kind: str) -> Affine:
    """An index read from memory, in range; out of range is reported when the kernel ends."""
    name = b.cast(name, "int64")
    return Affine.value(b.apply(kind, "int64", name, b.position(Affine(extent)), b.mask_or_true()))


def index_value(lower: Lower, arg: Any) -> Value:
    """A tensor of indices."""
    value = lower.value(arg)
    if value.dtype not in ("int64", "int32"):
        raise Refused(f"an index of {value.dtype}")
    return value


@rule("embedding.default")
def lower_embedding(lower: Lower, call: OpCall) -> Pointwise:
    """Rows of a table."""
    table, places = lower.value(call.args[0]), index_value(lower, call.args[1])
    if len(table.shape) != 2:
        raise Refused("a table that is no matrix")

    def body(b: Builder, index: Indices) -> str:
        row = checked(b, b.read(places, index[:-1]), table.shape[0], "check_index")
        return b.read(table, (row, index[-1]))

    return lower.pointwise(call, body, (table, places), 4.0)


@rule("index_select.default")
def lower_index_select(lower: Lower, call: OpCall) -> Pointwise:
    """Positions of one dimension."""
    source, places = lower.value(call.args[0]), index_value(lower, call.args[2])
    if len(places.shape) != 1 or not source.shape:
        raise Refused("an index that is no vector")
    dim = axis(call.args[1], len(source.shape))

    def body(b: Builder, index: Indices) -> str:
        place = checked(b, b.read(places, (index[dim],)), source.shape[dim], "check_index")
        return b.read(source, (*index[:dim], place, *index[dim + 1 :]))

    return lower.pointwise(call, body, (source, places), 4.0)


@rule("gather.default")
def lower_gather(lower: Lower, call: OpCall) -> Pointwise:
    """Along one dimension, the position an index tensor names."""
    source, places = lower.value(call.args[0]), index_value(lower, call.args[2])
    rank = len(source.shape)
    if len(places.shape) != rank or not rank:
        raise Refused("ranks that differ")
    dim = axis(call.args[1], rank)

    def body(b: Builder, index: Indices) -> str:
        place = checked(b, b.read(places, index), source.shape[dim], "check_bounds")
        return b.read(source, (*index[:dim], place, *index[dim + 1 :]))

    return lower.pointwise(call, body, (source, places), 4.0)


@rule("index.Tensor")
def lower_index(lower: Lower, call: OpCall) -> Pointwise:
    """Advanced indexing by integer tensors: where they stand apart, what they name comes first."""
    source = lower.value(call.args[0])
    given = call.args[1]
    used = [n for n, g in enumerate(given) if isinstance(g, Ref)]
    if not used:
        raise Refused("no index")
    places = {n: index_value(lower, given[n]) for n in used}
    adjacent = used == list(range(used[0], used[-1] + 1))
    first = used[0] if adjacent else 0
    broad = len(tensor(call.output).shape) - (len(source.shape) - len(used))

    def body(b: Builder, index: Indices) -> str:
        middle = index[first : first + broad]
        rest = iter((*index[:first], *index[first + broad :]))
        found = []
        for n, size in enumerate(source.shape):
            if n in places:
                name = b.read(places[n], broadcast_index(middle, places[n].shape))
                found.append(checked(b, name, size, "check"))
            else:
                found.append(next(rest))
        return b.read(source, tuple(found))

    return lower.pointwise(call, body, (source, *places.values()), 4.0 + len(places))
