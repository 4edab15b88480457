"""A segment's Program as part of the model's: its buffers renamed, its kernels and code kept.

What ran is what is written. Only calls that PyTorch served may be replaced, by kernels of the
runtime's own, for files that are to do without it; what it has none for is compiled anew
(``save.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from dovetail.artifact.save_devices import HOST, DeviceLowering
from dovetail.errors import CannotSave
from dovetail.file import container
from dovetail.file.decode import Decoded, decode_artifact
from dovetail.file.kernel_decode import split_kernels
from dovetail.file.objects import objects
from dovetail.ir.affine import add
from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.in_place import is_in_place
from dovetail.ir.program import (
    VALUE,
    Buffer,
    Copy,
    Guard,
    HostCall,
    Instruction,
    KernelCall,
    Program,
)
from dovetail.ir.real import Real, as_real
from dovetail.ir.segment import Input, Segment
from dovetail.ir.size import Dim, Size, parse_size, substitute
from dovetail.ir.strides import same_dims
from dovetail.ir.tensor import Desc, TensorDesc
from dovetail.runtime.executable import ManifestEntry, SegmentInterface


@dataclass(frozen=True)
class CodeObject:
    """Object code that ran: the number of its processor, and the kernels that it has."""

    processor: int
    code: bytes
    kernels: frozenset[str]


class SegmentProgram:
    """The Program of a compiled segment, and what goes with it into a file."""

    def __init__(self, segment: Segment, data: bytes) -> None:
        self.segment = segment
        self.decoded: Decoded = decode_artifact(data, segment.name)
        self.interface = SegmentInterface.read(self.decoded.manifest)
        self.sizes = self._symbols()
        self.program = _with_sizes(self.decoded.program, self.dim)
        sections = self.decoded.sections
        self.kernels: dict[str, bytes] = {}
        self.objects: list[CodeObject] = []
        if container.CODE not in sections:
            return
        if container.KERNEL_IR not in sections:
            why = self.decoded.manifest.get("cannot_save", "its kernel IR is not there")
            raise CannotSave(f"{segment.name} has a generated kernel that no file can hold: {why}")
        self.kernels = split_kernels(sections[container.KERNEL_IR])
        held = frozenset(self.kernels)
        self.objects = [CodeObject(n, code, held) for n, code in objects(sections[container.CODE])]

    def _symbols(self) -> dict[str, Dim]:
        """What the segment calls the program's symbols: it may be of a segment like this one."""
        program, inputs = self.decoded.program, self.segment.inputs
        given = dict(zip((b.name for b in program.inputs), self.interface.given, strict=True))
        return {s.name: _size_of(inputs[given[s.input]], s.axis) for s in program.symbols}

    def dim(self, dim: Dim | str) -> Dim:
        """A size of the program or of its manifest, of the segment's symbols."""
        return substitute(parse_size(dim) if isinstance(dim, str) else dim, self.sizes)

    def dims(self, dims: Iterable[Dim | str]) -> tuple[Dim, ...]:
        """Several sizes."""
        return tuple(map(self.dim, dims))

    def host_calls(self) -> Iterator[OpCall]:
        """What PyTorch serves, as calls."""
        for number, instruction in enumerate(self.program.instructions):
            if isinstance(instruction, HostCall):
                yield self.as_call(instruction, f"{self.segment.name}_{number}")

    def as_call(self, host: HostCall, name: str) -> OpCall:
        """A host call as the call it was compiled from, of buffers of the program."""
        args = tuple(map(self._described, host.args))
        kwargs = {key: self._described(arg) for key, arg in host.kwargs.items()}
        call = OpCall(name, host.op, args, kwargs)
        descs = [self.program.by_name[n].desc if n else None for n in host.outputs]
        if not all(descs):  # nobody needs a result, so that no buffer describes it
            return replace(call, output=self._output_like(call))
        return replace(call, output=descs[0] if len(descs) == 1 else tuple(descs))

    def _described(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(arg.name, self.program.by_name[arg.name].desc)
        return tuple(map(self._described, arg)) if isinstance(arg, tuple) else arg

    def _output_like(self, call: OpCall) -> Desc:
        """The results of a call: those of any of the segment's calls with operands like its."""
        for other in self.segment.calls:
            if (other.op, other.inputs) == (call.op, call.inputs):
                return other.output
        raise CannotSave(f"the results of {call.op} are not known")


class Inliner:
    """Appends the programs of segments to that of the model.

    ``is_native`` of the lowering says which calls the runtime's own kernels serve.
    """

    def __init__(self, lowering: DeviceLowering) -> None:
        self.lowering = lowering
        self.contents: dict[str, bytes] = {}
        self.kernels: dict[str, bytes] = {}
        self.objects: dict[CodeObject, None] = {}
        self.guards: dict[Guard, None] = {}
        self._constants: dict[tuple[TensorDesc, bytes], str] = {}

    def append(self, part: SegmentProgram) -> None:
        """Append one segment, whose inputs the lowering knows under the segment's names."""
        for name, body in part.kernels.items():
            if self.kernels.setdefault(name, body) != body:
                raise CannotSave(f"two generated kernels have the name {name}")
        self.objects |= dict.fromkeys(part.objects)
        self.guards |= dict.fromkeys(part.program.guards)
        _Inlining(self, part).run()

    def constant(self, buffer: Buffer, data: bytes) -> str:
        """A constant of a segment's own: a number, which the model holds once."""
        key = buffer.desc, data
        if key not in self._constants:
            made = self.lowering.declare(buffer.name, "constant", buffer.desc)
            self._constants[key], self.contents[made] = made, data
        return self._constants[key]


class _Inlining:
    """One segment: which buffer of the model stands for each of its own."""

    def __init__(self, inliner: Inliner, part: SegmentProgram) -> None:
        self.inliner, self.lowering, self.part = inliner, inliner.lowering, part
        self.program, self.given = part.program, part.interface.given
        self.names: dict[str, str] = {}

    def run(self) -> None:
        for buffer, position in zip(self.program.inputs, self.given, strict=True):
            if self.part.segment.inputs[position].kind != "size":  # the model has its symbols
                self.names[buffer.name] = self._input(buffer, position)
        for number, instruction in enumerate(self.program.instructions):
            self._append(instruction, number)
        outputs = zip(self.part.segment.outputs, self.part.interface.results, strict=True)
        for out, entry in outputs:
            if isinstance(out, Ref) and ("tensor" in entry or "input" in entry):
                self.lowering.values[out.name, out.path] = self._result(entry)

    # ---- buffers ---------------------------------------------------------------------------

    def _held(self, position: int) -> str:
        """The model's buffer for an input of the segment, on the host."""
        name = self.part.segment.inputs[position].name
        try:
            return self.lowering.bring(self.lowering.values[name, ()], HOST)
        except KeyError:
            raise CannotSave(f"the program needs %{name}, which is no tensor") from None

    def _input(self, buffer: Buffer, position: int) -> str:
        held = self._held(position)
        lies, wanted = self.lowering.buffers[held].desc, buffer.desc
        if same_dims(lies.strides, wanted.strides):
            return held
        if same_dims(_moving(lies), _moving(wanted)):
            return self._window(f"{buffer.name}_laid", wanted, held, 0)
        return self._copied(held, buffer.name, wanted)

    def _copied(self, source: str, name: str, desc: TensorDesc) -> str:
        """A value laid out as the segment was compiled for."""
        expanded = [
            size != 1 and step == 0 for size, step in zip(desc.shape, desc.strides, strict=True)
        ]
        if any(expanded):  # what is one element in memory is copied once
            shape = tuple(1 if e else d for e, d in zip(expanded, desc.shape, strict=True))
            lies = self.lowering.buffers[source].desc
            first = self._window(f"{name}_first", replace(lies, shape=shape), source, 0)
            made = self._copied(first, name, replace(desc, shape=shape))
            return self._window(f"{name}_expanded", desc, made, 0)
        made = self.lowering.declare(f"{name}_laid", "temporary", desc)
        self.lowering.emit(Copy(made, source))
        return made

    def name(self, own: str) -> str:
        """The model's buffer for one of the program's, declared when it is first needed."""
        if own and own not in self.names:
            self.names[own] = self._declare(self.program.by_name[own])
        return self.names[own] if own else ""

    def _declare(self, buffer: Buffer) -> str:
        if buffer.kind == "constant":
            return self.inliner.constant(buffer, self.part.decoded.contents[buffer.name])
        if buffer.kind == "view":
            return self._window(buffer.name, buffer.desc, self.name(buffer.of), buffer.offset)
        # Which memory temporaries share is found anew for the whole, as is what is handed out.
        kind = "host" if buffer.kind == "host" else "temporary"
        return self.lowering.declare(buffer.name, kind, buffer.desc)

    def _window(self, name: str, desc: TensorDesc, of: str, offset: Dim) -> str:
        base = self.lowering.buffers[of]
        if base.kind == "view":
            of, offset = base.of, add(base.offset, offset)
        return self.lowering.declare(name, "view", desc, of, offset)

    def _result(self, entry: ManifestEntry) -> str:
        """The buffer of an output, which may be a window on another."""
        if "input" in entry:
            base = self._held(entry["input"])
        else:
            base = self.name(str(self.program.outputs[entry["tensor"]]))
        if "shape" not in entry:
            return base
        held = self.lowering.buffers[base].desc
        dims = self.part.dims
        strides = dims(entry.get("input_strides", ()))
        if strides and not same_dims(strides, held.strides):
            base = self._copied(base, base, replace(held, strides=strides, layout=None))
        shape, strides = dims(entry["shape"]), dims(entry["strides"])
        desc = replace(held, shape=shape, strides=strides, layout=None)
        return self._window(f"{base}_window", desc, base, self.part.dim(entry["offset"]))

    # ---- instructions ----------------------------------------------------------------------

    def _append(self, instruction: Instruction, number: int) -> None:
        match instruction:
            case KernelCall(kernel, outputs, inputs, attributes):
                given = tuple(map(self.name, inputs))
                made = KernelCall(kernel, tuple(map(self.name, outputs)), given, attributes)
                self._kernel(made)
            case Copy(target, source):
                self.lowering.emit(Copy(self.name(target), self.name(source)))
            case HostCall():
                self._host(instruction, f"{self.part.segment.name}_{number}")
            case _:
                raise CannotSave(f"{self.part.segment.name} holds {type(instruction).__name__}")

    def _kernel(self, call: KernelCall) -> None:
        """A kernel; the format has none that write where an input lies."""
        if not is_in_place(call):
            self.lowering.emit(call)
            return
        (target,) = call.outputs
        desc = replace(self.lowering.buffers[target].desc, layout=None)
        made = self.lowering.declare(f"{target}_written", "temporary", desc)
        self.lowering.emit(replace(call, outputs=(made,)))
        self.lowering.emit(Copy(target, made))

    def _host(self, host: HostCall, name: str) -> None:
        if self.lowering.is_native(call := self.part.as_call(host, name)):
            self._built_in(call, host.outputs)
            return
        args = tuple(map(self._argument, host.args))
        kwargs = {key: self._argument(arg) for key, arg in host.kwargs.items()}
        self.lowering.emit(HostCall(host.op, tuple(map(self.name, host.outputs)), args, kwargs))

    def _argument(self, arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(self.name(arg.name))
        return tuple(map(self._argument, arg)) if isinstance(arg, tuple) else arg

    def _built_in(self, call: OpCall, outputs: Sequence[str]) -> None:
        """A call that one of the runtime's own kernels serves."""
        operands = {ref.name: f"{call.name} {ref.name}" for ref in call.refs()}
        for own, key in operands.items():
            self.lowering.values[key, ()] = self.name(own)
        self.lowering.call(_renamed(call, operands))
        for path, own in enumerate(outputs):
            if not own:
                continue
            made = self.lowering.values[call.name, (path,) if len(outputs) > 1 else ()]
            desc = self.program.by_name[own].desc
            fits = same_dims(self.lowering.buffers[made].desc.strides, desc.strides)
            self.names[own] = made if fits else self._copied(made, own, desc)


def _moving(desc: TensorDesc) -> tuple[Dim, ...]:
    """The strides that matter: dimensions of one element have any."""
    return tuple(0 if d == 1 else s for d, s in zip(desc.shape, desc.strides, strict=True))


def _renamed(call: OpCall, names: dict[str, str]) -> OpCall:
    def renamed(arg: Arg) -> Arg:
        if isinstance(arg, Ref):
            return Ref(names[arg.name], arg.desc)
        return tuple(map(renamed, arg)) if isinstance(arg, tuple) else arg

    kwargs = {key: renamed(arg) for key, arg in call.kwargs.items()}
    return replace(call, args=tuple(map(renamed, call.args)), kwargs=kwargs)


def _size_of(given: Input, axis: int) -> Dim:
    """What a symbol that is read from an input stands for."""
    if axis == VALUE:
        return Size.symbol(given.name)
    assert isinstance(given.desc, TensorDesc)
    return given.desc.shape[axis]


def _with_sizes(program: Program, dim: Callable[[Dim], Dim]) -> Program:
    """A program with every size replaced."""

    def changed(arg: Arg) -> Arg:
        if isinstance(arg, Size):
            return dim(arg)
        if isinstance(arg, Real):
            return as_real(dim(arg.bits))
        return tuple(map(changed, arg)) if isinstance(arg, tuple) else arg

    def instruction(i: Instruction) -> Instruction:
        if isinstance(i, KernelCall):
            return replace(i, attributes=changed(i.attributes))
        if isinstance(i, HostCall):
            return replace(
                i, args=changed(i.args), kwargs={k: changed(v) for k, v in i.kwargs.items()}
            )
        return i

    def buffer(b: Buffer) -> Buffer:
        return replace(b, desc=b.desc.with_sizes(dim), offset=dim(b.offset))

    return replace(
        program,
        buffers=tuple(map(buffer, program.buffers)),
        instructions=tuple(map(instruction, program.instructions)),
        guards=tuple(Guard(dim(g.left), dim(g.right)) for g in program.guards),
    )
