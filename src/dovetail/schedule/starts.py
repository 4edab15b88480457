"""Kernels that differ in nothing but where their operands start are made one.

A loop that a model writes out step by step reads another row of the same tensor in every step. In
kernel IR that is another offset, so each step would be a kernel of its own, generated for itself.
Here such kernels get windows that start where they begin to read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.kernel import Kernel, Load
from dovetail.lower.values import LibraryCall, View, root_of
from dovetail.schedule.build import Built

Step = Built | LibraryCall


def share_starts(steps: Sequence[Step]) -> list[Step]:
    """The steps with as few different kernels as windows on operands can make of them."""
    moved = {n: _from_starts(step) for n, step in enumerate(steps) if isinstance(step, Built)}
    kinds: dict[Kernel, set[Kernel]] = {}
    for n, new in moved.items():
        kinds.setdefault(_nameless(new), set()).add(_nameless(steps[n]))
    return [
        moved[n] if n in moved and len(kinds[_nameless(moved[n])]) > 1 else step
        for n, step in enumerate(steps)
    ]


def _nameless(step: Step) -> Kernel:
    assert isinstance(step, Built)
    return replace(step.kernel, name="")


def _from_starts(built: Built) -> Built:
    """A kernel whose operands start with the first element that it reads of each."""
    spans = {b.name: _span(built.kernel, b.name) for b in built.kernel.buffers if b.role == "in"}
    found = {name: span for name, span in spans.items() if span is not None and span[0] > 0}
    if not found:
        return built
    buffers = dict(built.buffers)
    for name, (start, end) in found.items():
        root = root_of(buffers[name])
        window = f"{root.name}_from_{start}"
        buffers[name] = View(window, root, (end - start,), (1,), start, None)

    def shifted(i: object) -> object:
        if not isinstance(i, Load) or i.buffer not in found:
            return i
        return replace(i, index=i.index.shift(-found[i.buffer][0]))

    loops = tuple(
        replace(loop, body=tuple(map(shifted, loop.body)))  # type: ignore[arg-type]
        for loop in built.kernel.loops
    )
    return Built(replace(built.kernel, loops=loops), buffers)


def _span(kernel: Kernel, buffer: str) -> tuple[int, int] | None:
    """The elements of an operand that a kernel reads, from and up to; None where nobody knows."""
    extents = {a.name: a.extent for a in kernel.all_axes()}
    low, high = [], []
    for i in kernel.instructions():
        if not isinstance(i, Load) or i.buffer != buffer:
            continue
        if i.mask is not None or i.index.values or not isinstance(i.index.offset, int):
            return None
        first = last = i.index.offset
        for axis, stride in i.index.axes:
            extent = extents[axis]
            if not isinstance(stride, int) or not isinstance(extent, int) or extent < 1:
                return None
            first += min(0, stride * (extent - 1))
            last += max(0, stride * (extent - 1))
        low.append(first)
        high.append(last + 1)
    return (min(low), max(high)) if low else None
