"""Segments of accelerators in a file: kernels of plug-ins, vendors' blobs, and copies.

A value is copied to where it is needed when it is first needed there, and once; a constant that a
device reads is a constant of that device, which a reader uploads once and keeps there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from dovetail.backends.plugin.backend import PluginBackend, code_of
from dovetail.backends.plugin.call import Description, describe, is_view, results
from dovetail.backends.plugin.segment import PluginSegment
from dovetail.errors import CannotSave
from dovetail.ir.affine import add
from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.program import (
    BlobCall,
    Buffer,
    Copy,
    KernelCall,
    Launch,
    Operand,
    PluginDevice,
    reads,
    writes,
)
from dovetail.ir.quantization import Quantization
from dovetail.ir.size import Dim, Size
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.to_program import Key, Lowering
from dovetail.lower.views import view_offsets
from dovetail.runtime.sized import PACKED, packed_numbers

if TYPE_CHECKING:
    from dovetail.backend import Backend
    from dovetail.compiled import CompiledSegment
    from dovetail.ir.segment import Segment

HOST = "cpu"
# Plug-in ABI 1.0 has all that a program with kernels asks of a plug-in, 1.3 what operands are
# beside what their buffers say.
LEAST_ABI, OPERANDS_ABI = 1 << 16, 1 << 16 | 3
CONSTANT_DATA = 4  # DVP_CONSTANT_DATA


@dataclass
class DeviceLowering(Lowering):
    """Builds a Program whose values may lie on devices; all that the base class does is host's."""

    copies: dict[tuple[str, str], str] = field(default_factory=dict)  # (buffer, device) → buffer
    shared: dict[str, str] = field(default_factory=dict)  # constant of a device → the host's
    blobs: dict[str, bytes] = field(default_factory=dict)
    held: Callable[[str], bytes] | None = None  # the bytes of a constant of the host
    packed: dict[str, bytes] = field(default_factory=dict)  # those of constants of devices
    replaced: set[str] = field(default_factory=set)  # constants that such were made of

    def segment(self, compiled: CompiledSegment, backend: Backend) -> None:
        """Append a segment that a backend compiled for an accelerator."""
        if isinstance(backend, PluginBackend):
            _PluginLowering(self, backend).segment(compiled)
        else:
            self._vendor(backend, compiled)

    def _name(self, ref: Arg) -> str:
        return self.bring(super()._name(ref), HOST)

    def place_of(self, ref: Ref) -> str:
        """The buffer of a value, wherever it is."""
        return super()._name(ref)

    def store(self, target: str, value: Ref) -> None:
        """Write a value back: from where it is, so that state may stay on the device."""
        name = self.place_of(value)
        to, source = self.buffers[target].desc, self.buffers[name].desc
        if to.shape == source.shape and to.strides == source.strides and to.dtype == source.dtype:
            self.emit(Copy(target, name))
        else:
            super().store(target, value)

    # ---- copies ----------------------------------------------------------------------------

    def bring(self, name: str, device: str) -> str:
        """The same value on a device, copied there if it is not there yet."""
        if self.buffers[name].desc.device == device:
            return name
        if (name, device) not in self.copies:
            self.copies[name, device] = self._bring(self.buffers[name], device)
        return self.copies[name, device]

    def _bring(self, buffer: Buffer, device: str) -> str:
        desc = replace(buffer.desc, device=device)
        if HOST not in (device, buffer.desc.device):
            return self.bring(self.bring(buffer.name, HOST), device)
        if buffer.kind == "view" and self._goes_as_a_whole(buffer):
            base = self.bring(buffer.of, device)
            return self.declare(_on(buffer.name, device), "view", desc, base, buffer.offset)
        if buffer.kind == "constant":
            made = self.declare(_on(buffer.name, device), "constant", desc)
            self.shared[made] = buffer.name
            return made
        if _repeats(buffer.desc):
            return self.bring(self._dense(buffer), device)
        made = self.declare(_on(buffer.name, device), "temporary", desc)
        self.emit(Copy(made, buffer.name))
        return made

    def _goes_as_a_whole(self, view: Buffer) -> bool:
        """Whether all of a view's base is copied: it is a constant, or the view leaves gaps."""
        return self.buffers[view.of].kind == "constant" or not _is_dense(view.desc)

    def _dense(self, buffer: Buffer) -> str:
        """A host value that repeats elements, written out."""
        shape = buffer.desc.shape
        desc = TensorDesc(buffer.desc.dtype, shape, contiguous_strides(shape), HOST)
        made = self.declare(f"{buffer.name}_dense", "temporary", desc)
        self.emit(KernelCall("copy@1", (made,), (buffer.name,)))
        return made

    # ---- whole segments of backends in Python ----------------------------------------------

    def _vendor(self, backend: Backend, compiled: CompiledSegment) -> None:
        """A blob that the backend itself loads and runs on the host."""
        segment, blob = compiled.segment, compiled.blob
        if not blob.is_portable:
            raise CannotSave(
                f"{segment.name} is compiled by the backend {backend.name!r}, whose code a file "
                "cannot carry: it is an object of this process, not bytes; export with "
                "backend='portable'"
            )
        args = tuple(self._blob_argument(i.name, i.kind, i.desc) for i in segment.inputs)
        outputs = []
        for out in segment.outputs:
            if isinstance(out, Ref) and isinstance(out.desc, TensorDesc):
                outputs.append(self.declare(out.name, "host", out.desc))
                self.values[out.name, out.path] = outputs[-1]
            else:
                outputs.append("")
        self.emit(BlobCall(self.keep(segment, blob.data), backend.name, tuple(outputs), args))

    def _blob_argument(self, name: str, kind: str, desc: object) -> Arg:
        if kind == "size":
            return Size.symbol(name)
        if not isinstance(desc, TensorDesc):
            raise CannotSave(f"a compiled segment takes %{name}, which is no tensor")
        return Ref(self._name(Ref(name, desc)))

    def keep(self, segment: Segment, data: bytes) -> str:
        """Hold a vendor's bytes for the file; the name of the blob comes back."""
        name, number = segment.name, 1
        while name in self.blobs:
            name, number = f"{segment.name}_{number}", number + 1
        self.blobs[name] = data
        return name

    def drop_unused_constants(self, results: Iterable[object]) -> None:
        """Forget the host's copy of constants that only devices read."""
        used = {n for i in self.instructions for n in (*reads(i), *writes(i))}
        used |= {name for name in results if isinstance(name, str)}
        for buffer in list(self.buffers.values()):
            if buffer.kind == "view" and buffer.of in self.replaced and buffer.name not in used:
                self.buffers.pop(buffer.name)
        used |= {buffer.of for buffer in self.buffers.values()}
        for name in {*self.shared.values(), *self.replaced}:
            if name not in used:
                self.buffers.pop(name, None)


class _PluginLowering:
    """One segment on a plug-in's device."""

    def __init__(self, lowering: DeviceLowering, backend: PluginBackend) -> None:
        self.lowering, self.backend, self.library = lowering, backend, backend.opened
        self.device = self.library.name
        self.bases: dict[Key, Ref] = {}  # constants of four bits, by views of them
        if self.device not in {d.name for d in lowering.devices}:
            lowering.devices.append(PluginDevice(self.device, self.library.version, LEAST_ABI))

    def segment(self, compiled: CompiledSegment) -> None:
        """Kernel by kernel, or as the bytes that the plug-in compiled."""
        segment = self.backend.folded(compiled.segment)
        compiler = PluginSegment(self.library, segment)
        code, absorbed = self._with_contents(segment, compiler, code_of(compiled.blob))
        if code is not None:
            self._whole(segment, compiler, code, absorbed)
            return
        for call in segment.calls:
            if is_view(call):
                self._view(call)
            else:
                self._launch(call)

    def _view(self, call: OpCall) -> None:
        """A window on the argument, on the side where that is."""
        offsets = view_offsets(call)
        given = call.args[0]
        if offsets is None or not isinstance(given, Ref) or not isinstance(call.output, TensorDesc):
            raise CannotSave(f"{call.op} looks at memory in a way that a file cannot express")
        if call.output.dtype in PACKED:
            self.bases[call.name, ()] = self.bases.get((given.name, given.path), given)
            return
        lowering = self.lowering
        base = lowering.buffers[lowering.place_of(given)]
        self._window(call, base, call.output, offsets[0])

    def _window(self, call: OpCall, base: Buffer, shown: TensorDesc, offset: int | Size) -> None:
        desc = replace(shown, device=base.desc.device)
        inner = base.kind == "view"
        owner, start = (base.of, add(base.offset, offset)) if inner else (base.name, offset)
        made = self.lowering.declare(call.name, "view", desc, owner, start)
        self.lowering.values[call.name, ()] = made

    def _launch(self, call: OpCall) -> None:
        supported, _, kernel, least, most, reason = self.library.native.query(*describe(call))
        if not supported or kernel is None:
            raise CannotSave(f"the plug-in {self.device!r} refuses {call.op}: {reason}")
        refs: list[Ref | None] = []

        def operand(ref: Ref) -> str:
            refs.append(ref)
            return ""

        given = describe(call, operand, lambda size: size, ())
        held = iter(refs)
        inputs = [None if name is None else next(held) for name in given[1]]
        names, operands = self._operands(call, inputs, given)
        outputs = tuple(self._result(call, path, desc) for path, desc in results(call.output))
        versions = f"{least}-{most}" if most else f"{least}"
        plain = tuple((name, value) for name, value, _ in given[3])
        what = f"{kernel}@{versions}", call.op, outputs, names, plain
        self.lowering.emit(Launch(self.device, *what, operands, given[4]))

    def _operand(self, ref: Ref) -> str:
        return self.lowering.bring(self.lowering.place_of(ref), self.device)

    # ---- operands that are more than their buffers say -------------------------------------

    def _operands(
        self, call: OpCall, refs: Sequence[Ref | None], given: Description
    ) -> tuple[tuple[str, ...], tuple[Operand, ...]]:
        """The buffers of a launch's inputs, and what those are beside what their buffers say."""
        hidden = len(refs) - given[4]
        packed = {n: self._packed(call, n, ref) for n, ref in enumerate(refs[:hidden]) if ref}
        names = [
            "" if ref is None else made[0] if (made := packed.get(n)) else self._operand(ref)
            for n, ref in enumerate(refs)
        ]
        found = {n: made[1] for n, made in packed.items() if made is not None}
        descs = [ref.desc if ref is not None else None for ref in refs[:hidden]]
        all_descs = (*descs, *(desc for _, desc in results(call.output)))
        for operand, *_, scales, zeros, _, _, _, _ in given[5]:
            desc = all_descs[operand]
            assert isinstance(desc, TensorDesc)
            for place in (scales, zeros):
                if place >= 0:
                    found[place] = self._blocks(names[place], place, desc)
            at = operand if operand < hidden else operand + given[4]
            held = _with_buffers(desc, names[scales], names[zeros])
            found[at] = replace(found.get(at, Operand(at)), quantization=held)
        if found:
            self._require_operands()
        return tuple(names), tuple(found[place] for place in sorted(found))

    def _require_operands(self) -> None:
        devices = self.lowering.devices
        for n, device in enumerate(devices):
            if device.name == self.device:
                devices[n] = replace(device, abi=OPERANDS_ABI)

    def _blocks(self, name: str, place: int, desc: TensorDesc) -> Operand:
        """Scales as a tensor of the rank of the one that they are of."""
        assert desc.quantization is not None
        held = self.lowering.buffers[name].desc
        sizes = tuple(d if isinstance(d, int) else 1 for d in desc.shape)
        strides = [int(s) for s in held.strides if isinstance(s, int)]
        return Operand(place, held.dtype, *desc.quantization.spread(sizes, strides))

    def _packed(self, call: OpCall, place: int, ref: Ref) -> tuple[str, Operand] | None:
        """A constant as a file holds it for this device; None where it is as PyTorch has it."""
        desc = ref.desc
        if not isinstance(desc, TensorDesc) or not desc.is_static:
            return None
        base = self.lowering.place_of(self.bases.get((ref.name, ref.path), ref))
        view = self.lowering.buffers[base]
        root = self.lowering.buffers[view.of] if view.kind == "view" else view
        if self.lowering.held is None or root.kind != "constant" or root.desc.device != HOST:
            return None
        data = self.lowering.held(root.name)
        shape, strides = _numbers(desc.shape), _numbers(desc.strides)
        if desc.dtype in PACKED:
            numbers = torch.frombuffer(bytearray(data), dtype=getattr(torch, root.desc.dtype))
            data, start = packed_numbers(numbers, desc.dtype).numpy().tobytes(), 0
        else:
            start = sum(_numbers((view.offset,))) * item_bytes(desc.dtype)
        own = self.library.native.pack(describe(call), place, data, start)
        if own is None and desc.dtype not in PACKED:
            return None
        self.lowering.replaced.add(root.name)
        name = self._bytes(root.name, data if own is None else own)
        return name, Operand(place, desc.dtype, shape, strides, own is not None)

    def _bytes(self, name: str, data: bytes) -> str:
        """A constant of the device that is bytes, each contents once."""
        lowering = self.lowering
        desc = TensorDesc("uint8", (len(data),), (1,), self.device)
        for known, held in lowering.packed.items():
            if held == data and lowering.buffers[known].desc == desc:
                return known
        made = lowering.declare(f"{_on(name, self.device)}_packed", "constant", desc)
        lowering.packed[made] = data
        return made

    def _result(self, call: OpCall, path: tuple[int, ...], desc: object) -> str:
        if desc is None:
            return ""
        if not isinstance(desc, TensorDesc):
            raise CannotSave(f"{call.op} has a result that is no tensor")
        return self._new(call.name, path, desc)

    def _new(self, name: str, path: tuple[int, ...], desc: TensorDesc) -> str:
        """Memory on the device for a value."""
        label = "_".join([name, *map(str, path)])
        on_device = replace(desc, device=self.device)
        made = self.lowering.declare(label, "temporary", on_device)
        self.lowering.values[name, path] = made
        return made

    # ---- compiled as a whole ---------------------------------------------------------------

    def _with_contents(
        self, segment: Segment, compiler: PluginSegment, code: bytes | None
    ) -> tuple[bytes | None, frozenset[int]]:
        """Code that holds the contents of constants, for a plug-in whose compiler uses them."""
        held, lowering = self.lowering.held, self.lowering
        if held is None or not self.library.flags & CONSTANT_DATA:
            return code, frozenset()
        read = held

        def contents(position: int) -> bytes | None:
            buffer = lowering.buffers[lowering.place_of(segment.inputs[position].ref)]
            known = buffer.kind == "constant" and buffer.desc.device == HOST
            if known:
                lowering.replaced.add(buffer.name)
            return read(buffer.name) if known else None

        made = compiler.compile(contents)
        if made is None:
            return code, frozenset()
        if made.absorbed:
            self._require_operands()
        return made

    def _whole(
        self, segment: Segment, compiler: PluginSegment, code: bytes, absorbed: frozenset[int]
    ) -> None:
        """One call; inputs and outputs in the order in which the plug-in compiled them."""
        args = tuple(
            None if n in absorbed else Ref(self._operand(segment.inputs[n].ref))
            for n in compiler.sent
        )
        descs = {
            (call.name, path): desc for call in segment.calls for path, desc in results(call.output)
        }
        owners = _owners(segment, compiler.fetched())
        outputs = []
        for name, path in owners:
            desc = descs[name, path]
            assert isinstance(desc, TensorDesc)
            outputs.append(self._new(name, path, desc))
        blob = self.lowering.keep(segment, code)
        self.lowering.emit(BlobCall(blob, self.device, tuple(outputs), args))
        for call in segment.calls:
            if is_view(call) and (call.args[0].name, call.args[0].path) in self.lowering.values:
                self._view(call)


def _numbers(dims: Sequence[Dim]) -> tuple[int, ...]:
    """Sizes of a constant, which are known."""
    return tuple(d for d in dims if isinstance(d, int))


def _with_buffers(desc: TensorDesc, scales: str, zeros: str) -> Quantization:
    """What a tensor stands for, with the buffers of its scales."""
    given = desc.quantization
    assert given is not None
    scale = Ref(scales) if isinstance(given.scale, Ref) else given.scale
    zero = Ref(zeros) if isinstance(given.zero_point, Ref) else given.zero_point
    return replace(given, scale=scale, zero_point=zero)


def _owners(segment: Segment, fetched: Sequence[Arg]) -> list[Key]:
    """The values whose memory the outputs look at, each once."""
    base: dict[Key, Key] = {}
    for call in segment.calls:
        if is_view(call):
            given = (call.args[0].name, call.args[0].path)
            base[call.name, ()] = base.get(given, given)
    found = [(out.name, out.path) for out in fetched if isinstance(out, Ref)]
    return list(dict.fromkeys(base.get(key, key) for key in found))


def _on(name: str, device: str) -> str:
    return f"{name}_on_{'host' if device == HOST else device}"


def _is_dense(desc: TensorDesc) -> bool:
    """Whether elements fill their memory without gaps or repeats, as far as is known."""
    if desc.strides == contiguous_strides(desc.shape):
        return True
    axes = zip(desc.strides, desc.shape, strict=True)
    pairs = [(s, n) for s, n in axes if isinstance(s, int) and isinstance(n, int)]
    if len(pairs) < desc.rank:
        return False
    expected = 1
    for stride, size in sorted(pairs):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _repeats(desc: TensorDesc) -> bool:
    """Whether one element of memory is shown at several places."""
    return any(s == 0 and n != 1 for n, s in zip(desc.shape, desc.strides, strict=True))
