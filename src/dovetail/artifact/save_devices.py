"""Segments of accelerators in a file: kernels of plug-ins, vendors' blobs, and copies.

A value is copied to where it is needed when it is first needed there, and once; a constant that a
device reads is a constant of that device, which a reader uploads once and keeps there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from dovetail.backends.plugin.backend import PluginBackend, code_of
from dovetail.backends.plugin.call import describe, is_view, results
from dovetail.backends.plugin.segment import PluginSegment
from dovetail.errors import CannotSave
from dovetail.ir.affine import add
from dovetail.ir.call import Arg, OpCall, Ref
from dovetail.ir.program import (
    BlobCall,
    Buffer,
    Copy,
    KernelCall,
    Launch,
    PluginDevice,
    reads,
    writes,
)
from dovetail.ir.size import Size
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.lower.to_program import Key, Lowering
from dovetail.lower.views import view_offsets

if TYPE_CHECKING:
    from dovetail.backend import Backend
    from dovetail.compiled import CompiledSegment
    from dovetail.ir.segment import Segment
    from dovetail.runtime.plugins import Library

HOST = "cpu"
# Plug-in ABI 1.0 has all that a program with kernels asks of a plug-in.
LEAST_ABI = 1 << 16


@dataclass
class DeviceLowering(Lowering):
    """Builds a Program whose values may lie on devices; all that the base class does is host's."""

    copies: dict[tuple[str, str], str] = field(default_factory=dict)  # (buffer, device) → buffer
    shared: dict[str, str] = field(default_factory=dict)  # constant of a device → the host's
    blobs: dict[str, bytes] = field(default_factory=dict)

    def segment(self, compiled: CompiledSegment, backend: Backend) -> None:
        """Append a segment that a backend compiled for an accelerator."""
        if isinstance(backend, PluginBackend):
            _PluginLowering(self, backend.opened).segment(compiled)
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

    def drop_unused_constants(self) -> None:
        """Forget the host's copy of constants that only devices read."""
        used = {n for i in self.instructions for n in (*reads(i), *writes(i))}
        used |= {buffer.of for buffer in self.buffers.values()}
        for name in self.shared.values():
            if name not in used:
                self.buffers.pop(name, None)


class _PluginLowering:
    """One segment on a plug-in's device."""

    def __init__(self, lowering: DeviceLowering, library: Library) -> None:
        self.lowering, self.library = lowering, library
        self.device = library.name
        if self.device not in {d.name for d in lowering.devices}:
            lowering.devices.append(PluginDevice(self.device, library.version, LEAST_ABI))

    def segment(self, compiled: CompiledSegment) -> None:
        """Kernel by kernel, or as the bytes that the plug-in compiled."""
        segment = compiled.segment
        code = code_of(compiled.blob)
        if code is not None:
            self._whole(segment, PluginSegment(self.library, segment, code), code)
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
        _, inputs, _, attributes = describe(call, self._operand, lambda size: size, ())
        outputs = tuple(self._result(call, path, desc) for path, desc in results(call.output))
        versions = f"{least}-{most}" if most else f"{least}"
        given = tuple(name or "" for name in inputs)
        plain = tuple((name, value) for name, value, _ in attributes)
        launch = Launch(self.device, f"{kernel}@{versions}", call.op, outputs, given, plain)
        self.lowering.emit(launch)

    def _operand(self, ref: Ref) -> str:
        return self.lowering.bring(self.lowering.place_of(ref), self.device)

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

    def _whole(self, segment: Segment, compiler: PluginSegment, code: bytes) -> None:
        """One call; inputs and outputs in the order in which the plug-in compiled them."""
        args = tuple(Ref(self._operand(segment.inputs[n].ref)) for n in compiler.sent)
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
