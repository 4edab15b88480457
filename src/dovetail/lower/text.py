"""Lowered values as text: what each element is, in the order in which values are made."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dovetail.lower.contraction import Contraction
from dovetail.lower.values import (
    Computed,
    LibraryCall,
    Reduction,
    Scanned,
    Value,
    View,
    with_operands,
)


def print_values(order: Iterable[Value | LibraryCall]) -> str:
    """Every value behind these, each after what it reads; library calls where they stand."""
    known: set[Value] = set()
    parts: list[str] = []
    for item in order:
        if isinstance(item, LibraryCall):
            parts.append(f"library {item.call}")
        else:
            parts += [print_value(value) for value in _made(item, known)]
    return "\n".join(parts) + "\n"


def values_by_origin(values: Iterable[Value]) -> dict[str, str]:
    """The values that each call of the graph became, as text, by the call's name."""
    known: set[Value] = set()
    parts: dict[str, list[str]] = {}
    for item in values:
        for value in _made(item, known):
            parts.setdefault(value.origin, []).append(print_value(value))
    return {origin: "\n".join(lines) for origin, lines in parts.items()}


def _made(value: Value, known: set[Value]) -> Iterator[Value]:
    """What is computed for a value: all else is memory."""
    return (v for v in with_operands((value,), known) if isinstance(v, View | Computed))


def print_value(value: Value) -> str:
    """One value: its layout in memory, and how an element is found or computed."""
    sizes, strides = (", ".join(map(str, dims)) for dims in (value.shape, value.strides))
    head = f"{value.name}: {value.dtype}[{sizes}] strides [{strides}]"
    if isinstance(value, View):
        return f"{head} = view of {value.base.name}{value.index or ''}"
    if not isinstance(value, Computed):
        return head
    return f"{head} = {_kind(value)} {value.expression.text([r.name for r in value.reads])}"


def _kind(value: Computed) -> str:
    if isinstance(value, Contraction):
        roles = [f"d{d} {role}" for d, role in enumerate(value.roles)]
        extents = ", ".join(map(str, value.source_shape))
        return f"contraction ({', '.join(roles)}) of [{extents}] in {value.accumulate},"
    if isinstance(value, Reduction):
        over = ", ".join(f"d{d}" for d in value.dims)
        extents = ", ".join(map(str, value.source_shape))
        return f"{value.op} over {over} of [{extents}] in {value.accumulate},"
    if isinstance(value, Scanned):
        return f"scan along d{value.dim},"
    return "pointwise"
