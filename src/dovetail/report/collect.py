"""What ``explain`` sees of a compilation beside its record: graphs, programs, kernels.

A ``Collector`` is shown each graph before it is placed and each part that runs. What it says of
them is worked out afterwards, so that the times of the stages are those of any compilation.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from torch import fx

from dovetail.backend import Executable
from dovetail.backends.cpu.backend import CpuBackend
from dovetail.capture._torch.aot_autograd import input_label
from dovetail.capture.from_fx import KEPT, describe
from dovetail.capture.lines import module_of, source_of
from dovetail.errors import DovetailError
from dovetail.file.decode import decode_artifact
from dovetail.file.processors import target_here
from dovetail.ir.call import OpCall, format_desc
from dovetail.ir.program import Program, writes
from dovetail.ir.segment import Segment
from dovetail.page.program import Profile, call_by_call_data, program_data
from dovetail.place.cost import Costs
from dovetail.report.code import kernel_data
from dovetail.report.origins import Origins, trace_origins
from dovetail.runtime.executable import NativeExecutable
from dovetail.runtime.interpreter import Interpreter
from dovetail.runtime.link import LinkedPart, LinkedSegment
from dovetail.runtime.runner import Timed

Data = dict[str, Any]


class GraphDetails(NamedTuple):
    """What the report adds to a graph: by call, by segment, and its inputs and outputs."""

    calls: Mapping[str, Data]
    programs: Mapping[str, Data | None]
    inputs: list[Data]
    outputs: list[str]


class CompilationDetails(NamedTuple):
    """What the report adds to a compilation: graphs by kind, and their generated kernels."""

    graphs: Mapping[str, GraphDetails]
    kernels: list[Data]


class _Graph:
    """What a graph of FX says of its nodes, read while it is there."""

    def __init__(self, gm: fx.GraphModule, names: Sequence[str]) -> None:
        self.nodes: dict[str, Data] = {}
        self.inputs: list[Data] = []
        self.outputs: list[str] = []
        shown: dict[fx.Node, str] = {}  # an element of a tuple is shown as the call that made it
        for node in gm.graph.nodes:
            before = (shown[n] for n in node.all_input_nodes)
            reads = list(dict.fromkeys(before))
            is_element = node.op == "call_function" and node.target is operator.getitem
            shown[node] = reads[0] if is_element and reads else node.name
            if node.op == "placeholder":
                desc = format_desc(describe(node.meta.get("val")))
                label = input_label(node, names) if node.meta.get(KEPT) else node.name
                self.inputs.append({"name": node.name, "label": label, "desc": desc})
            elif node.op == "output":
                self.outputs = reads
            else:
                about = {"source": source_of(node), "module": module_of(node)}
                self.nodes[node.name] = {"reads": reads, **about}


@dataclass
class Collector:
    """A ``history.Observer``."""

    limits: Data | None = None  # the machine's, once they are measured
    graphs: dict[tuple[int, str], _Graph] = field(default_factory=dict)
    parts: dict[tuple[int, str], LinkedPart] = field(default_factory=dict)

    def saw_graph(self, number: int, kind: str, gm: Any, names: Sequence[str]) -> None:
        """Note where nodes come from."""
        self.graphs[number, kind] = _Graph(gm, names)

    def saw_part(self, number: int, part: LinkedPart) -> None:
        """Keep what runs until the report is made."""
        self.parts[number, part.kind] = part

    def details(self, number: int) -> CompilationDetails:
        """All about one compilation."""
        kernels: dict[str, Any] = {}
        graphs = {}
        for (of, kind), part in self.parts.items():
            if of == number:
                graphs[kind] = _details(part, self.graphs.get((of, kind)), kernels, self.limits)
        return CompilationDetails(graphs, kernel_data(kernels, target_here()) if kernels else [])


def _details(
    part: LinkedPart, graph: _Graph | None, kernels: dict[str, Any], limits: Data | None
) -> GraphDetails:
    costs = Costs(part.compiled.hints)
    verdicts = {verdict.call: verdict for verdict in part.compiled.all_verdicts()}
    calls: dict[str, Data] = {}
    programs: dict[str, Data | None] = {}
    for each in part.segments:
        program, origins = _program(each, part.compiled.hints, limits)
        programs[each.compiled.name] = program
        kernels.update(origins.kernels)
        done = _instructions_by_call(program)
        for call in each.compiled.segment.calls:
            answer = verdicts[call.name].answer_of(each.backend.name)
            calls[call.name] = {
                **_about(call, graph),
                "estimated_seconds": costs.seconds(call, each.backend, answer),
                "expression": origins.expressions.get(call.name, ""),
                "instructions": done.get(call.name, []),
            }
    known = calls.keys() | {given["name"] for given in (graph.inputs if graph else ())}
    for each_call in calls.values():
        each_call["reads"] = [name for name in each_call["reads"] if name in known]
    inputs, outputs = (graph.inputs, graph.outputs) if graph else ([], [])
    return GraphDetails(calls, programs, inputs, [name for name in outputs if name in known])


def _about(call: OpCall, graph: _Graph | None) -> Data:
    """The call's text, what it reads, where it comes from."""
    found = graph.nodes.get(call.name) if graph else None
    if found is None:
        reads = list(dict.fromkeys(ref.name for ref in call.refs()))
        found = {"reads": reads, "source": None, "module": ""}
    return {"text": str(call), **found}


def read_segment(
    each: LinkedSegment, hints: Mapping[str, int]
) -> tuple[Data | None, Mapping[str, Any]]:
    """What a segment runs, or None where that cannot be read, and its generated kernels by name."""
    program, origins = _program(each, hints, None)
    return program, origins.kernels


def _program(
    each: LinkedSegment, hints: Mapping[str, int], limits: Data | None
) -> tuple[Data | None, Origins]:
    """What a segment runs, where its backend's code can be read; else None."""
    executable, segment = _loaded(each), each.compiled.segment
    if isinstance(executable, NativeExecutable):
        return _native_program(each, executable, hints, limits)
    if type(executable) is Interpreter and executable.choose is None:
        return {**call_by_call_data(segment), "counted": None}, Origins()
    return None, Origins()


def _loaded(each: LinkedSegment) -> Executable:
    """What the backend loaded, without what measures it."""
    timed = each.executable
    return timed.executable if isinstance(timed, Timed) else timed


def _native_program(
    each: LinkedSegment,
    executable: NativeExecutable,
    hints: Mapping[str, int],
    limits: Data | None,
) -> tuple[Data, Origins]:
    segment = each.compiled.segment
    program = decode_artifact(each.compiled.blob.data, segment.name).program
    origins = Origins()
    if isinstance(each.backend, CpuBackend):
        origins = _quietly(lambda: trace_origins(segment, program, target_here()))
    native = executable.native
    profile = Profile(native.times(), native.last_times(), limits)
    calls = _with_names(origins, program, segment)
    data = program_data(program, hints, calls, profile, origins.kernels)
    arena, *_ = executable.native.memory()
    counted = {"pytorch_calls": sum(executable.native.host_counts()), "arena_bytes": arena}
    return {**data, "counted": counted}, origins


def _quietly(trace: Callable[[], Origins]) -> Origins:
    """Where a plan cannot be made again the rest of the report stands without it."""
    try:
        return trace()
    except DovetailError:
        return Origins()


def _with_names(origins: Origins, program: Program, segment: Segment) -> dict[int, list[str]]:
    """The calls of each instruction; one that no plan tells of by the names of what it writes."""
    names = {call.name for call in segment.calls}
    found = {
        number: [name for name in writes(each) if name in names]
        for number, each in enumerate(program.instructions)
    }
    return {**found, **origins.calls}


def _instructions_by_call(program: Data | None) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for number, row in enumerate(program["instructions"] if program else ()):
        for name in row["calls"]:
            found.setdefault(name, []).append(number)
    return found
