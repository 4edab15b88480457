"""Lowered values: what each element of a tensor is, as data.

A value is memory (``Source``), a reindexing of another value (``View``), an expression
(``Pointwise``), a reduction over dimensions (``Reduction``), every step of one (``Scanned``) or
the result of a library call (``Host``). Nothing is computed here: kernels are built from the
expressions of the values they store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dovetail.ir.affine import Affine, add, product
from dovetail.ir.call import OpCall
from dovetail.ir.dtypes import COMPUTE
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.size import Dim
from dovetail.ir.strides import contiguous_strides
from dovetail.lower.expression import (
    Bodies,
    Body,
    Expression,
    InvalidExpression,
    trace,
    verify_expression,
)
from dovetail.lower.index_map import IndexMap, Indices, ReshapeMap


class Value:
    """A tensor of the graph."""

    def __init__(
        self, name: str, dtype: str, shape: Sequence[Dim], strides: Sequence[Dim] | None = None
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.strides = contiguous_strides(self.shape) if strides is None else tuple(strides)
        self.origin = name  # the call of the graph that it comes from

    @property
    def numel(self) -> Dim:
        """The number of elements."""
        return product(self.shape)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name}: {self.dtype}{list(self.shape)})"


class Source(Value):
    """Memory handed in: an input of the segment."""


class Host(Value):
    """A result of a library call: memory once that call has run."""

    def __init__(self, name: str, desc: Any, call: LibraryCall, path: tuple[int, ...]) -> None:
        super().__init__(name, desc.dtype, desc.shape, desc.strides)
        self.call, self.path = call, path
        call.results.append(self)


class LibraryCall:
    """A call that PyTorch runs, and the values it reads."""

    def __init__(self, call: OpCall, reads: Sequence[Value]) -> None:
        self.call, self.reads = call, tuple(reads)
        self.results: list[Host] = []


class View(Value):
    """Another value's elements under another index.

    ``offset`` and the strides say where the elements lie when the root is memory; a view that is
    only ever memory has no index map.
    """

    def __init__(
        self,
        name: str,
        base: Value,
        shape: Sequence[Dim],
        strides: Sequence[Dim],
        offset: Dim,
        index: IndexMap | ReshapeMap | None,
    ) -> None:
        super().__init__(name, base.dtype, shape, strides)
        self.index, self.start = index, offset
        self.rebase(base)

    def rebase(self, base: Value) -> None:
        """Look at another value of the same shape and strides."""
        self.base = base
        inherited = base.offset if isinstance(base, View) else 0
        self.offset: Dim = add(inherited, self.start)
        self.root: Value = base.root if isinstance(base, View) else base


class Computed(Value):
    """A value with an expression, over indices of the ``domain``, which may be a rule's body."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Dim],
        strides: Sequence[Dim] | None,
        domain: Sequence[Dim],
        body: Body | Bodies | Expression,
        reads: Sequence[Value],
    ) -> None:
        super().__init__(name, dtype, shape, strides)
        self.reads = tuple(reads)
        rank = len(domain)
        self.expression = body if isinstance(body, Expression) else trace(body, rank, self.reads)


class Pointwise(Computed):
    """An expression of other values' elements, which it is given as one or as a rule's body."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Dim],
        strides: Sequence[Dim] | None,
        body: Body | Expression,
        reads: Sequence[Value],
        cost: float = 1.0,
        function: str = "",
        library: str = "",
        cpu_library: str = "",
    ) -> None:
        """``function`` names the operator where its code depends on nothing but the type.

        What that takes is then counted; other costs, in instructions, count what is read as well.
        ``library`` says why one had better compute this, where there is one; ``cpu_library``
        why on a processor alone.
        """
        super().__init__(name, dtype, shape, strides, shape, body, reads)
        self.function, self.library, self.cpu_library = function, library, cpu_library
        self.cost = max(1.0, self.expression.instructions) if function else cost


class Reduction(Computed):
    """An expression reduced over dimensions; its shape is that of the dimensions kept."""

    def __init__(
        self,
        name: str,
        dtype: str,
        op: str,
        source_shape: Sequence[Dim],
        dims: Sequence[int],
        body: Body | Bodies | Expression,
        reads: Sequence[Value],
        accumulate: str,
    ) -> None:
        self.source_shape, self.dims = tuple(source_shape), tuple(sorted(dims))
        self.op, self.accumulate = op, accumulate  # the type it is reduced in
        kept = [d for n, d in enumerate(source_shape) if n not in self.dims]
        super().__init__(name, dtype, kept, None, source_shape, body, reads)


class Scanned(Computed):
    """An expression with reductions along one dimension in it, of which it shows every step."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Dim],
        strides: Sequence[Dim] | None,
        dim: int,
        body: Body | Expression,
        reads: Sequence[Value],
    ) -> None:
        super().__init__(name, dtype, shape, strides, shape, body, reads)
        self.dim = dim


def verify_value(value: Value) -> None:
    """Raise InvalidExpression unless a value's expression is well formed and of its type."""
    if not isinstance(value, Computed):
        return
    expression, results = value.expression, value.expression.results
    verify_expression(expression, value.reads, scans=isinstance(value, Scanned))
    shape = value.source_shape if isinstance(value, Reduction) else value.shape
    if expression.rank != len(shape):
        raise InvalidExpression(f"{value} has {expression.rank} indices for {len(shape)} sizes")
    types = tuple([expression.dtype_of(name) for name in results])
    dtype = COMPUTE[value.dtype]
    if isinstance(value, Reduction):
        whole = REDUCTIONS[value.op].admits(types, dtype) and value.accumulate == dtype
    else:
        whole = types == (dtype,)
    if not whole:
        raise InvalidExpression(f"{value} is computed as {', '.join(types)}")


def operands_of(value: Value) -> tuple[Value, ...]:
    """The values that one is made of."""
    if isinstance(value, View):
        return (value.base,)
    return value.reads if isinstance(value, Computed) else ()


def with_operands(values: Iterable[Value], known: set[Value]) -> Iterator[Value]:
    """Values and all they are made of, each after its operands; those ``known`` are left out."""
    for value in values:
        if value not in known:
            known.add(value)
            yield from with_operands(operands_of(value), known)
            yield value


def root_of(value: Value) -> Value:
    """The value a view looks at, or the value itself."""
    return value.root if isinstance(value, View) else value


def broadcast_index(index: Indices, shape: Sequence[Dim]) -> Indices:
    """The index of a value that is broadcast to the index's rank: size 1 stays at 0."""
    last = index[len(index) - len(shape) :]
    return tuple(Affine() if size == 1 else i for i, size in zip(last, shape, strict=True))
