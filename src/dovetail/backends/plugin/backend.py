"""Backends in C: any library that implements ``native/include/dovetail_plugin.h``.

``dovetail.load_plugin("libmyaccel.so")`` registers the backend that a library implements. A
package that brings one declares a class instead, which loads nothing until it is used::

    class MyAccel(PluginBackend):
        name = "my_accel"
        library = Path(__file__).parent / "libmy_accel.so"
"""

from __future__ import annotations

import struct
from functools import cache, cached_property
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from dovetail import registry
from dovetail.backend import Availability, Backend, Blob, Executable, Support, Transfer
from dovetail.errors import (
    DovetailError,
    InvalidBackendName,
    InvalidPlugin,
    PluginFailed,
    UnsupportedGraph,
)
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.names import check_name
from dovetail.runtime.plugins import Library, open_library

if TYPE_CHECKING:
    from os import PathLike

    from dovetail.ir import OpCall, Segment


def load_plugin(
    path: str | PathLike[str], *, name: str | None = None, device: int = 0
) -> type[PluginBackend]:
    """Register the backend that a C library implements, under its own name or another.

    ``device`` is the number of one of its devices: each is a backend of its own, and the name of
    all but the first ends in the number, as in ``my_accel.1``. Loading the same file again gives
    the same backend.
    """
    backend = plugin_backend(path, name=name, device=device)
    registry.register_backend(backend)
    return backend


def plugin_backend(
    path: str | PathLike[str], *, name: str | None = None, device: int = 0
) -> type[PluginBackend]:
    """The backend that a C library implements, as a class that is registered nowhere."""
    library = open_library(path, device)
    own = library.name if device == 0 else f"{library.name}.{device}"
    try:
        return _backend_class(library.path, check_name(own if name is None else name), device)
    except InvalidBackendName as error:
        raise InvalidPlugin(f"the plug-in {library.path}: {error}") from None


@cache
def _backend_class(path: Path, name: str, device: int) -> type[PluginBackend]:
    given = {"path": str(path), "name": name, "device": device}
    made_by = f"{__name__}:plugin_backend", given
    members = {"name": name, "library": path, "made_by": made_by, "__doc__": f"{path}"}
    members["device_index"] = device
    return type(name, (PluginBackend,), members)


class PluginBackend(Backend):
    """A backend whose kernels, memory and device are a C library's.

    Operations that the library's ``query_op`` takes run on its device; views are made on the
    host, for they move nothing. Subclasses set ``name`` and ``library``.
    """

    library: ClassVar[str | Path]
    device_index: ClassVar[int] = 0

    @property
    def opened(self) -> Library:
        """The library, loaded on first use."""
        return open_library(self.library, self.device_index)

    @cached_property
    def transfer(self) -> Transfer:  # type: ignore[override]
        """What a copy costs, where the device says so; otherwise copies are counted as free.

        It says so by the attributes "transfer.latency_ns" and "transfer.bytes_per_second".
        """
        latency = self._attribute("transfer.latency_ns")
        rate = self._attribute("transfer.bytes_per_second")
        return Transfer(max(latency, 0) * 1e-9, rate if rate > 0 else inf)

    def _attribute(self, name: str) -> int:
        """An attribute of the device; 0 where it has none of this name."""
        try:
            return int(self.opened.native.get(name))
        except DovetailError:
            return 0

    def available(self) -> Availability:
        """Whether the library loads and its device opens."""
        try:
            self.opened.native.open()
        except DovetailError as error:
            return Availability(False, str(error))
        return Availability(True)

    def fingerprint(self) -> str:
        """The plug-in's name, version and interface, and a hash of its file."""
        library = self.opened
        abi = f"{library.abi >> 16}.{library.abi & 0xFFFF}"
        return f"{library.name} {library.version} abi {abi} {library.digest[:16]}"

    def supports(self, call: OpCall) -> Support:
        """What the library's ``query_op`` answers; a view is taken without asking."""
        from dovetail.backends.plugin.call import describe, is_view

        try:
            if is_view(call):
                return Support.yes()
            answer = self.opened.native.query(*describe(call))
        except (UnsupportedGraph, PluginFailed) as error:
            return Support.no(str(error))
        supported, cost, _, _, _, reason = answer
        return Support.yes(cost) if supported else Support.no(reason or "refused, with no reason")

    def keeps_whole(self, call: OpCall) -> bool:
        """Operators that the library has a kernel for are not taken apart."""
        from dovetail.backends.plugin.call import is_view

        return not is_view(call) and bool(self.supports(call))

    def compile(self, segment: Segment) -> Blob:
        """The segment, and the plug-in's own code for it where it compiles whole segments.

        Where it does not, kernels are found by name and version when the blob is loaded.
        """
        from dovetail.backends.plugin.segment import PluginSegment

        segment = self.folded(segment)
        text = segment_to_bytes(segment)
        made = PluginSegment(self.opened, segment).compile()
        code = None if made is None else made.code
        head = _HEAD.pack(_MAGIC, code is not None, len(text))
        return Blob(head + text + (code or b""))

    def folded(self, segment: Segment) -> Segment:
        """The segment with operations on quantised tensors, where the library has such."""
        from dovetail.backends.plugin.quantized import fold_quantized

        if not self.opened.flags & _QUANTIZED_OPERATIONS:
            return segment
        return fold_quantized(segment, lambda call: bool(self.supports(call)))

    def load(self, blob: Blob) -> Executable:
        """A program on the device; code that is not for this device is compiled again."""
        from dovetail.backends.plugin.segment import PluginSegment

        text, code = _unpack(blob.data)
        segment = segment_from_bytes(text)
        native = self.opened.native
        if code is not None and native.blob_state(code) >= _PREFER_RECOMPILING:
            made = PluginSegment(self.opened, segment).compile()
            code = None if made is None else made.code
        return PluginSegment(self.opened, segment, code).prepare()


_HEAD = struct.Struct("<8s?xxxI")  # magic, whether code follows, bytes of the segment
_MAGIC = b"dvplugin"
_PREFER_RECOMPILING = 2  # DVP_BLOB_PREFER_RECOMPILING
_QUANTIZED_OPERATIONS = 16  # DVP_QUANTIZED_OPERATIONS


def code_of(blob: Blob) -> bytes | None:
    """The plug-in's own code in a blob; None where it holds none."""
    return _unpack(blob.data)[1]


def _unpack(data: bytes) -> tuple[bytes, bytes | None]:
    """The segment's text and the plug-in's code; UnsupportedGraph when it is no such blob."""
    if len(data) < _HEAD.size or not data.startswith(_MAGIC):
        raise UnsupportedGraph("these bytes hold no segment of a plug-in")
    _, has_code, size = _HEAD.unpack_from(data)
    text, code = data[_HEAD.size : _HEAD.size + size], data[_HEAD.size + size :]
    return text, code if has_code else None
