"""Views as index maps: no copy is ever made for one."""

from __future__ import annotations

import functools
from typing import Any

from dovetail.ir.affine import Affine, add, divide, mul, product
from dovetail.ir.call import OpCall
from dovetail.ir.size import Dim, Size
from dovetail.ir.strides import contiguous_strides, is_row_major
from dovetail.lower.expression import Builder
from dovetail.lower.index_map import Indices, ReshapeMap, Run
from dovetail.lower.rules import Lower, Refused, argument, axis, rule, static, tensor, view
from dovetail.lower.values import Value, View
from dovetail.lower.views import keeps_places, known_dim, slice_start


def _base(lower: Lower, call: OpCall) -> Value:
    return lower.value(call.args[0])


def moved(index: Indices, dim: int, amount: Dim, step: int = 1) -> Indices:
    """An index with one of its places times a step and shifted."""
    return tuple(i.scale(step).shift(amount) if n == dim else i for n, i in enumerate(index))


@rule("permute.default", "transpose.int", "t.default")
def lower_permute(lower: Lower, call: OpCall) -> View:
    """Dimensions in another order."""
    base, desc = _base(lower, call), tensor(call.output)
    rank = len(base.shape)
    if "permute" in call.op:
        order = [axis(d, rank) for d in call.args[1]]
    else:
        order = list(range(rank))
        if rank:
            pair = call.args[1:3] if "transpose" in call.op else (0, -1)
            first, second = (axis(d, rank) for d in pair)
            order[first], order[second] = order[second], order[first]

    def index(i: Indices) -> Indices:
        back = dict(zip(order, i, strict=True))
        return tuple(back[d] for d in range(rank))

    return view(call.name, base, desc.shape, index)


@rule("expand.default")
def lower_expand(lower: Lower, call: OpCall) -> View:
    """Size 1 repeated: stride 0."""
    base, desc = _base(lower, call), tensor(call.output)
    extra = len(desc.shape) - len(base.shape)
    repeated = [
        n < extra or (base.shape[n - extra] == 1 and size != 1) for n, size in enumerate(desc.shape)
    ]
    strides = tuple(0 if again else base.strides[n - extra] for n, again in enumerate(repeated))

    def index(i: Indices) -> Indices:
        return tuple(
            Affine() if base.shape[n] == 1 else i[n + extra] for n in range(len(base.shape))
        )

    return view(call.name, base, desc.shape, index, strides)


@rule("slice.Tensor")
def lower_slice(lower: Lower, call: OpCall) -> View:
    """A range of one dimension."""
    base, desc = _base(lower, call), tensor(call.output)
    dim = axis(argument(call, 1, "dim", 0), len(base.shape))
    step = static(argument(call, 4, "step", 1), "a step")
    start = _start(call, base, base.shape[dim])

    return view(call.name, base, desc.shape, lambda i: moved(i, dim, start, step))


def _start(call: OpCall, base: Value, size: Dim) -> Dim:
    """Where a slice starts, counted from the front and no further than the end."""
    start = known_dim(argument(call, 2, "start", 0))
    start = 0 if start is None else start
    if not isinstance(start, int | Size):
        raise Refused("a start that is not known")
    return slice_start(start, size, base.shape)


@rule("select.int")
def lower_select(lower: Lower, call: OpCall) -> View:
    """One position of a dimension."""
    base, desc = _base(lower, call), tensor(call.output)
    dim = axis(call.args[1], len(base.shape))
    return _select(call.name, base, desc.shape, dim, static(call.args[2], "a position"))


def _select(name: str, base: Value, shape: tuple[Dim, ...], dim: int, place: int) -> View:
    position: Dim = place if place >= 0 else add(base.shape[dim], place)
    return view(name, base, shape, lambda i: (*i[:dim], Affine(position), *i[dim:]))


@rule("unsqueeze.default")
def lower_unsqueeze(lower: Lower, call: OpCall) -> View:
    """A dimension of size 1 more."""
    base, desc = _base(lower, call), tensor(call.output)
    rank = len(desc.shape)
    dim = axis(call.args[1], rank)
    step = mul(base.shape[dim], base.strides[dim]) if dim < rank - 1 else 1
    strides = (*base.strides[:dim], step, *base.strides[dim:])
    return view(call.name, base, desc.shape, lambda i: (*i[:dim], *i[dim + 1 :]), strides)


@rule("squeeze.dim", "squeeze.dims", "squeeze.default")
def lower_squeeze(lower: Lower, call: OpCall) -> View:
    """Dimensions of size 1 less."""
    base, desc = _base(lower, call), tensor(call.output)
    rank = len(base.shape)
    given = call.args[1] if len(call.args) > 1 else tuple(range(rank))
    listed = given if isinstance(given, tuple) else (given,)
    dims = {axis(d, rank) for d in listed}
    gone = {d for d in dims if d < rank and base.shape[d] == 1}
    if rank - len(gone) != len(desc.shape):
        raise Refused("a squeeze that depends on symbols")

    def index(i: Indices) -> Indices:
        rest = iter(i)
        return tuple(Affine() if d in gone else next(rest) for d in range(rank))

    return view(call.name, base, desc.shape, index)


@rule("view.default", "reshape.default", "_unsafe_view.default", "_reshape_alias.default")
def lower_view(lower: Lower, call: OpCall) -> View:
    """Another shape for the same row-major order of elements."""
    base, desc = _base(lower, call), tensor(call.output)
    copies = is_row_major(desc) and not is_row_major(base)  # else it is a view in eager too
    if call.op == "aten.reshape.default" and copies:
        base = lower.mapped("copied", base, lambda _, x: x)  # in row-major order
    return reshape(lower, call.name, base, desc.shape, desc.strides)


@rule("diagonal.default")
def lower_diagonal(lower: Lower, call: OpCall) -> View:
    """A diagonal as the last dimension."""
    base, desc = _base(lower, call), tensor(call.output)
    rows, columns, down, right = diagonal_of(call, 1, len(base.shape))
    others = [d for d in range(len(base.shape)) if d not in (rows, columns)]

    def index(i: Indices) -> Indices:
        back = dict(zip(others, i, strict=False))
        back |= {rows: i[-1].shift(down), columns: i[-1].shift(right)}
        return tuple(back[d] for d in range(len(base.shape)))

    return view(call.name, base, desc.shape, index)


def diagonal_of(call: OpCall, first: int, rank: int) -> tuple[int, int, int, int]:
    """A diagonal's two dimensions, and where along each of them it starts."""
    shift = static(argument(call, first, "offset", 0), "an offset")
    rows = axis(argument(call, first + 1, "dim1", 0), rank)
    columns = axis(argument(call, first + 2, "dim2", 1), rank)
    return rows, columns, max(-shift, 0), max(shift, 0)


@rule("unfold.default")
def lower_unfold(lower: Lower, call: OpCall) -> View:
    """Windows along a dimension, their elements as the last dimension."""
    base, desc = _base(lower, call), tensor(call.output)
    if not base.shape:
        raise Refused("windows on a number")
    dim = axis(call.args[1], len(base.shape))
    step = static(call.args[3], "a step")

    def index(i: Indices) -> Indices:
        return tuple(x.scale(step) + i[-1] if n == dim else x for n, x in enumerate(i[:-1]))

    return view(call.name, base, desc.shape, index)


@rule("repeat.default")
def lower_repeat(lower: Lower, call: OpCall) -> View:
    """A value several times over along each dimension."""
    base, desc = _base(lower, call), tensor(call.output)
    times = call.args[1]
    extra = len(times) - len(base.shape)
    sizes = (*((1,) * extra), *base.shape)
    fine = tuple(d for count, size in zip(times, sizes, strict=True) for d in (count, size))

    def body(b: Builder, index: Indices) -> str:
        return b.read(base, index[2 * extra + 1 :: 2])

    whole = lower.inner("repeated", base.dtype, fine, body, (base,))
    return reshape(lower, call.name, whole, desc.shape, desc.strides)


@rule("alias.default", "detach.default")
def lower_alias(lower: Lower, call: OpCall) -> View:
    """The value itself."""
    base = _base(lower, call)
    return view(call.name, base, base.shape, lambda i: i)


@rule("as_strided.default")
def lower_as_strided(lower: Lower, call: OpCall) -> View:
    """The value itself, where dimensions of one element alone get other strides."""
    base, desc = _base(lower, call), tensor(call.output)
    if not keeps_places(call, tensor(call.inputs[0])):
        raise Refused("strides that reach elements by where they lie in memory")
    return view(call.name, base, base.shape, lambda i: i, desc.strides)


def reshape(
    lower: Lower, name: str, base: Value, shape: tuple[Dim, ...], strides: tuple[Dim, ...]
) -> View:
    """A view with another shape; an index that is not affine is found out when it is asked for."""
    runs = tuple(
        Run(
            tuple(mine),
            contiguous_strides([shape[d] for d in mine]),
            tuple(base.shape[d] for d in theirs),
        )
        for mine, theirs in _matching(base.shape, shape)
    )
    return View(name, base, shape, strides, 0, ReshapeMap(runs))


def _matching(old: tuple[Dim, ...], new: tuple[Dim, ...]) -> list[tuple[list[int], list[int]]]:
    """Runs of new and old dimensions with equal products, in order."""
    if old == new:
        return [([d], [d]) for d in range(len(old))]
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(new) or j < len(old):
        mine, theirs = [], []
        if i < len(new):
            mine.append(i)
            i += 1
        if j < len(old):
            theirs.append(j)
            j += 1
        while (step := _compare([new[d] for d in mine], [old[d] for d in theirs])) != 0:
            if step < 0 and i < len(new):
                mine.append(i)
                i += 1
            elif step > 0 and j < len(old):
                theirs.append(j)
                j += 1
            else:
                return [(list(range(len(new))), list(range(len(old))))]
        groups.append((mine, theirs))
    return groups


def _compare(left: list[Dim], right: list[Dim]) -> int:
    """-1, 0 or 1 as the product of ``left`` is smaller, equal or larger; symbols by division."""
    a, b = product(left), product(right)
    if a == b:
        return 0
    if isinstance(a, int) and isinstance(b, int):
        return -1 if a < b else 1
    if divide(b, a) is not None:
        return -1
    return 1 if divide(a, b) is not None else -1


@rule("split_with_sizes.default", "unbind.int", "split.Tensor")
def lower_split(lower: Lower, call: OpCall) -> Any:
    """Several slices of one value."""
    base = _base(lower, call)
    outputs = call.output if isinstance(call.output, tuple) else ()
    if "unbind" in call.op:
        dim = axis(argument(call, 1, "dim", 0), len(base.shape))
        return tuple(
            _select(f"{call.name}.{n}", base, tensor(d).shape, dim, n)
            for n, d in enumerate(outputs)
        )
    dim = axis(argument(call, 2, "dim", 0), len(base.shape))
    found: list[View] = []
    start: Dim = 0
    for n, desc in enumerate(outputs):
        shape, index = tensor(desc).shape, functools.partial(moved, dim=dim, amount=start)
        found.append(view(f"{call.name}.{n}", base, shape, index))
        start = add(start, shape[dim])
    return tuple(found)
