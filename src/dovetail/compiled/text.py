"""A compiled graph as text, for people and for golden files."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from dovetail.compiled.graph import CompiledGraph, CompiledPart, CompiledSegment
from dovetail.ir.call import format_arg, format_desc
from dovetail.ir.segment import ValueKey


def print_graph(graph: CompiledGraph) -> str:
    """The whole of it but the bytes of code and constants, which show as sizes and digests."""
    names = ", ".join(name for name, _ in graph.backends)
    lines = [f"compiled {graph.kind} for {names}".rstrip()]
    for title, part in graph.parts():
        frozen = f" of inputs {list(graph.frozen)}" if part is graph.once else ""
        lines += [f"part {title!r}{frozen} {{", *(f"  {line}" for line in _part(part)), "}"]
    return "\n".join(lines)


def _part(part: CompiledPart) -> Iterator[str]:
    if part.captured is not None:
        yield f"PyTorch, as captured: {part.why_captured}"
        return
    for given in part.inputs:
        yield f"input %{given.name}: {format_desc(given.desc)} {given.kind}"
    for name in part.constants:
        yield f"constant %{name}"
    for symbol, (position, dim) in part.symbols.items():
        name = part.inputs[position].name
        yield f"symbol {symbol} = %{name}" + ("" if dim is None else f".shape[{dim}]")
    for each in part.segments:
        yield from _segment(each)
    yield f"return {', '.join(map(format_arg, part.outputs))}"


def _segment(each: CompiledSegment) -> Iterator[str]:
    digest = hashlib.sha256(each.blob.data).hexdigest()[:16]
    code = f"{len(each.blob.data)} bytes {digest}" if each.blob.is_portable else "in this process"
    yield f"{_keys(each.results)} = {each.backend}({_keys(each.sources)})  # {code}"
    for backend, reason in each.failures:
        yield f"  # {backend} failed: {reason}"
    yield from (f"  {line}" for line in str(each.segment).splitlines())


def _keys(keys: Sequence[ValueKey]) -> str:
    return ", ".join(f"%{name}" + "".join(f"[{i}]" for i in path) for name, path in keys)
