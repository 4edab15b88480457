"""Expressions: what one element of a value is computed from, as data.

A rule's body is called once, when its value is made, with a ``Builder`` and the index d0, d1, …
It becomes nodes in the order in which they are asked for, each once: a node refers to earlier ones
by their position (%0, %1, …) and to the values it reads by theirs among the value's operands.
Two bodies that compute the same have the same expression, whatever values they read. Types are
known here: a read has the type that its operand is computed in.

A ``Read`` under a mask happens only where that and the masks that its reader is under hold:
``Within`` is a mask together with those around it, ``Active`` those around the whole expression.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from dovetail.errors import UnsupportedGraph
from dovetail.ir.affine import Affine
from dovetail.ir.dtypes import COMPUTE, COMPUTED
from dovetail.ir.ops import OPERATIONS, REDUCTIONS
from dovetail.lower.index_map import IndexMap, Indices, in_scope, substitute, variables

if TYPE_CHECKING:
    from dovetail.lower.values import Value


class InvalidExpression(UnsupportedGraph):
    """An expression breaks a rule of its form."""


@dataclass(frozen=True, slots=True)
class Read:
    """The element of an operand at an index, perhaps under a mask (zero where it is false)."""

    operand: int
    index: IndexMap
    dtype: str
    mask: str | None = None

    @property
    def uses(self) -> tuple[str, ...]:
        """The nodes it refers to."""
        gathered = tuple(name for place in self.index.results for name, _ in place.values)
        return gathered if self.mask is None else (*gathered, self.mask)

    def __str__(self) -> str:
        under = "" if self.mask is None else f" where {self.mask}"
        return f"read {{{self.operand}}}{self.index}{under}"


@dataclass(frozen=True, slots=True)
class Literal:
    """A number; compared by what it prints, for 0.0 is not -0.0 here and NaN is itself."""

    text: str
    dtype: str
    value: float | int | bool = field(compare=False)
    uses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True)
class Place:
    """An index expression as a number."""

    index: Affine
    dtype: str = "int64"

    @property
    def uses(self) -> tuple[str, ...]:
        """The nodes it refers to."""
        return tuple(name for name, _ in self.index.values)

    def __str__(self) -> str:
        return f"index {self.index}"


@dataclass(frozen=True, slots=True)
class Compute:
    """An operation of kernel IR."""

    op: str
    dtype: str
    uses: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.op} {', '.join(self.uses)}"


@dataclass(frozen=True, slots=True)
class ScanStep:
    """The reduction of all elements up to this one, along the dimension of a scan."""

    op: str
    dtype: str
    uses: tuple[str, ...]

    def __str__(self) -> str:
        return f"scan {self.op} {', '.join(self.uses)}"


@dataclass(frozen=True, slots=True)
class Within:
    """A mask and those around it: another of these, or what the expression is under."""

    mask: str
    outer: str | None
    dtype: str = "bool"

    @property
    def uses(self) -> tuple[str, ...]:
        """The nodes it refers to."""
        return (self.mask,) if self.outer is None else (self.outer, self.mask)

    def __str__(self) -> str:
        return f"within {', '.join(self.uses)}"


@dataclass(frozen=True, slots=True)
class Active:
    """The mask that the expression is under; true where there is none."""

    dtype: str = "bool"
    uses: tuple[str, ...] = ()

    def __str__(self) -> str:
        return "active"


Node = Read | Literal | Place | Compute | ScanStep | Within | Active


@dataclass(frozen=True, slots=True)
class Expression:
    """Nodes in an order in which they can be computed, over an index of ``rank`` variables."""

    rank: int
    nodes: tuple[Node, ...]
    results: tuple[str, ...]
    reads: tuple[Read, ...] = field(init=False, repr=False, compare=False)
    named: tuple[tuple[str, Node], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        reads = tuple([node for node in self.nodes if type(node) is Read])
        object.__setattr__(self, "reads", reads)
        named = tuple([(f"%{n}", node) for n, node in enumerate(self.nodes)])
        object.__setattr__(self, "named", named)

    def dtype_of(self, name: str) -> str:
        """The type of a node."""
        return self.nodes[int(name[1:])].dtype

    @property
    def instructions(self) -> int:
        """What computing an element takes, by the table of operations; conversions are free."""
        ops = [OPERATIONS[node.op] for node in self.nodes if type(node) is Compute]
        return sum(op.instructions for op in ops if op.rule not in ("cast", "single"))

    def needed(self) -> Expression:
        """This up to the last of its results, which must not need what comes after it."""
        last = max(int(name[1:]) for name in self.results)
        return Expression(self.rank, self.nodes[: last + 1], self.results)

    def text(self, operands: Sequence[str]) -> str:
        """A line a node, with these names for the operands."""
        lines = [f"({', '.join(f'd{n}' for n in range(self.rank))})"]
        for name, node in self.named:
            shown = str(node)
            if type(node) is Read:
                shown = shown.replace(f"{{{node.operand}}}", operands[node.operand], 1)
            lines.append(f"  {name}: {node.dtype} = {shown}")
        return "\n".join([*lines, f"  return {', '.join(self.results)}"])

    def __str__(self) -> str:
        count = max((read.operand for read in self.reads), default=-1) + 1
        return self.text([f"${n}" for n in range(count)])


class Builder:
    """What a rule's body may ask for; nodes go by name."""

    def __init__(self, operands: Sequence[Value]) -> None:
        self.operands = {value: n for n, value in reversed(list(enumerate(operands)))}
        self.nodes: list[Node] = []
        self.types: dict[str, str] = {}
        self._known: dict[object, str] = {}
        self.mask: str | None = None

    def read(self, value: Value, index: Indices) -> str:
        """The element of an operand at an index."""
        key = value, index, self.mask
        if key in self._known:
            return self._known[key]
        operand = self.operands.get(value)
        if operand is None:
            raise InvalidExpression(f"{value} is read, but is no operand")
        return self._add(key, Read(operand, IndexMap(index), COMPUTE[value.dtype], self.mask))

    def apply(self, op: str, dtype: str, *args: str) -> str:
        """An operation's result."""
        key = op, OPERATIONS[op].result((dtype,)), args
        return self._known.get(key) or self._add(key, Compute(*key))

    def joined(self, op: str, dtype: str, values: Iterable[str]) -> str:
        """Values as one, by an operation of two; each is asked for when its turn comes."""
        return functools.reduce(lambda total, each: self.apply(op, dtype, total, each), values)

    def scan(self, op: str, dtype: str, value: str) -> str:
        """The step of a scan; only a scanned value's own body may ask for one."""
        key = "scan", op, dtype, value
        return self._known.get(key) or self._add(key, ScanStep(op, dtype, (value,)))

    def const(self, value: float | int | bool, dtype: str) -> str:
        """A number."""
        value = _as(value, dtype)
        key = repr(value), dtype
        return self._known.get(key) or self._add(key, Literal(*key, value))

    def position(self, index: Affine) -> str:
        """An index expression as an int64."""
        if not index.axes and not index.values and isinstance(index.offset, int):
            return self.const(index.offset, "int64")
        return self._known.get(index) or self._add(index, Place(index))

    def cast(self, name: str, dtype: str) -> str:
        """A value in another computing type."""
        return name if self.types[name] == dtype else self.apply("cast", dtype, name)

    def dtype_of(self, name: str) -> str:
        """The computing type of a value."""
        return self.types[name]

    def mask_or_true(self) -> str:
        """The mask that reads are under at present."""
        return self.mask or self._known.get("active") or self._add("active", Active())

    def masked(self, mask: str, body: Callable[[], str]) -> str:
        """``body``, whose reads happen only where ``mask`` and every mask around it hold."""
        before = self.mask
        self.mask = self.within(mask)
        try:
            return body()
        finally:
            self.mask = before

    def within(self, mask: str) -> str:
        """A mask, and those that reads are under at present."""
        key = "within", mask, self.mask
        return self._known.get(key) or self._add(key, Within(mask, self.mask))

    def _add(self, key: object, node: Node) -> str:
        name = f"%{len(self.nodes)}"
        self.nodes.append(node)
        self.types[name] = node.dtype
        self._known[key] = name
        return name


class _Emitter(Protocol):
    """What an expression is computed with: a ``Builder``, or what builds a kernel."""

    mask: str | None  # that reads are under

    def read(self, value: Value, index: Indices, /) -> str: ...
    def apply(self, op: str, dtype: str, /, *args: str) -> str: ...
    def scan(self, op: str, dtype: str, value: str, /) -> str: ...
    def const(self, value: float | int | bool, dtype: str, /) -> str: ...
    def position(self, index: Affine, /) -> str: ...
    def within(self, mask: str, /) -> str: ...
    def mask_or_true(self) -> str: ...


def inline(
    emitter: _Emitter, expression: Expression, operands: Sequence[Value], index: Indices
) -> tuple[str, ...]:
    """The results of an expression at an index."""
    around, names = emitter.mask, dict[str, str]()
    for name, node in expression.named:
        if isinstance(node, Compute):
            found = emitter.apply(node.op, node.dtype, *[names[n] for n in node.uses])
        elif isinstance(node, Read):
            emitter.mask = around if node.mask is None else names[node.mask]
            found = emitter.read(operands[node.operand], node.index.at(index, None, names))
        elif isinstance(node, Literal):
            found = emitter.const(node.value, node.dtype)
        elif isinstance(node, Place):
            found = emitter.position(substitute(node.index, index, names))
        elif isinstance(node, Within):
            emitter.mask = around if node.outer is None else names[node.outer]
            found = emitter.within(names[node.mask])
        elif isinstance(node, Active):
            emitter.mask = around
            found = emitter.mask_or_true()
        else:
            found = emitter.scan(node.op, node.dtype, names[node.uses[0]])
        names[name] = found
    emitter.mask = around
    return tuple([names[n] for n in expression.results])


Body = Callable[[Builder, Indices], str]
Bodies = Callable[[Builder, Indices], tuple[str, ...]]  # of a reduction: argmax has two operands


def trace(body: Body | Bodies, rank: int, operands: Sequence[Value]) -> Expression:
    """The expression that a body computes at an index of this rank."""
    builder = Builder(operands)
    found = body(builder, variables(rank))
    results = (found,) if isinstance(found, str) else found
    return Expression(rank, tuple(builder.nodes), results)


def _as(value: float | int | bool, dtype: str) -> float | int | bool:
    """A number as its type writes it."""
    if dtype == "bool":
        return bool(value)
    return float(value) if dtype.startswith("float") else int(value)


def verify_expression(
    expression: Expression, operands: Sequence[Value], *, scans: bool = False
) -> None:
    """Raise InvalidExpression unless it is well formed over ``operands``.

    Only an expression of a scanned value may have steps of scans.
    """
    types: dict[str, str] = {}
    for name, node in expression.named:
        if any(used not in types for used in node.uses):
            raise InvalidExpression(f"{name} uses what is not there yet: {node}")
        given = tuple([types[used] for used in node.uses])
        if not _is_valid(expression, node, given, operands, scans=scans):
            raise InvalidExpression(f"{name}: {node.dtype} = {node} of {given}")
        types[name] = node.dtype
    if len(set(expression.nodes)) < len(types):
        raise InvalidExpression("a node twice")
    if not set(expression.results) <= set(types):
        raise InvalidExpression("a result that is no node")


def _is_valid(
    expression: Expression,
    node: Node,
    given: tuple[str, ...],
    operands: Sequence[Value],
    *,
    scans: bool,
) -> bool:
    if isinstance(node, Compute):
        return node.op in OPERATIONS and OPERATIONS[node.op].admits(given, node.dtype)
    if isinstance(node, Read):
        return _is_valid_read(expression, node, given, operands)
    if isinstance(node, Place):
        return set(given) <= {"int64"} and in_scope((node.index,), expression.rank)
    if isinstance(node, ScanStep):
        return scans and node.op in REDUCTIONS and given == (node.dtype,)
    if isinstance(node, Within):
        return set(given) == {"bool"} and _is_mask(expression, node.outer)
    return node.dtype in COMPUTED


def _is_valid_read(
    expression: Expression, node: Read, given: tuple[str, ...], operands: Sequence[Value]
) -> bool:
    if not 0 <= node.operand < len(operands):
        return False
    operand, places = operands[node.operand], node.index.results
    gathered = given if node.mask is None else given[:-1]
    return (
        len(places) == len(operand.shape)
        and node.dtype == COMPUTE[operand.dtype]
        and set(gathered) <= {"int64"}
        and in_scope(places, expression.rank)
        and _is_mask(expression, node.mask)
    )


def _is_mask(expression: Expression, name: str | None) -> bool:
    return name is None or isinstance(expression.nodes[int(name[1:])], Within)
