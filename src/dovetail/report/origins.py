"""Which calls of a segment each instruction of its program computes, and from what expressions.

The plan is made again, which takes what planning takes: only ``explain`` asks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from dovetail.ir.program import Copy, HostCall, Instruction, KernelCall
from dovetail.lower.calls import lower_segment
from dovetail.lower.text import values_by_origin
from dovetail.lower.values import LibraryCall, Value, operands_of
from dovetail.schedule.adapt import adapter
from dovetail.schedule.build import Built
from dovetail.schedule.plan import make_plan
from dovetail.schedule.program import Kernels

if TYPE_CHECKING:
    from dovetail.ir.kernel import Kernel
    from dovetail.ir.program import Program
    from dovetail.ir.segment import Segment
    from dovetail.ir.target import Target


@dataclass(frozen=True)
class Origins:
    """What a plan tells of a segment's calls."""

    kernels: Mapping[str, Kernel] = field(default_factory=dict)  # generated ones, by name
    calls: Mapping[int, list[str]] = field(default_factory=dict)  # by the instruction's number
    expressions: Mapping[str, str] = field(default_factory=dict)  # by the call's name


def trace_origins(segment: Segment, program: Program, target: Target) -> Origins:
    """Plan the segment once more and match its steps, in order, with the program that runs."""
    kernels = Kernels()
    steps: list[tuple[str, list[str]]] = []
    for step in make_plan(segment, target).steps:
        if isinstance(step, Built):
            steps.append((f"{kernels.add(step.kernel)}@1", list(dict.fromkeys(_computed(step)))))
        else:
            steps.append((step.call.op, [step.call.name]))
    _, order = lower_segment(segment, adapter(target))
    values = [item for item in order if not isinstance(item, LibraryCall)]
    return Origins(kernels.by_name, _match(steps, program), values_by_origin(values))


def _match(steps: list[tuple[str, list[str]]], program: Program) -> dict[int, list[str]]:
    """Steps and instructions have the same order; a step that only shows memory has none."""
    found: dict[int, list[str]] = {}
    at = 0
    for number, instruction in enumerate(program.instructions):
        name = _called(instruction)
        place = next((n for n in range(at, len(steps)) if steps[n][0] == name), None)
        if place is not None:
            found[number], at = steps[place][1], place + 1
    return found


def _called(instruction: Instruction) -> str:
    if isinstance(instruction, KernelCall):
        return instruction.kernel
    if isinstance(instruction, Copy):  # what a graph writes to its inputs
        return "aten.copy_.default"
    return instruction.op if isinstance(instruction, HostCall) else ""


def _computed(step: Built) -> Iterator[str]:
    """The calls behind all values that a kernel computes, not those that it reads from memory."""
    roles = {buffer.name: buffer.role for buffer in step.kernel.buffers}
    given = {value for name, value in step.buffers.items() if roles.get(name) == "in"}
    stack = [value for name, value in step.buffers.items() if roles.get(name) != "in"]
    seen: set[Value] = set()
    while stack:
        value = stack.pop()
        if value in seen or value in given:
            continue
        seen.add(value)
        below = operands_of(value)
        if below:  # else memory
            yield value.origin
        stack += below
