"""Every stage of the compiler's middle for one segment, as text: from calls to assembly.

Nothing here decides anything: it runs the stages that compiling runs, for any target, and prints
what each hands to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dovetail
from dovetail.backend import Blob
from dovetail.backends.cpu.backend import CpuBackend
from dovetail.backends.cpu.code import schedule_kernel
from dovetail.ir.call import tensors
from dovetail.ir.encode import segment_to_bytes
from dovetail.ir.kernel import Kernel
from dovetail.ir.kernel_text import print_kernel
from dovetail.ir.layout import Layout
from dovetail.ir.strides import is_row_major
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.calls import lower_segment
from dovetail.lower.text import print_values
from dovetail.lower.values import LibraryCall
from dovetail.place.summary import is_reformat
from dovetail.schedule.build import Built
from dovetail.schedule.plan import make_plan, verdict
from dovetail.schedule.text import print_schedule

if TYPE_CHECKING:
    from dovetail.ir.segment import Segment
    from dovetail.ir.target import Target


@dataclass(frozen=True)
class StageText:
    """What a stage hands on; ``language`` is that of the text, for those who colour it."""

    name: str
    text: str
    language: str = "text"


def cpu_segments(
    model: Any, args: Sequence[Any], target: Target | None = None, **export: Any
) -> list[Segment]:
    """The segments that the ``cpu`` backend is given of an exported model; None: for this machine.

    They are laid out and packed for the target, but nothing is run on it.
    """
    found: list[Segment] = []

    class Recorder(CpuBackend):
        def target(self) -> Target:
            return super().target() if target is None else target

        def compile(self, segment: Segment) -> Blob:
            found.append(segment)
            return Blob(segment_to_bytes(segment))  # runs call by call, if it runs

    options = {"cache": False, **export.pop("options", {})}
    dovetail.export(model, args, backend=Recorder, options=options, **export)
    return found


def kernels_of(segment: Segment, target: Target) -> list[Kernel]:
    """The kernels that a segment becomes, in order."""
    return [step.kernel for step in make_plan(segment, target).steps if isinstance(step, Built)]


def middle(segment: Segment, target: Target) -> Iterator[StageText]:
    """The stages before code generation: calls, layouts, values, kernels."""
    yield StageText("graph", f"{segment}\n")
    yield from layouts(segment)
    _, order = lower_segment(segment, lambda found, _: found)  # products too, whoever computes them
    yield StageText("lower", print_values(order))
    steps = make_plan(segment, target).steps
    yield StageText("fuse", "\n".join(_step(step, target) for step in steps))


def _step(step: Built | LibraryCall, target: Target) -> str:
    """A kernel, or a library's call and why it is one."""
    if isinstance(step, Built):
        return print_kernel(step.kernel)
    return f"{step.call}  # {verdict(step.call, target)}\n"


def layouts(segment: Segment) -> Iterator[StageText]:
    """The tensors that do not lie in row-major order, if any, and calls that change a layout."""
    lines = []
    given = [(i.name, i.desc) for i in segment.inputs if isinstance(i.desc, TensorDesc)]
    made = [
        (".".join([call.name, *map(str, path)]), desc)
        for call in segment.calls
        for path, desc in tensors(call.output)
    ]
    changes = {call.name for call in segment.calls if is_reformat(call)}
    for name, desc in (*given, *made):
        if name in changes or desc.layout is not None or not is_row_major(desc):
            word = "reformat " if name in changes else ""
            layout = desc.layout or Layout.strided(desc.shape, desc.strides)
            lines.append(f"{word}{name}: {desc.dtype} {layout}\n")
    if lines:
        yield StageText("layout", "".join(lines))


def back(kernel: Kernel, target: Target) -> Iterator[StageText]:
    """What becomes of a kernel on a target: schedule, LLVM's text, assembly."""
    from dovetail.codegen.llvm.module import module_text
    from dovetail.codegen.llvm.target import assembly

    kernel, schedule = schedule_kernel(kernel, target)
    yield StageText("schedule", print_schedule(schedule))
    text = module_text({kernel.name: (kernel, schedule)}, target)
    yield StageText("codegen", text, "llvm")
    yield StageText("assembly", assembly(text, target), "asm")
