"""A plan as a program: object code, and a description that JSON can hold.

Values live in registers. A register is an input, a block of the arena, memory made at each call,
a library call's result, or a view of another register.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from dovetail.codegen.llvm import module
from dovetail.codegen.llvm.target import Target, assemble
from dovetail.ir.call import Ref, leaves
from dovetail.ir.encode import segment_to_bytes
from dovetail.ir.kernel import CHECKS, Apply
from dovetail.ir.segment import Segment, item_bytes
from dovetail.ir.size import Dim, Size, symbols_of
from dovetail.lower.library import FRESH
from dovetail.lower.values import Host, LibraryCall, Source, Value, View, root_of
from dovetail.schedule.build import Built
from dovetail.schedule.memory import Interval, plan_arena
from dovetail.schedule.plan import Plan, Unschedulable

FORMAT = "dovetail-cpu-1"
# Library calls that can write their result where they are told.
OUT_FORMS = {
    "aten.mm.default": "aten.mm.out",
    "aten.addmm.default": "aten.addmm.out",
    "aten.bmm.default": "aten.bmm.out",
    "aten.baddbmm.default": "aten.baddbmm.out",
}


@dataclass
class Program:
    """What a loader needs: a description and object code."""

    description: dict[str, Any]
    code: bytes
    text: str = field(default="", compare=False)


def build_program(plan: Plan, target: Target) -> Program:
    """Number the registers, plan the arena, generate the code."""
    return _Writer(plan, target).program()


class _Writer:
    def __init__(self, plan: Plan, target: Target) -> None:
        self.plan, self.target = plan, target
        self.segment: Segment = plan.segment
        self.groups = _grouped(plan.steps)
        self.registers: dict[Any, int] = {}
        self.origins: list[dict[str, Any]] = []
        self.known = _known_symbols(self.segment)
        self.calls = {call.name: n for n, call in enumerate(self.segment.calls)}
        self.escaping = self._escaping()
        self.arena, self.arena_size = self._plan_arena()
        for n, given in enumerate(self.segment.inputs):
            key = plan.values.get((given.name, ()), ("input", n))
            self._register(key, {"kind": "input", "name": given.name})

    # ---- memory ----------------------------------------------------------------------------

    def _escaping(self) -> set[Value]:
        """Values whose memory outlives a call, or that a library call might hold on to."""
        found: set[Value] = set()
        for out in leaves(self.segment.outputs):
            if isinstance(out, Ref) and (out.name, out.path) in self.plan.values:
                found.add(root_of(self.plan.values[out.name, out.path]))
        for step in self.plan.steps:
            if isinstance(step, LibraryCall) and step.call.op not in FRESH:
                found |= {root_of(v) for v in step.reads}
        return found

    def _plan_arena(self) -> tuple[dict[Value, int], int]:
        first: dict[Value, int] = {}
        last: dict[Value, int] = {}
        for n, group in enumerate(self.groups):
            for step in group:
                for value in _touched(step):
                    first.setdefault(value, n)
                    last[value] = n
        blocks, names = [], {}
        for value, start in first.items():
            if self._in_arena(value):
                names[str(id(value))] = value
                size = _span(value) * item_bytes(value.dtype)
                blocks.append(Interval(str(id(value)), size, start, last[value]))
        offsets, total = plan_arena(blocks)
        return {names[k]: v for k, v in offsets.items()}, total

    def _in_arena(self, value: Value) -> bool:
        if isinstance(value, Source) or value in self.escaping:
            return False
        if isinstance(value, Host):
            dense = value.call.call.op in OUT_FORMS
            if not dense or value.call.call.kwargs:
                return False
        return all(isinstance(d, int) for d in (*value.shape, *value.strides))

    def _register(self, key: Any, origin: dict[str, Any]) -> int:
        if key not in self.registers:
            self.registers[key] = len(self.origins)
            self.origins.append(origin)
        return self.registers[key]

    def _layout(self, value: Value) -> dict[str, Any]:
        shape, strides = self._dims(value.shape), self._dims(value.strides)
        return {"dtype": value.dtype, "shape": shape, "strides": strides}

    def _dims(self, dims: tuple[Dim, ...]) -> list[int | str]:
        return [self._dim(d) for d in dims]

    def _dim(self, dim: Dim) -> int | str:
        if not symbols_of(dim) <= self.known:
            raise Unschedulable(f"nothing binds the symbols of {dim}")
        return dim if isinstance(dim, int) else str(dim)

    def register(self, value: Value) -> int:
        """The register of a value, made known on first use."""
        if isinstance(value, View):
            root = self.register(value.root)
            origin = {"kind": "view", "of": root, **self._layout(value)}
            return self._register(value, origin | {"offset": self._dim(value.offset)})
        if value in self.arena:
            origin = {"kind": "arena", "offset": self.arena[value], **self._layout(value)}
        elif isinstance(value, Host):
            origin = {"kind": "result"}
        elif isinstance(value, Source):
            origin = {"kind": "input", "name": value.name}
        else:
            origin = {"kind": "fresh", **self._layout(value)}
        return self._register(value, origin)

    # ---- steps -----------------------------------------------------------------------------

    def program(self) -> Program:
        """The description and the code it refers to."""
        steps: list[dict[str, Any]] = []
        groups: list[tuple[module.Table, list[module.Launch]]] = []
        for group in self.groups:
            if isinstance(group[0], LibraryCall):
                steps.append(self._host(group[0]))
            else:
                steps.append(self._kernels(group, len(groups), groups))
        outputs = [self._output(out) for out in self.segment.outputs]
        text = module.module_text(groups, self.target.lanes) if groups else ""
        description = {
            "format": FORMAT,
            "segment": segment_to_bytes(self.segment).decode(),
            "arena": self.arena_size,
            "registers": self.origins,
            "steps": steps,
            "outputs": outputs,
            "entries": len(groups),
        }
        code = assemble(text, self.target) if groups else b""
        return Program(description, code, text)

    def _kernels(
        self,
        group: list[Built],
        number: int,
        groups: list[tuple[module.Table, list[module.Launch]]],
    ) -> dict[str, Any]:
        pointers: dict[str, int] = {}
        sizes: dict[Dim, None] = {}
        launches = []
        for built in group:
            names = {n: f"r{self.register(v)}" for n, v in built.buffers.items()}
            pointers |= {name: int(name[1:]) for name in names.values()}
            for dim in (*built.kernel.dims(),):
                if isinstance(dim, Size):
                    self._dim(dim)
                    sizes.setdefault(dim)
            launches.append(module.Launch(built.kernel, names))
        groups.append((module.Table(tuple(pointers), tuple(sizes)), launches))
        return {
            "kind": "kernels",
            "entry": number,
            "pointers": list(pointers.values()),
            "sizes": [str(s) for s in sizes],
            "checks": any(_checks(built) for built in group),
        }

    def _host(self, step: LibraryCall) -> dict[str, Any]:
        call = step.call
        operands = {}
        for ref in call.refs():
            value = self.plan.values.get((ref.name, ref.path))
            if value is not None:
                operands[str(ref)] = self.register(value)
        results = {
            ".".join(map(str, value.path)): self.register(value)
            for value in step.results
            if value not in self.arena
        }
        made = [v for v in step.results if v in self.arena]
        form = OUT_FORMS[call.op] if made else ""
        out = self.register(made[0]) if made else None
        return {
            "kind": "call",
            "call": self.calls[call.name],
            "operands": operands,
            "results": results,
            "form": form,
            "out": out,
        }

    def _output(self, out: Any) -> Any:
        if isinstance(out, Ref):
            value = self.plan.values.get((out.name, out.path))
            if value is not None:
                return {"register": self.register(value)}
            return {"scalar": out.name}
        return {"size": self._dim(out)} if isinstance(out, Size) else {"constant": out}


def _grouped(steps: list[Built | LibraryCall]) -> list[list[Any]]:
    """Neighbouring kernels together, library calls alone."""
    groups: list[list[Any]] = []
    for step in steps:
        if groups and isinstance(step, Built) and isinstance(groups[-1][-1], Built):
            groups[-1].append(step)
        else:
            groups.append([step])
    return groups


def _touched(step: Built | LibraryCall) -> list[Value]:
    if isinstance(step, Built):
        return [root_of(v) for v in step.buffers.values()]
    return [*(root_of(v) for v in step.reads), *step.results]


def _span(value: Value) -> int:
    """Elements from the first to the last."""
    total = 1
    for size, stride in zip(value.shape, value.strides, strict=True):
        if size == 0:
            return 0
        total += (int(size) - 1) * int(stride)  # type: ignore[arg-type]
    return total


def _known_symbols(segment: Segment) -> frozenset[str]:
    """Symbols that the inputs tell: sizes handed in, and bare symbols in shapes and strides."""
    known = set(segment.symbols())
    for given in segment.inputs:
        for dim in getattr(given.desc, "shape", ()):
            if isinstance(dim, Size) and dim.is_symbol:
                known.add(dim.args[0])
    return frozenset(known)


def _checks(built: Built) -> bool:
    return any(isinstance(i, Apply) and i.op in CHECKS for i in built.kernel.instructions())
