"""A segment as launches of kernels: which memory each reads and writes, and for how long."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.codegen.source import has_checks, points
from dovetail.ir import Arg, OpCall, Ref, Segment
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.size import Dim
from dovetail.ir.target import TARGETS
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.values import LibraryCall, Source, Value, View, root_of
from dovetail.lower.whole import stays_whole
from dovetail.schedule.plan import Unschedulable, make_plan, verdict

__all__ = ["RenderedLaunch", "RenderedProgram", "refusal"]

TARGET = TARGETS["opencl"]


def refusal(call: OpCall) -> str:
    """Why a call cannot become kernels; empty when it can."""
    if call.binds:
        return "it defines a size that depends on data"
    if any(True for _ in call.subgraphs()):
        return "it has subgraphs"
    reason = verdict(call, TARGET)
    if reason == "no rule" and stays_whole(call):
        return "a library's operation, which is not rendered"
    return "no lowering rule" if reason == "no rule" else reason


@dataclass(frozen=True)
class RenderedLaunch:
    """A kernel and the values behind its buffers."""

    kernel: Kernel
    buffers: tuple[Value, ...]
    sizes: tuple[Dim, ...]
    points: Dim
    checks: bool


class RenderedProgram:
    """Launches in order, and where inputs come from and outputs lie."""

    def __init__(self, segment: Segment) -> None:
        plan = make_plan(segment, TARGET)
        self.segment = segment
        self.source = ""
        self.functions: Sequence[Any] = ()
        self.launches: list[RenderedLaunch] = []
        for step in plan.steps:
            if isinstance(step, LibraryCall):
                raise Unschedulable(f"{step.call.op} would have to be called from kernels")
            kernel = step.kernel
            buffers = tuple(step.buffers[b.name] for b in kernel.buffers)
            sizes = call_sizes(kernel)
            self.launches.append(
                RenderedLaunch(kernel, buffers, sizes, points(kernel), has_checks(kernel))
            )
        self.values = plan.values
        self.checks = any(launch.checks for launch in self.launches)
        self.inputs: dict[Source, int] = {}  # those that kernels read, by position
        used = {value for launch in self.launches for value in launch.buffers}
        for position, given in enumerate(segment.inputs):
            value = plan.values.get((given.name, ()))
            if isinstance(value, Source) and value in used:
                self.inputs[value] = position
        self.outputs = [self._output(out) for out in segment.outputs]
        self.lives = self._lives()

    def _output(self, out: Arg) -> Arg | Value:
        """A value, or a size or number as it stands."""
        if isinstance(out, Ref) and (out.name, out.path) in self.values:
            return self.values[out.name, out.path]
        return out

    def fetched(self) -> list[Value]:
        """What is copied back, each once, whoever looks at it."""
        roots = [root_of(out) for out in self.outputs if isinstance(out, Value)]
        return list(dict.fromkeys(root for root in roots if not isinstance(root, Source)))

    def _lives(self) -> dict[Value, tuple[int, int]]:
        """The first and the last launch that each value in memory is needed for."""
        lives: dict[Value, tuple[int, int]] = dict.fromkeys(self.inputs, (-1, -1))
        for number, launch in enumerate(self.launches):
            for value in launch.buffers:
                lives[value] = (lives.get(value, (number, number))[0], number)
        for value in self.fetched():
            if value in lives:
                lives[value] = (lives[value][0], len(self.launches))
        return lives

    def symbolic_inputs(self) -> list[int]:
        """Positions of tensor inputs whose layout differs from call to call."""
        found = []
        for position, given in enumerate(self.segment.inputs):
            desc = given.desc
            if isinstance(desc, TensorDesc) and not all(
                isinstance(d, int) for d in (*desc.shape, *desc.strides)
            ):
                found.append(position)
        return found


def placed(value: Value) -> tuple[Value, Dim]:
    """The memory a value lies in, and where in it, in elements."""
    return (value.root, value.offset) if isinstance(value, View) else (value, 0)
