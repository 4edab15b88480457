"""A segment as a Program with generated kernels, and that as an artifact in memory."""

from __future__ import annotations

from dataclasses import replace

from dovetail.backends.cpu.code import scheduled
from dovetail.backends.segment_artifact import ManifestEntry, artifact_bytes, dim_entry, window
from dovetail.codegen.llvm.module import generate
from dovetail.errors import CannotSave, InvalidProgram
from dovetail.file.container import KERNEL_IR, Section, section
from dovetail.file.encode import code_section
from dovetail.file.kernel_encode import kernels_section
from dovetail.file.processors import PROCESSORS, target_here
from dovetail.ir.call import Arg, Ref
from dovetail.ir.dtypes import DTYPES
from dovetail.ir.in_place import write_in_place
from dovetail.ir.program_verify import verify_program
from dovetail.ir.segment import Segment
from dovetail.ir.size import Size
from dovetail.lower.to_program import Lowering, declare_inputs
from dovetail.lower.values import Source, Value, View
from dovetail.schedule.cpu.register_tiles import least_target
from dovetail.schedule.plan import Plan, Unschedulable, make_plan
from dovetail.schedule.program import Kernels, PlanWriter


def segment_artifact(segment: Segment, effort: int = 1, *, libraries: bool = True) -> bytes:
    """The bytes of an artifact for this machine; Unschedulable where there is no program.

    ``effort`` is LLVM's level of optimisation, ``libraries``: those of ``CpuBackend``.
    """
    for given in segment.inputs:
        dtype = getattr(given.desc, "dtype", "int64")
        if dtype not in DTYPES:
            raise Unschedulable(f"{given.name} is of dtype {dtype}")
    lowering, kernels = Lowering(lambda _: False), Kernels()
    symbols = declare_inputs(lowering, segment)
    known, target = (s.name for s in symbols), target_here()
    plan = make_plan(segment, target, libraries=libraries)
    writer = PlanWriter(lowering, plan, kernels, known, target)
    results = _Results(segment, writer)
    writer.write(results.made())
    entries = results.entries()
    lowering.drop_unused_inputs(symbols)
    try:
        lowered = lowering.program(segment.name, results.handed_out, symbols)
        lowered = replace(lowered, program=write_in_place(lowered.program))
        verify_program(lowered.program)
    except (CannotSave, InvalidProgram) as error:
        raise Unschedulable(str(error)) from error
    generated = {f"{name}@1": name for name in kernels.by_name}
    sections = _sections(kernels, effort)
    return artifact_bytes(segment, lowered, entries, generated, sections, kernels.cannot_save)


def _sections(kernels: Kernels, effort: int) -> list[Section]:
    """The kernels as code, which runs, and as kernel IR, which only saving reads."""
    if not kernels.by_name:
        return []
    target = least_target(kernels.by_name.values(), target_here())
    made = generate(scheduled(kernels.by_name, target), target, effort=effort)
    code = code_section([(PROCESSORS[target.name], made)])
    if kernels.cannot_save:
        return [code]
    return [code, section(KERNEL_IR, kernels_section(kernels.encoded))]


class _Results:
    """How each output of a segment comes from what its program hands out.

    Inputs and windows on them are given back without a copy, and so are windows on what the
    program made: its memory is handed out once.
    """

    def __init__(self, segment: Segment, writer: PlanWriter) -> None:
        self.segment, self.writer = segment, writer
        self.plan: Plan = writer.plan
        self.handed_out: list[str] = []
        self.places: dict[Value, int] = {}

    def made(self) -> frozenset[Value]:
        """The roots that the program is to hand out in memory of its own."""
        values = [v for v in map(self._value, self.segment.outputs) if v is not None]
        roots = map(self.writer.root, values)
        return frozenset(r for r in roots if not isinstance(r, Source))

    def entries(self) -> list[ManifestEntry]:
        """One entry an output; call it when the plan is written."""
        return [self._entry(out) for out in self.segment.outputs]

    def _value(self, out: Arg) -> Value | None:
        return self.plan.values.get((out.name, out.path)) if isinstance(out, Ref) else None

    def _entry(self, out: Arg) -> ManifestEntry:
        value = self._value(out)
        if value is not None:
            return self._tensor(self.writer.resolve(value))
        if isinstance(out, Ref):
            return {"input": self._position(out.name)}
        return {"size": str(out)} if isinstance(out, Size) else {"value": out}

    def _tensor(self, value: Value) -> ManifestEntry:
        root, seen = value, {}
        if isinstance(value, View):
            root, seen = value.root, window(value.shape, value.strides, value.offset)
        if isinstance(root, Source):
            own = {"input_strides": [dim_entry(d) for d in root.strides]} if seen else {}
            return {"input": self._position(root.name), **seen, **own}
        if root not in self.places:
            self.places[root] = len(self.handed_out)
            self.handed_out.append(self.writer.buffer(root))
        return {"tensor": self.places[root], **seen}

    def _position(self, name: str) -> int:
        for n, given in enumerate(self.segment.inputs):
            if given.name == name:
                return n
        raise Unschedulable(f"the output {name} is no tensor")
