"""A Program as the report has it: instructions by kind, counted, and its memory over time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from dovetail.errors import SizeError
from dovetail.ir.call import OpCall
from dovetail.ir.kernel import Kernel
from dovetail.ir.memory import lifetimes, plan_lifetimes
from dovetail.ir.program import (
    Copy,
    HostCall,
    Instruction,
    KernelCall,
    Launch,
    Program,
    reads,
    writes,
)
from dovetail.ir.program_text import print_instruction, print_program
from dovetail.ir.segment import Segment
from dovetail.ir.size import evaluate
from dovetail.ir.tensor import TensorDesc
from dovetail.ir.work import call_operations, kernel_work, tensor_bytes
from dovetail.page.roofline import roofline
from dovetail.schedule.program import PREFIX

# What an instruction is: a generated kernel; a call of a library's kernel (PyTorch's for products,
# convolutions and attention, the C runtime's own for the rest); any other operator of PyTorch; a
# copy; a kernel or compiled segment of a device.
KINDS = ("kernel", "library", "host", "copy", "device")
_LIBRARY = (
    "addmm",
    "addmv",
    "baddbmm",
    "bmm",
    "convolution",
    "dot",
    "linear",
    "matmul",
    "mm",
    "mv",
)
_ATTENTION = "scaled_dot_product"
# What is said of an instruction once it was measured; None until then.
_MEASURED = (
    "bytes",
    "operations",
    "measured_seconds",
    "last_started_seconds",
    "last_seconds",
    "roofline",
)


def operator_kind(op: str) -> str:
    """Whether a call of PyTorch is one of a library's kernel ("library") or not ("host")."""
    name = op.removeprefix("aten.").partition(".")[0].removesuffix("_backward")
    return "library" if name in _LIBRARY or _ATTENTION in name else "host"


def count_kinds(kinds: Iterable[str]) -> dict[str, int]:
    """How many of each kind."""
    counts = dict.fromkeys(KINDS, 0)
    for kind in kinds:
        counts[kind] += 1
    return counts


class Profile(NamedTuple):
    """What the C runtime measured, by an instruction's number, in nanoseconds; 0: it did not."""

    least: Sequence[int] = ()
    last: Sequence[tuple[int, int]] = ()  # when the last run began it, and how long it took
    limits: Mapping[str, Any] | None = None  # the machine's


def program_data(
    program: Program,
    symbols: Mapping[str, int] | None = None,
    calls: Mapping[int, Iterable[str]] | None = None,
    profile: Profile | None = None,
    kernels: Mapping[str, Kernel] | None = None,
) -> dict[str, Any]:
    """A program; ``symbols`` have the values of the example call.

    ``calls`` are those of the graph that an instruction computes, by its number; ``kernels`` the
    generated ones by name, where they are known.
    """
    computes = calls or {}
    descs = {buffer.name: buffer.desc for buffer in program.buffers}
    rows = [
        _row(_kind(each), _name(each), reads(each), writes(each), print_instruction(each))
        | {"calls": list(computes.get(number, ()))}
        | _work(descs, each, symbols or {}, kernels or {})
        for number, each in enumerate(program.instructions)
    ]
    _add_times(rows, profile or Profile())
    return {
        "instructions": rows,
        "counts": count_kinds(row["kind"] for row in rows),
        "memory": memory_data(program, symbols or {}),
        "text": print_program(program),
    }


def _add_times(rows: Sequence[dict[str, Any]], profile: Profile) -> None:
    for row, time in zip(rows, profile.least, strict=False):
        row["measured_seconds"] = time * 1e-9 if time else None
    for row, (start, taken) in zip(rows, profile.last, strict=False):
        if taken:
            row |= {"last_started_seconds": start * 1e-9, "last_seconds": taken * 1e-9}
    for row in rows:
        row["roofline"] = roofline(row, profile.limits)


def _work(
    descs: Mapping[str, TensorDesc],
    instruction: Instruction,
    sizes: Mapping[str, int],
    kernels: Mapping[str, Kernel],
) -> dict[str, int | None]:
    """Bytes and operations of an instruction; None where its sizes or its kernel are not known."""
    taken = [descs[name] for name in reads(instruction)]
    made = [descs[name] for name in writes(instruction)]
    try:
        moved = sum(tensor_bytes(desc, sizes) for desc in (*taken, *made))
        if _kind(instruction) != "kernel":
            op = instruction.op if isinstance(instruction, HostCall) else _name(instruction)
            done = 0 if isinstance(instruction, Copy) else call_operations(op, taken, made, sizes)
            return {"bytes": moved, "operations": done}
        kernel = kernels.get(_name(instruction))
        if kernel is None:
            return {"bytes": moved, "operations": None}
        work = kernel_work(kernel, {**sizes, **_passed(instruction, sizes)})
    except SizeError:
        return {"bytes": None, "operations": None}
    return {"bytes": min(moved, work.bytes), "operations": work.operations}


def _passed(instruction: Instruction, sizes: Mapping[str, int]) -> dict[str, int]:
    """The sizes that a call passes, by the names that kernels read from a file have for them."""
    given = instruction.attributes if isinstance(instruction, KernelCall) else ()
    return {
        f"n{number}": evaluate(size, sizes)
        for number, size in enumerate(given)
        if not isinstance(size, float)
    }


def call_by_call_data(segment: Segment) -> dict[str, Any]:
    """A segment that PyTorch runs call by call."""
    rows = [_call_row(call) for call in segment.calls]
    return {
        "instructions": rows,
        "counts": count_kinds(row["kind"] for row in rows),
        "memory": None,
        "text": f"{segment}\n",
    }


def memory_data(program: Program, symbols: Mapping[str, int]) -> dict[str, Any] | None:
    """The arena: where each temporary lies and from when to when; None: its sizes are not known."""
    try:
        lives = lifetimes(program, symbols)
        plan = plan_lifetimes(lives)
    except (SizeError, KeyError):
        return None
    buffers = [
        {
            "name": life.name,
            "bytes": life.size,
            "padding": life.padding,
            "offset": plan.offsets[life.name],
            "first": life.first,
            "last": life.last,
        }
        for life in lives
    ]
    total = {"peak": plan.peak, "sum": plan.total, "bound": plan.bound, "padding": plan.padding}
    return {**total, "buffers": buffers}


def _call_row(call: OpCall) -> dict[str, Any]:
    taken = [ref.name for ref in call.refs()]
    return _row(operator_kind(call.op), call.op, taken, [call.name], str(call)) | {
        "calls": [call.name]
    }


def _row(
    kind: str, name: str, taken: Iterable[str], made: Iterable[str], text: str
) -> dict[str, Any]:
    operands = {"reads": list(taken), "writes": list(made)}
    return {"kind": kind, "name": name, **operands, "text": text, **dict.fromkeys(_MEASURED)}


def _kind(instruction: Instruction) -> str:
    if isinstance(instruction, KernelCall):
        return "kernel" if instruction.kernel.startswith(PREFIX) else "library"
    if isinstance(instruction, HostCall):
        return operator_kind(instruction.op)
    return "copy" if isinstance(instruction, Copy) else "device"


def _name(instruction: Instruction) -> str:
    if isinstance(instruction, KernelCall):
        return instruction.kernel.rpartition("@")[0]
    if isinstance(instruction, HostCall):
        return instruction.op
    if isinstance(instruction, Copy):
        return "copy"
    return instruction.kernel if isinstance(instruction, Launch) else instruction.blob
