"""Program: a compiled model as data. Buffers, and a linear list of instructions over them.

Nothing here knows the graph it came from. ``program_text`` prints and parses it,
``program_verify`` checks it, ``memory`` plans its arena, the artifact writer stores it, and the
C runtime (or ``testing.program_reference``) runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from dovetail.ir.call import Arg, Ref, leaves
from dovetail.ir.quantization import Quantization
from dovetail.ir.size import VALUE as VALUE
from dovetail.ir.size import Dim, Size
from dovetail.ir.tensor import TensorDesc

# input: given at each call. output: allocated at each call and handed out. constant: in the file.
# state: starts as in the file, kept from call to call. temporary: in the arena. host: made by a
# host operation, held until its last use, or handed out as a result. view: a window on another
# buffer, no memory of its own.
KINDS = ("input", "output", "constant", "state", "temporary", "host", "view")

# A number that a kernel takes: a literal, or a size computed at run time.
Attribute = int | float | Size
# What a program hands out: a buffer's name, a size, or a plain value.
Result = str | Dim | float | bool | None


@dataclass(frozen=True, slots=True)
class Buffer:
    """A tensor's place: what it holds, and whose memory it uses.

    A view starts ``offset`` elements into the buffer ``of``. A temporary with ``of`` takes over
    that temporary's memory at the instruction that writes it (an in-place operation).
    """

    name: str
    kind: str
    desc: TensorDesc
    of: str = ""
    offset: Dim = 0


@dataclass(frozen=True, slots=True)
class Symbol:
    """A size that differs from call to call: where it is read, and the values it may have.

    It is the size of a dimension of an input, or (axis ``VALUE``) the value of an int64 input of
    rank 0: a Python number that a caller passes. Only such a one may be negative.
    """

    name: str
    input: str
    axis: int
    low: int = 0
    high: int = 2**63 - 1


@dataclass(frozen=True, slots=True)
class Guard:
    """An equation that the sizes of a call must fulfil, such as ``s0 % 8 == 0``."""

    left: Dim
    right: Dim


@dataclass(frozen=True, slots=True)
class KernelCall:
    """A call of a kernel from the kernel table: ``name@version``."""

    kernel: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[Attribute, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCall:
    """A call of a functional ATen operator. An empty output name: a result nobody uses.

    An output is a host buffer, which the call makes, or a temporary or output, which it fills:
    matrix products are written there at once, other results are copied.
    """

    op: str
    outputs: tuple[str, ...]
    args: tuple[Arg, ...]
    kwargs: Mapping[str, Arg] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy one buffer's elements to another of the same shape and dtype."""

    target: str
    source: str


@dataclass(frozen=True, slots=True)
class Operand:
    """What an operand of a launch is beside what its buffer says.

    ``place`` counts inputs, then outputs. With a ``dtype`` it is a tensor of that description in
    the bytes of its buffer: of four bits, scales by blocks, or ``prepared``: a constant in the
    device's own layout. ``quantization`` names the buffers of scales.
    """

    place: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    prepared: bool = False
    quantization: Quantization | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel of a plug-in's device, called through the plug-in ABI.

    ``kernel`` is ``name@least`` or ``name@least-greatest``: the versions that would do. Inputs and
    attributes are those of the operator ``op``, as ``dovetail_plugin.h`` passes them; an empty
    name is an optional tensor that is not there. The last ``hidden`` inputs are scales and zero
    points of ``operands``.
    """

    device: str
    kernel: str
    op: str
    outputs: tuple[str, ...]
    inputs: tuple[str, ...]
    attributes: tuple[tuple[str, Arg], ...] = ()
    operands: tuple[Operand, ...] = ()
    hidden: int = 0


@dataclass(frozen=True, slots=True)
class BlobCall:
    """A call of a segment that a vendor compiled to bytes.

    ``owner`` is a device of the program, or else the name of a backend in Python that loads the
    bytes and runs on the host. Arguments are buffers (``Ref``) and sizes, in the segment's order.
    """

    blob: str
    owner: str
    outputs: tuple[str, ...]
    args: tuple[Arg, ...]


Instruction = KernelCall | HostCall | Copy | Launch | BlobCall


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device that a plug-in brings, and what a reader must find of it before it runs anything.

    ``version`` is the plug-in's when the program was made, for messages; ``abi`` the least
    plug-in ABI (major << 16 | minor); ``needs`` attributes of the device with their least values.
    """

    name: str
    version: str = ""
    abi: int = 1 << 16
    needs: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True)
class Program:
    """Buffers by declaration order, instructions by execution order."""

    name: str
    buffers: tuple[Buffer, ...]
    instructions: tuple[Instruction, ...]
    outputs: tuple[Result, ...]
    symbols: tuple[Symbol, ...] = ()
    guards: tuple[Guard, ...] = ()
    devices: tuple[PluginDevice, ...] = ()

    @cached_property
    def device_names(self) -> frozenset[str]:
        """The devices that plug-ins bring."""
        return frozenset(device.name for device in self.devices)

    @cached_property
    def by_name(self) -> dict[str, Buffer]:
        """Every buffer by its name."""
        return {buffer.name: buffer for buffer in self.buffers}

    @property
    def inputs(self) -> tuple[Buffer, ...]:
        """What a caller passes, in order."""
        return tuple(b for b in self.buffers if b.kind == "input")

    def root(self, name: str) -> Buffer:
        """The buffer whose memory ``name`` uses."""
        buffer = self.by_name[name]
        while buffer.of:
            buffer = self.by_name[buffer.of]
        return buffer

    def viewed(self, name: str) -> Buffer:
        """The buffer that a view looks at: views unfolded, in-place successors kept apart."""
        buffer = self.by_name[name]
        while buffer.kind == "view":
            buffer = self.by_name[buffer.of]
        return buffer

    def host_ops(self) -> tuple[str, ...]:
        """The ATen operators this program calls, each once."""
        return tuple(sorted({i.op for i in self.instructions if isinstance(i, HostCall)}))

    def kernels(self) -> tuple[str, ...]:
        """The kernels this program calls, each once, in order of first use."""
        calls = (i.kernel for i in self.instructions if isinstance(i, KernelCall))
        return tuple(dict.fromkeys(calls))

    def launches(self) -> tuple[str, ...]:
        """Every kernel call on a device, in order: ``device:kernel@version``."""
        calls = (i for i in self.instructions if isinstance(i, Launch))
        return tuple(f"{i.device}:{i.kernel}" for i in calls)

    def blob_backends(self) -> tuple[str, ...]:
        """The backends in Python that a process needs for the program's blobs, each once."""
        calls = (i.owner for i in self.instructions if isinstance(i, BlobCall))
        return tuple(dict.fromkeys(o for o in calls if o not in self.device_names))

    def __str__(self) -> str:
        from dovetail.ir.program_text import print_program

        return print_program(self)


def reads(instruction: Instruction) -> tuple[str, ...]:
    """The buffers whose contents an instruction needs."""
    if isinstance(instruction, Copy):
        return (instruction.source,)
    if isinstance(instruction, KernelCall):
        return instruction.inputs
    if isinstance(instruction, Launch):
        return tuple(name for name in instruction.inputs if name)
    return tuple(arg.name for arg in arguments(instruction) if isinstance(arg, Ref))


def arguments(instruction: Instruction) -> Iterator[Arg]:
    """What an instruction is given beside the buffers that it names, lists flattened."""
    match instruction:
        case KernelCall():
            yield from instruction.attributes
        case Launch():
            yield from leaves(tuple(value for _, value in instruction.attributes))
        case BlobCall():
            yield from leaves(instruction.args)
        case HostCall():
            yield from leaves((instruction.args, tuple(instruction.kwargs.values())))


def writes(instruction: Instruction) -> tuple[str, ...]:
    """The buffers an instruction fills or changes."""
    if isinstance(instruction, KernelCall):
        return instruction.outputs
    if isinstance(instruction, Copy):
        return (instruction.target,)
    return tuple(name for name in instruction.outputs if name)
