"""From a compiled model in this process to a file: one Program, its constants, its manifest."""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from dovetail import __version__
from dovetail.artifact.save_devices import HOST, DeviceLowering
from dovetail.artifact.sign import Key, private_key, signature_section
from dovetail.capture import _torch
from dovetail.compiled import CompiledSegment
from dovetail.errors import CannotSave
from dovetail.file import container
from dovetail.file.encode import Contents, code_section, encode_program, scalar_bytes
from dovetail.file.encode_devices import Blobs
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.call import OpCall, Ref, leaves
from dovetail.ir.kernel import Kernel
from dovetail.ir.program import VALUE, Program, Result, Symbol
from dovetail.ir.size import Size, symbols_of
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.ir.unsigned import program_needs_trust, verdict
from dovetail.lower.portable import match
from dovetail.lower.to_program import Source, input_symbols, is_computed
from dovetail.runtime.layouts import copy_with_strides, extent, leaves_no_gap
from dovetail.runtime.link import LinkedPart
from dovetail.schedule.plan import Plan, Unschedulable, make_plan
from dovetail.schedule.program import Kernels, PlanWriter, library_calls

if TYPE_CHECKING:
    from dovetail.artifact.exported import Artifact

log = logging.getLogger(__name__)
pytree = _torch.pytree()
# Backends whose segments are calls of ATen operators: in a file they are host calls.
HOST_BACKENDS = ("aten", "reference")
NATIVE_BACKEND = "portable"
GENERATING_BACKEND = "cpu"
HOSTS = (*HOST_BACKENDS, NATIVE_BACKEND, GENERATING_BACKEND)  # the rest run on accelerators


@dataclass(frozen=True)
class Package:
    """What goes into a file."""

    program: Program
    contents: Contents
    manifest: Mapping[str, Any]
    blobs: Blobs = field(default_factory=dict)
    kernels: Mapping[str, Kernel] = field(default_factory=dict)


def save(
    artifact: Artifact,
    path: str | os.PathLike[str],
    *,
    key: Key | None = None,
    without_torch: bool = False,
    targets: Sequence[str] | None = None,
) -> Program:
    """Write an artifact to a file, signed if a private key is given; its Program comes back.

    A file that will need trust and has no signature is noted in the log.
    """
    seed = None if key is None else private_key(key)  # a bad key is known before any work
    package = pack(artifact, without_torch)
    generated = {f"{name}@1": name for name in package.kernels}
    sections, features = encode_program(
        package.program,
        package.contents,
        package.manifest,
        generated=generated,
        blobs=package.blobs,
    )
    sections += kernel_sections(package.kernels, targets)
    layout, ordered = container.lay_out(sections, features)
    if seed is not None:
        sections = [*ordered, signature_section(container.content_digest(layout), seed)]
        layout, ordered = container.lay_out(sections, features)
    container.write_file(path, container.chunks(layout, ordered))
    reasons = program_needs_trust(package.program)
    if reasons and seed is None:
        log.warning("%s %s", os.fspath(path), verdict(reasons))
    return package.program


def kernel_sections(
    kernels: Mapping[str, Kernel], targets: Sequence[str] | None = None
) -> list[container.Section]:
    """Generated kernels as code for each target, and as data for those who may not run that."""
    if not kernels:
        return []
    from dovetail.codegen.llvm.module import generate
    from dovetail.codegen.llvm.target import named, stored

    machines = [named(name) for name in (stored() if targets is None else targets)]
    code = {machine.level: generate(kernels, machine) for machine in machines}
    described = container.section(container.KERNEL_IR, encode_kernels(list(kernels.values())))
    return [code_section(code), described] if code else [described]


def pack(artifact: Artifact, without_torch: bool = False) -> Package:
    """Lower a compiled model as a whole."""
    return _Packer(artifact, without_torch).pack()


@dataclass(frozen=True)
class _Given:
    """One input of the graph: a user's argument, or a tensor the artifact holds."""

    kind: str  # "user", "constant", "state"
    key: str
    tensor: torch.Tensor | None = None


class _Packer:
    """Walks over a compiled graph and lowers all of its segments into one program."""

    def __init__(self, artifact: Artifact, without_torch: bool) -> None:
        self.artifact = artifact
        self.part, self.given = _graph_inputs(artifact)
        self.lowering = DeviceLowering(self._is_native)
        self.kernels = Kernels()
        self.plans = self._make_plans()
        self.native = self._native_calls(without_torch)
        self.tensors: dict[str, torch.Tensor] = {}
        self.state: dict[str, str] = {}  # key → buffer
        self.users: dict[int, str] = {}  # position among the user's leaves → buffer
        self.numbers: dict[str, str] = {}  # symbol → the buffer whose value it is

    def pack(self) -> Package:
        symbols = self._inputs()
        self._calls([symbol.name for symbol in symbols])
        outputs = list(self.part.compiled.outputs)
        count = len(self.artifact._writes)  # noqa: SLF001
        results = [self.lowering.result(out) for out in outputs[count:]]
        for (kind, key), value in zip(self.artifact._writes, outputs, strict=False):  # noqa: SLF001
            if not isinstance(value, Ref):
                raise CannotSave("a write of something that is no tensor")
            self.lowering.store(self.state[key] if kind == "state" else self.users[int(key)], value)
        name = self.artifact.name
        descs = {held: self.lowering.buffers[held].desc for held in self.tensors}
        self.lowering.drop_unused_constants()
        lowered = self.lowering.program(name, results, symbols)
        contents: dict[str, bytes | memoryview] = {
            name: tensor_bytes(tensor, descs[name]) for name, tensor in self.tensors.items()
        }
        contents |= {n: scalar_bytes(*scalar) for n, scalar in lowered.scalars.items()}
        contents |= {n: contents[held] for n, held in self.lowering.shared.items()}
        contents = {n: data for n, data in contents.items() if n in lowered.program.by_name}
        manifest = self._manifest(lowered.program, results)
        kernels = self.kernels.by_name
        return Package(lowered.program, contents, manifest, self.lowering.blobs, kernels)

    # ---- inputs ----------------------------------------------------------------------------

    def _inputs(self) -> list[Symbol]:
        part = self.part.compiled
        user = 0
        for given, source in zip(part.inputs, self.given, strict=True):
            key = (given.name, ())
            if source.kind == "user":
                if isinstance(given.desc, ScalarDesc) and symbols_of(given.desc.size or 0):
                    self.users[user] = self._number(given.name, given.desc)
                if isinstance(given.desc, TensorDesc):
                    made = Source(given.name, "input", given.desc)
                    self.users[user] = self.lowering.source(made, key)
                user += 1
                continue
            assert isinstance(given.desc, TensorDesc)
            assert source.tensor is not None
            name = self.lowering.source(Source(given.name, source.kind, given.desc), key)
            self.tensors[name] = source.tensor
            if source.kind == "state":
                self.state[source.key] = name
        for constant, value in part.constants.items():
            self._graph_constant(constant, value)
        return self._symbols()

    def _number(self, name: str, desc: ScalarDesc) -> str:
        """An argument that is a number and varies: its value is a symbol."""
        if not isinstance(desc.size, Size) or not desc.size.is_symbol:
            raise CannotSave(f"the input {name!r} is a number that varies")
        made = self.lowering.declare(name, "input", TensorDesc("int64", (), ()))
        self.numbers[desc.size.args[0]] = made
        return made

    def _graph_constant(self, name: str, value: Any) -> None:
        if not isinstance(value, torch.Tensor):
            raise CannotSave(f"the graph holds {name}, a {type(value).__name__}")
        dtype = str(value.dtype).removeprefix("torch.")
        desc = TensorDesc(dtype, tuple(value.shape), tuple(value.stride()), str(value.device))
        self.tensors[self.lowering.source(Source(name, "constant", desc), (name, ()))] = value

    def _symbols(self) -> list[Symbol]:
        found: dict[str, Symbol] = {}
        for name in self.users.values():
            for symbol in input_symbols(name, self.lowering.buffers[name].desc):
                found.setdefault(symbol.name, symbol)
        for symbol_name, buffer in self.numbers.items():
            found.setdefault(symbol_name, Symbol(symbol_name, buffer, VALUE))
        ranges = self.artifact._guards.ranges  # noqa: SLF001
        made = []
        for symbol in found.values():
            least = -(2**63) if symbol.axis == VALUE else 0
            low, high = ranges.get(symbol.name, (least, None))
            top = 2**63 - 1 if high is None else high
            made.append(replace(symbol, low=max(low, least), high=top))
        return made

    # ---- calls -----------------------------------------------------------------------------

    def _segments(self) -> Iterator[tuple[CompiledSegment, str]]:
        for linked in self.part.segments:
            yield linked.compiled, linked.backend.name

    def _make_plans(self) -> dict[str, Plan]:
        """The plans of the segments that code is generated for."""
        plans = {}
        for placed, backend in self._segments():
            if backend == GENERATING_BACKEND:
                with contextlib.suppress(Unschedulable):  # such a segment is host calls
                    plans[placed.segment.name] = make_plan(placed.segment)
        return plans

    def _native_calls(self, without_torch: bool) -> frozenset[str]:
        """The calls that built-in kernels are to serve: their backend's, or all that are left."""
        own, left = set(), []
        for placed, backend in self._segments():
            calls = placed.segment.calls
            if backend not in HOSTS:
                continue
            if backend == NATIVE_BACKEND:
                own |= {call.name for call in calls}
            elif placed.segment.name in self.plans:
                left += library_calls(self.plans[placed.segment.name])
            else:
                left += [call for call in calls if is_computed(call)]
        if not without_torch:
            return frozenset(own)
        missing = sorted({call.op for call in left if isinstance(match(call), str)})
        if missing:
            raise CannotSave(f"no kernel of the runtime's own serves {', '.join(missing)}")
        return frozenset(own | {call.name for call in left})

    def _is_native(self, call: OpCall) -> bool:
        return call.name in self.native

    def _calls(self, symbols: Sequence[str]) -> None:
        values = self.lowering.values
        for linked in self.part.segments:
            compiled, backend = linked.compiled, linked.backend
            for given, source in zip(compiled.segment.inputs, compiled.sources, strict=True):
                if source in values:
                    values[given.name, ()] = values[source]
            if backend.name not in HOSTS:
                self.lowering.segment(compiled, backend)
                continue
            plan = self.plans.get(compiled.name)
            if plan is None or not self._plan(plan, symbols):
                for call in compiled.segment.calls:
                    self.lowering.call(call)

    def _plan(self, plan: Plan, symbols: Sequence[str]) -> bool:
        """Append a plan; where it is found not to fit a program, leave all as it was."""
        for given in plan.segment.inputs:  # generated kernels read what lies on the host
            held = self.lowering.values.get((given.name, ()))
            if held is not None:
                self.lowering.values[given.name, ()] = self.lowering.bring(held, HOST)
        before = self.lowering.snapshot()
        writer = PlanWriter(self.lowering, plan, self.kernels, symbols)
        try:
            writer.write()
            for out in leaves(plan.segment.outputs):
                if isinstance(out, Ref) and (out.name, out.path) in plan.values:
                    value = plan.values[out.name, out.path]
                    self.lowering.values[out.name, out.path] = writer.buffer(value)
        except Unschedulable as reason:
            log.info("%s is saved call by call: %s", plan.segment.name, reason)
            self.lowering.restore(before)
            return False
        return True

    # ---- manifest --------------------------------------------------------------------------

    def _manifest(self, program: Program, results: Sequence[Result]) -> dict[str, Any]:
        positions = {b.name: i for i, b in enumerate(program.inputs)}
        leaves = []
        for user, (_, _, constant) in enumerate(self.artifact._guards.inputs):  # noqa: SLF001
            name = self.users.get(user)
            leaves.append({"value": constant} if name is None else {"tensor": positions[name]})
        return {
            "name": program.name,
            "producer": f"dovetail {__version__}",
            "torch": str(torch.__version__),
            "inputs": tree_of(self.artifact._in_spec, iter(leaves)),  # noqa: SLF001
            "outputs": tree_of(self.artifact._out_spec, iter(_output_leaves(results))),  # noqa: SLF001
            "symbols": [[s.name, positions[s.input], s.axis] for s in program.symbols],
        }


def _graph_inputs(artifact: Artifact) -> tuple[LinkedPart, list[_Given]]:
    """The part that runs at every call, and what each of its inputs is."""
    roles, tensors = artifact._roles, artifact._tensors  # noqa: SLF001
    given = [_Given(role.kind, role.key, tensors.get(role.key)) for role in roles]
    graph, parts = artifact.compiled, artifact.linked.parts
    if graph.once is not None:
        with torch.no_grad():
            values = parts[0].run([given[i].tensor for i in graph.frozen])
        given = [g for i, g in enumerate(given) if i not in set(graph.frozen)]
        given += [_Given("constant", "", value) for value in values]
    if parts[-1].compiled.captured is not None:
        raise CannotSave("the graph runs in PyTorch as captured, so there is no program to write")
    return parts[-1], given


def _output_leaves(results: Sequence[Result]) -> list[dict[str, Any]]:
    leaves: list[dict[str, Any]] = []
    tensors = 0
    for value in results:
        if isinstance(value, str):
            leaves.append({"tensor": tensors})
            tensors += 1
        elif value is None or isinstance(value, bool | int | float):
            leaves.append({"value": value})
        else:
            leaves.append({"size": str(value)})
    return leaves


def tree_of(spec: Any, leaves: Any) -> dict[str, Any]:
    """PyTorch's tree description as ours; CannotSave for containers a file does not know."""
    if spec.is_leaf():
        leaf: dict[str, Any] = next(leaves)
        return leaf
    children = [tree_of(child, leaves) for child in spec.children()]
    if spec.type in (tuple, list):
        return {spec.type.__name__: children}
    if issubclass(spec.type, dict):
        keys = list(spec.context)
        if all(isinstance(key, str | int) for key in keys):
            return {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    if issubclass(spec.type, tuple):  # a named tuple
        return {"tuple": children}
    raise CannotSave(f"arguments or results in a {spec.type.__name__}: use tuples, lists and dicts")


def tensor_bytes(tensor: torch.Tensor, desc: TensorDesc) -> memoryview:
    """A tensor's memory, laid out as its descriptor says."""
    strides = tuple(int(s) for s in desc.strides)  # type: ignore[arg-type]
    value = tensor.detach().resolve_conj().resolve_neg()
    if value.numel() == 0:
        return memoryview(b"")
    if value.device.type != "cpu":
        raise CannotSave(
            f"a constant on {value.device}: move the model to the CPU and export again"
        )
    # What lies between the elements of a slice is none of the file's business.
    if tuple(value.stride()) != strides or not leaves_no_gap(value.shape, strides):
        value = copy_with_strides(value, strides)
    flat = value.as_strided((extent(value.shape, strides),), (1,), value.storage_offset())
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")
