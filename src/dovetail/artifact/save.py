"""From a compiled model in this process to a file: one Program, its constants, its manifest.

The programs of the graph's segments are joined. Nothing is compiled a second time but, for a file
that is to do without PyTorch, segments that leave to it what they could compute themselves.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from dovetail import __version__
from dovetail.artifact.graph_file import graph_to_bytes, is_on_gpu
from dovetail.artifact.inline import CodeObject, Inliner, SegmentProgram
from dovetail.artifact.interface import ModelInterface, Role
from dovetail.artifact.needs_torch import needs_torch
from dovetail.artifact.save_devices import DeviceLowering
from dovetail.artifact.sign import Key, private_key, signature_section
from dovetail.artifact.spec_tree import tree_of
from dovetail.errors import CannotSave
from dovetail.file import container
from dovetail.file.encode import Contents, code_section, encode_program, scalar_bytes
from dovetail.file.encode_devices import Blobs
from dovetail.file.kernel_encode import kernels_section
from dovetail.file.needs_trust import program_needs_trust, verdict
from dovetail.file.processors import PROCESSORS, processor_name
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.program import VALUE, BlobCall, Program, Result, Symbol
from dovetail.ir.size import Size, symbols_of
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.lower.portable import match
from dovetail.lower.to_program import ProgramSource, input_symbols, is_computed
from dovetail.runtime.blobs import COMPILED_GRAPH
from dovetail.runtime.layouts import copy_with_strides, extent, leaves_no_gap
from dovetail.runtime.link import Linked, LinkedPart, LinkedSegment

log = logging.getLogger(__name__)
# Backends whose segments are calls of ATen operators: in a file they are host calls.
HOST_BACKENDS = ("aten", "reference")
# Those whose segments are Programs, or calls where none was found. The rest run on accelerators.
PROGRAM_BACKENDS = ("portable", "cpu")


@dataclass(frozen=True)
class Package:
    """What goes into a file."""

    program: Program
    contents: Contents
    manifest: Mapping[str, Any]
    blobs: Blobs = field(default_factory=dict)
    kernels: Mapping[str, bytes] = field(default_factory=dict)  # generated ones, encoded
    objects: Sequence[CodeObject] = ()


def save(
    model: ModelInterface,
    linked: Linked,
    path: str | os.PathLike[str],
    *,
    key: Key | None = None,
    without_torch: bool = False,
    targets: str | Sequence[str] | None = None,
) -> Program:
    """Write a compiled model to a file, signed if a private key is given; its Program comes back.

    A file that will need trust and has no signature is noted in the log.
    """
    seed = None if key is None else private_key(key)  # a bad key is known before any work
    levels = None if targets is None else _levels(targets)
    if is_on_gpu(linked.parts[-1].compiled):
        package = _pack_graph(model, linked, without_torch=without_torch, targets=targets)
    else:
        package = pack(model, linked, without_torch)
    generated = {f"{name}@1": name for name in package.kernels}
    sections, features = encode_program(
        package.program,
        package.contents,
        package.manifest,
        generated=generated,
        blobs=package.blobs,
    )
    sections += kernel_sections(package.kernels, package.objects, levels)
    layout, ordered = container.lay_out(sections, features)
    if seed is not None:
        sections = [*ordered, signature_section(container.content_digest(layout), seed)]
        layout, ordered = container.lay_out(sections, features)
    container.write_file(path, container.chunks(layout, ordered))
    reasons = program_needs_trust(package.program)
    if reasons and seed is None:
        log.warning("%s %s", os.fspath(path), verdict(reasons))
    return package.program


def _pack_graph(
    model: ModelInterface,
    linked: Linked,
    *,
    without_torch: bool,
    targets: str | Sequence[str] | None,
) -> Package:
    """A model on a GPU: its compiled graph as one blob, which a process with PyTorch links."""
    if without_torch:
        raise CannotSave("memory of a GPU is PyTorch's: leave without_torch out")
    if targets is not None:
        raise CannotSave("a model on a GPU has code for the devices it was compiled for alone")
    part, given = _graph_inputs(model, linked)
    given = [
        g if g.key or g.kind == "user" else replace(g, key=f"#{n}") for n, g in enumerate(given)
    ]
    held = replace(
        model,
        roles=tuple(Role(g.kind, g.key) for g in given),
        tensors={g.key: g.tensor for g in given if g.kind != "user"},
    )
    graph = replace(linked.graph, every=part.compiled, once=None, frozen=(), labels={})
    call = BlobCall(model.name, COMPILED_GRAPH, (), ())
    nothing: dict[str, list[Any]] = {"tuple": []}
    arguments = {"tuple": [nothing, {"dict": []}]}
    manifest = {**_origin(model.name), "inputs": arguments, "outputs": nothing, "symbols": []}
    program = Program(model.name, (), (call,), ())
    return Package(program, {}, manifest, {model.name: graph_to_bytes(held, graph)})


def _origin(name: str) -> dict[str, Any]:
    """What a manifest says of where a file comes from."""
    made = {"producer": f"dovetail {__version__}", "torch": str(torch.__version__)}
    return {"name": name, **made}


def kernel_sections(
    kernels: Mapping[str, bytes],
    objects: Sequence[CodeObject],
    levels: Sequence[int] | None = None,
) -> list[container.Section]:
    """Generated kernels as code for processors of each level, and as data for all others.

    Unless levels are given, they are those of the processors that the code ran on.
    """
    if not kernels:
        return []
    if levels is None:
        levels = sorted({each.processor for each in objects})
    described = container.section(container.KERNEL_IR, kernels_section(kernels))
    code = [
        (processor, held) for processor in levels for held in _code_for(processor, kernels, objects)
    ]
    return [code_section(code), described] if code else [described]


def _levels(targets: str | Sequence[str]) -> list[int]:
    """The levels of processors by name, as code sections number them."""
    from dovetail.codegen.llvm.target import named

    names = [targets] if isinstance(targets, str) else targets
    return sorted({PROCESSORS[named(name).name] for name in names})


def _code_for(
    processor: int, kernels: Mapping[str, bytes], objects: Sequence[CodeObject]
) -> Iterator[bytes]:
    """The code that ran on a processor; what did not run on one is generated for it."""
    ran = [each for each in objects if each.processor == processor]
    yield from dict.fromkeys(each.code for each in ran)
    missing = kernels.keys() - frozenset().union(*(each.kernels for each in ran))
    if missing:
        from dovetail.backends.cpu.code import scheduled
        from dovetail.codegen.llvm.module import generate
        from dovetail.file.kernel_decode import decode_kernels
        from dovetail.ir.target import TARGETS

        bodies = {name: body for name, body in kernels.items() if name in missing}
        decoded = decode_kernels(kernels_section(bodies))
        target = TARGETS[processor_name(processor)]
        kernels_here = {kernel.name: kernel for kernel in decoded}
        yield generate(scheduled(kernels_here, target), target)


def pack(model: ModelInterface, linked: Linked, without_torch: bool = False) -> Package:
    """A compiled model as one program, and what goes with it."""
    return _Packer(model, linked, without_torch).pack()


@dataclass(frozen=True)
class _Given:
    """One input of the graph: a user's argument, or a tensor the artifact holds."""

    kind: str  # "user", "constant", "state"
    key: str
    tensor: torch.Tensor | None = None


class _Packer:
    """Walks over a compiled graph and joins all of its segments into one program."""

    def __init__(self, model: ModelInterface, linked: Linked, without_torch: bool) -> None:
        self.model = model
        self.part, self.given = _graph_inputs(model, linked)
        self.lowering = DeviceLowering(lambda _: without_torch)
        self.lowering.held = self._held
        self.inliner = Inliner(self.lowering)
        self.programs = {s.compiled.name: p for s in self.part.segments if (p := _program_of(s))}
        if without_torch:
            self._compile_alone()
            self._check_native()
        self.tensors: dict[str, torch.Tensor] = {}
        self.state: dict[str, str] = {}  # key → buffer
        self.users: dict[int, str] = {}  # position among the user's leaves → buffer
        self.numbers: dict[str, str] = {}  # symbol → the buffer whose value it is

    def pack(self) -> Package:
        self._check_devices()
        symbols = self._inputs()
        for linked in self.part.segments:
            self._segment(linked)
        outputs = list(self.part.compiled.outputs)
        writes = self.model.writes
        results = [self.lowering.result(out) for out in outputs[len(writes) :]]
        for (kind, key), value in zip(writes, outputs, strict=False):
            if not isinstance(value, Ref):
                raise CannotSave("a write of something that is no tensor")
            self.lowering.store(self.state[key] if kind == "state" else self.users[int(key)], value)
        descs = {held: self.lowering.buffers[held].desc for held in self.tensors}
        self.lowering.drop_unused_constants(results)
        guards = tuple(self.inliner.guards)
        lowered = self.lowering.program(self.model.name, results, symbols, guards)
        contents: dict[str, bytes | memoryview] = {
            name: tensor_bytes(tensor, descs[name]) for name, tensor in self.tensors.items()
        }
        contents |= {n: scalar_bytes(*scalar) for n, scalar in lowered.scalars.items()}
        contents |= self.inliner.contents
        contents |= {n: contents[held] for n, held in self.lowering.shared.items()}
        contents |= self.lowering.packed
        contents = {n: data for n, data in contents.items() if n in lowered.program.by_name}
        return Package(
            lowered.program,
            contents,
            self._manifest(lowered.program, results),
            self.lowering.blobs,
            self.inliner.kernels,
            tuple(self.inliner.objects),
        )

    # ---- inputs ----------------------------------------------------------------------------

    def _check_devices(self) -> None:
        for given, source in zip(self.part.compiled.inputs, self.given, strict=True):
            device = given.desc.device if isinstance(given.desc, TensorDesc) else "cpu"
            if device != "cpu":
                what = "an input" if source.kind == "user" else "a constant"
                raise CannotSave(f"{what} on {device}: move the model to the CPU and export again")

    def _inputs(self) -> list[Symbol]:
        part = self.part.compiled
        user = 0
        for given, source in zip(part.inputs, self.given, strict=True):
            key = (given.name, ())
            if source.kind == "user":
                if isinstance(given.desc, ScalarDesc) and symbols_of(given.desc.size or 0):
                    self.users[user] = self._number(given.name, given.desc)
                if isinstance(given.desc, TensorDesc):
                    made = ProgramSource(given.name, "input", given.desc)
                    self.users[user] = self.lowering.source(made, key)
                user += 1
                continue
            assert isinstance(given.desc, TensorDesc)
            assert source.tensor is not None
            name = self.lowering.source(ProgramSource(given.name, source.kind, given.desc), key)
            self.tensors[name] = source.tensor
            if source.kind == "state":
                self.state[source.key] = name
        for constant, value in part.constants.items():
            self._graph_constant(constant, value)
        return self._symbols()

    def _held(self, name: str) -> bytes:
        """The bytes of a constant."""
        return bytes(tensor_bytes(self.tensors[name], self.lowering.buffers[name].desc))

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
        self.tensors[self.lowering.source(ProgramSource(name, "constant", desc), (name, ()))] = (
            value
        )

    def _symbols(self) -> list[Symbol]:
        found: dict[str, Symbol] = {}
        for name in self.users.values():
            for symbol in input_symbols(name, self.lowering.buffers[name].desc):
                found.setdefault(symbol.name, symbol)
        for symbol_name, buffer in self.numbers.items():
            found.setdefault(symbol_name, Symbol(symbol_name, buffer, VALUE))
        ranges = self.model.guards.ranges
        made = []
        for symbol in found.values():
            least = -(2**63) if symbol.axis == VALUE else 0
            low, high = ranges.get(symbol.name, (least, None))
            top = 2**63 - 1 if high is None else high
            made.append(replace(symbol, low=max(low, least), high=top))
        return made

    # ---- segments --------------------------------------------------------------------------

    def _segment(self, linked: LinkedSegment) -> None:
        compiled, values = linked.compiled, self.lowering.values
        for given, source in zip(compiled.segment.inputs, compiled.sources, strict=True):
            if source in values:
                values[given.name, ()] = values[source]
        if compiled.name in self.programs:
            self.inliner.append(self.programs[compiled.name])
        elif linked.backend.name in (*HOST_BACKENDS, *PROGRAM_BACKENDS):
            for call in compiled.segment.calls:
                self.lowering.call(call)
        else:
            self.lowering.segment(compiled, linked.backend)
        # A result that was laid out anew has another name inside its segment.
        for out, key in zip(compiled.segment.outputs, compiled.results, strict=True):
            if isinstance(out, Ref) and (out.name, out.path) in values:
                values.setdefault(key, values[out.name, out.path])

    def _compile_alone(self) -> None:
        """Compile anew what leaves calls to PyTorch that the runtime has no kernel for."""
        for linked in self.part.segments:
            name, segment = linked.compiled.name, linked.compiled.segment
            program = self.programs.get(name)
            if program is not None and any(isinstance(match(c), str) for c in program.host_calls()):
                alone = linked.backend.alone()
                blob = alone.compile(alone.pack(segment, frozenset()))
                if blob.data.startswith(container.MAGIC):
                    self.programs[name] = SegmentProgram(segment, blob.data)

    def _check_native(self) -> None:
        """CannotSave where calls would be left to PyTorch, with all of them."""
        reasons = {c.op: r for c in self._host_calls() if isinstance(r := match(c), str)}
        if reasons:
            raise CannotSave(needs_torch(reasons, self.model.traces))

    def _host_calls(self) -> Iterator[OpCall]:
        for linked in self.part.segments:
            if linked.compiled.name in self.programs:
                yield from self.programs[linked.compiled.name].host_calls()
            elif linked.backend.name in (*HOST_BACKENDS, *PROGRAM_BACKENDS):
                yield from filter(is_computed, linked.compiled.segment.calls)

    # ---- manifest --------------------------------------------------------------------------

    def _manifest(self, program: Program, results: Sequence[Result]) -> dict[str, Any]:
        positions = {b.name: i for i, b in enumerate(program.inputs)}
        leaves = []
        for user, (_, _, constant) in enumerate(self.model.guards.inputs):
            name = self.users.get(user)
            leaves.append({"value": constant} if name is None else {"tensor": positions[name]})
        return {
            **_origin(program.name),
            "inputs": tree_of(self.model.in_spec, iter(leaves)),
            "outputs": tree_of(self.model.out_spec, iter(_output_leaves(results))),
            "symbols": [[s.name, positions[s.input], s.axis] for s in program.symbols],
        }


def _program_of(linked: LinkedSegment) -> SegmentProgram | None:
    """The Program that a segment was compiled to, if it was."""
    data = linked.compiled.blob.data
    if linked.backend.name not in PROGRAM_BACKENDS or not data.startswith(container.MAGIC):
        return None
    return SegmentProgram(linked.compiled.segment, data)


def _graph_inputs(model: ModelInterface, linked: Linked) -> tuple[LinkedPart, list[_Given]]:
    """The part that runs at every call, and what each of its inputs is."""
    given = [_Given(role.kind, role.key, model.tensors.get(role.key)) for role in model.roles]
    graph, parts = linked.graph, linked.parts
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


def tensor_bytes(tensor: torch.Tensor, desc: TensorDesc) -> memoryview:
    """A tensor's memory, laid out as its descriptor says."""
    strides = tuple(int(s) for s in desc.strides)  # type: ignore[arg-type]
    value = tensor.detach().resolve_conj().resolve_neg()
    if value.numel() == 0:
        return memoryview(b"")
    if value.device.type != "cpu":  # one that the graph holds
        raise CannotSave(
            f"a constant on {value.device}: move the model to the CPU and export again"
        )
    # What lies between the elements of a slice is none of the file's business.
    if tuple(value.stride()) != strides or not leaves_no_gap(value.shape, strides):
        value = copy_with_strides(value, strides)
    flat = value.as_strided((extent(value.shape, strides),), (1,), value.storage_offset())
    return memoryview(flat.view(torch.uint8).numpy()).cast("B")
