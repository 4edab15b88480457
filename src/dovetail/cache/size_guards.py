"""Guards on symbolic sizes that a compilation added, as text over the symbols of a graph's key.

A guard is relations of size expressions, ``s0 % 2 == 0`` or ``s0 < 8 or s1 == s0``. Whoever finds
the graph checks that its sizes fit, and adds the guards to those that PyTorch checks at each call.
"""

from __future__ import annotations

import json
import operator
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import sympy
import torch

from dovetail.cache.symbols import Symbols
from dovetail.capture._torch.symbols import GuardCount
from dovetail.capture.sizes import from_sympy
from dovetail.errors import InvalidCompiledGraph, SizeError
from dovetail.ir.size import Dim, parse_size

MAGIC = b"dvtsizes"
_RELATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<=": operator.le,
    ">=": operator.ge,
    "<": operator.lt,
    ">": operator.gt,
}
_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "max": torch.sym_max,
    "min": torch.sym_min,
}


class Relation(NamedTuple):
    """A comparison of two size expressions."""

    left: Dim
    sign: str
    right: Dim

    def __str__(self) -> str:
        return f"{self.left} {self.sign} {self.right}"

    def of(self, sizes: Mapping[str, Any]) -> Any:
        """Whether it holds for these sizes: a bool, or a SymBool if they are SymInts."""
        return _RELATIONS[self.sign](_value(self.left, sizes), _value(self.right, sizes))


class OtherSizes(Exception):
    """A graph that is stored was compiled for other sizes than those of the example call."""

    def __init__(self, guard: str, sizes: Mapping[str, int]) -> None:
        told = ", ".join(f"{name} = {size}" for name, size in sizes.items() if name in guard)
        super().__init__(f"what is stored is for {guard}, not for {told}")


class AddedGuards(NamedTuple):
    """The guards that a compilation added; or why they cannot be written."""

    texts: tuple[str, ...] = ()
    problem: str = ""


def added_guards(symbols: Symbols, before: GuardCount) -> AddedGuards:
    """What was added to the symbols of a key since it was made."""
    found: dict[str, None] = {}
    try:
        for expr in before.added():
            found |= dict.fromkeys(_texts(symbols.renamed(expr)))
    except SizeError as error:
        return AddedGuards(problem=str(error))
    return AddedGuards(tuple(found))


def check_guards(texts: Sequence[str], symbols: Symbols) -> None:
    """OtherSizes where the sizes of the example call do not fit; InvalidCompiledGraph for no guard.

    Nothing is added: the graph may still not load.
    """
    sizes = symbols.hints()
    for text in texts:
        try:
            holds = any(relation.of(sizes) for relation in parse_guard(text))
        except (SizeError, ZeroDivisionError) as error:
            raise InvalidCompiledGraph(f"a guard on other symbols: {error}") from None
        if not holds:
            raise OtherSizes(text, sizes)


def add_guards(texts: Sequence[str], symbols: Symbols) -> None:
    """Have PyTorch check them before each call from now on."""
    sizes = symbols.values()
    for text in texts:
        alternatives = [relation.of(sizes) for relation in parse_guard(text)]
        either = alternatives[0]
        for each in alternatives[1:]:
            either = either | each
        if not either:  # asking is what adds it
            raise OtherSizes(text, symbols.hints())


def parse_guard(text: str) -> list[Relation]:
    """The relations of a guard, of which one has to hold."""
    return [_parse_relation(each) for each in text.split(" or ")]


def _parse_relation(text: str) -> Relation:
    for sign in _RELATIONS:  # those of two characters first
        left, found, right = text.partition(f" {sign} ")
        if found:
            return Relation(parse_size(left), sign, parse_size(right))
    raise SizeError(f"{text!r} is no relation of sizes")


def _texts(guard: Any) -> Iterator[str]:
    """A guard of PyTorch's as guards; SizeError for what has no text."""
    if isinstance(guard, sympy.And):
        for each in guard.args:
            yield from _texts(each)
    elif isinstance(guard, sympy.Or):
        yield " or ".join(sorted(str(_relation(each)) for each in guard.args))
    elif guard is not sympy.true:
        yield str(_relation(guard))


def _relation(guard: Any) -> Relation:
    if not isinstance(guard, sympy.Rel) or guard.rel_op not in _RELATIONS:
        raise SizeError(f"the guard {guard} is no relation of sizes")
    return Relation(from_sympy(guard.lhs), guard.rel_op, from_sympy(guard.rhs))


def _value(dim: Dim, sizes: Mapping[str, Any]) -> Any:
    if isinstance(dim, int):
        return dim
    if dim.is_symbol:
        if dim.args[0] not in sizes:
            raise SizeError(f"no value for the symbol {dim.args[0]!r}")
        return sizes[dim.args[0]]
    left, right = (_value(arg, sizes) for arg in dim.args)
    return _OPERATIONS[dim.op](left, right)


# ---- in entries ----


def with_guards(texts: Iterable[str], payload: bytes) -> bytes:
    """A payload under guards, as bytes; without any, it alone."""
    head = json.dumps([*texts]).encode()
    return payload if head == b"[]" else MAGIC + struct.pack("<I", len(head)) + head + payload


def without_guards(data: bytes) -> tuple[list[str], bytes]:
    """The guards and the payload that ``with_guards`` wrote; InvalidCompiledGraph for no such."""
    if not data.startswith(MAGIC):
        return [], data
    try:
        (length,) = struct.unpack_from("<I", data, len(MAGIC))
        start = len(MAGIC) + 4
        return guard_texts(json.loads(data[start : start + length])), data[start + length :]
    except (struct.error, ValueError, RecursionError) as error:
        raise InvalidCompiledGraph(f"guards that are none: {error!r}") from None


def guard_texts(told: Any) -> list[str]:
    """What JSON says of guards: a list of texts; InvalidCompiledGraph for anything else."""
    if not isinstance(told, list) or not all(isinstance(each, str) for each in told):
        raise InvalidCompiledGraph("guards that are no list of texts")
    try:
        for each in told:
            parse_guard(each)
    except SizeError as error:
        raise InvalidCompiledGraph(str(error)) from None
    return told
