"""Lowered values: each knows how to compute the element at an index.

A value is memory (``Source``), a reindexing of another value (``View``), an expression
(``Pointwise``), a fold over dimensions (``Reduction``), every step of one (``Scanned``) or the
result of a library call (``Host``). Nothing is computed here: a kernel's builder asks for the
elements it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from dovetail.ir.affine import Affine, add, mul, product
from dovetail.ir.call import OpCall
from dovetail.ir.size import Dim

Indices = tuple[Affine, ...]


class Builder(Protocol):
    """What an element's rule may ask of the kernel being built; values go by name."""

    def read(self, value: Value, index: Indices) -> str:
        """The element of another value at an index."""

    def apply(self, op: str, dtype: str, *args: str) -> str:
        """An operation's result."""

    def scan(self, op: str, dtype: str, value: str) -> str:
        """The step of a scan; only a scanned value's own rule may ask, at its own index."""

    def const(self, value: float | int | bool, dtype: str) -> str:
        """A number."""

    def position(self, index: Affine) -> str:
        """An index expression as an int64."""

    def cast(self, name: str, dtype: str) -> str:
        """A value in another computing type."""

    def dtype_of(self, name: str) -> str:
        """The computing type of a value."""

    def mask_or_true(self) -> str:
        """The mask that loads are under at present."""

    def masked(self, mask: str, body: Callable[[], str]) -> str:
        """``body``, whose loads happen only where ``mask`` holds."""


Body = Callable[[Builder, Indices], str]


class Value:
    """A tensor of the graph."""

    def __init__(
        self, name: str, dtype: str, shape: Sequence[Dim], strides: Sequence[Dim] | None = None
    ) -> None:
        self.name, self.dtype, self.shape = name, dtype, tuple(shape)
        self.strides = contiguous_strides(self.shape) if strides is None else tuple(strides)

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

    ``offset`` and the strides say where the elements lie when the root is memory.
    """

    def __init__(
        self,
        name: str,
        base: Value,
        shape: Sequence[Dim],
        strides: Sequence[Dim],
        offset: Dim,
        index: Callable[[Indices, Any], Indices],
    ) -> None:
        super().__init__(name, base.dtype, shape, strides)
        self.base, self.index = base, index
        inherited = base.offset if isinstance(base, View) else 0
        self.offset: Dim = add(inherited, offset)
        self.root: Value = base.root if isinstance(base, View) else base


class Pointwise(Value):
    """An expression of other values' elements."""

    def __init__(
        self,
        name: str,
        dtype: str,
        shape: Sequence[Dim],
        strides: Sequence[Dim] | None,
        body: Body,
        reads: Sequence[Value],
        cost: float = 1.0,
        function: str = "",
    ) -> None:
        """``function`` names the operator where its code depends on nothing but the type."""
        super().__init__(name, dtype, shape, strides)
        self.body, self.reads, self.cost = body, tuple(reads), cost
        self.function = function


class Reduction(Value):
    """A fold over dimensions of an expression; its shape is that of the dimensions kept."""

    def __init__(
        self,
        name: str,
        dtype: str,
        op: str,
        source_shape: Sequence[Dim],
        dims: Sequence[int],
        body: Callable[[Builder, Indices], tuple[str, ...]],
        reads: Sequence[Value],
        accumulate: str,
    ) -> None:
        self.source_shape, self.dims = tuple(source_shape), tuple(sorted(dims))
        self.op, self.body, self.reads = op, body, tuple(reads)
        self.accumulate = accumulate  # the type it is folded in
        kept = [d for n, d in enumerate(source_shape) if n not in self.dims]
        super().__init__(name, dtype, kept)


class Scanned(Value):
    """An expression with folds along one dimension in it, of which it shows every step."""

    def __init__(
        self,
        name: str,
        desc: Any,
        dim: int,
        body: Body,
        reads: Sequence[Value],
    ) -> None:
        super().__init__(name, desc.dtype, desc.shape, desc.strides)
        self.dim, self.body, self.reads = dim, body, tuple(reads)


def root_of(value: Value) -> Value:
    """The value a view looks at, or the value itself."""
    return value.root if isinstance(value, View) else value


def contiguous_strides(shape: Sequence[Dim]) -> tuple[Dim, ...]:
    """Row-major strides."""
    strides: list[Dim] = []
    step: Dim = 1
    for size in reversed(shape):
        strides.append(step)
        step = mul(step, size) if size != 0 else step
    return tuple(reversed(strides))


def broadcast_index(index: Indices, shape: Sequence[Dim]) -> Indices:
    """The index of a value that is broadcast to the index's rank: size 1 stays at 0."""
    last = index[len(index) - len(shape) :]
    return tuple(Affine() if size == 1 else i for i, size in zip(last, shape, strict=True))
