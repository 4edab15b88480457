"""What callers of a loaded file have of a device: its memory, its streams. Needs no torch.

device = run.device("my_accel")
stream = device.stream()
y = run.on(stream)(device.tensor(x))   # returns before it is computed
y.wait()
torch.from_dlpack(y.host())
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dovetail.errors import DeviceTimeout, GuardFailed, PluginNotFound
from dovetail.ir.dtypes import DTYPES

if TYPE_CHECKING:
    from dovetail import _native

_CPU, _EXTENSION = 1, 12  # DLPack's device types
_BORROWED, _DEVICE, _IMPORTED = 0, 1, 8  # kinds of memory: DVT_MEMORY_…
KINDS = {"device": _DEVICE, "pinned": 2, "unified": 4}
_MANY_SECONDS = 1e9


class Event:
    """A point in a stream. It outlives the stream, and whatever was computed before it."""

    def __init__(self, native: _native.Event) -> None:
        self.native = native

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until it has happened; an error of the work before it is raised here."""
        _wait(self.native, seconds, "the event has not happened")

    @property
    def done(self) -> bool:
        """Whether it has happened."""
        return self.native.wait(0.0)


class Stream:
    """A queue of a device's: what runs on it happens in order, and nobody waits for it.

    It keeps the arguments of runs until the device needs them no more.
    """

    def __init__(self, device: CallerDevice, native: _native.Stream) -> None:
        self.device, self.native = device, native

    def wait(self, seconds: float = math.inf) -> None:
        """Wait for all that it was given; an error of that is raised here."""
        _wait(self.native, seconds, "the stream is still at work")

    def follow(self, event: Event | DeviceTensor) -> None:
        """Have what comes next wait for an event, or for a tensor, of another stream."""
        ready = event.ready if isinstance(event, DeviceTensor) else event
        if ready is not None:
            self.native.follow(ready.native)

    def record(self) -> Event:
        """An event behind all that it was given so far."""
        return Event(self.native.record())

    @property
    def handle(self) -> int:
        """What the vendor's own library calls it, as a cudaStream_t."""
        return self.native.native()


class DeviceTensor:
    """A tensor in a device's memory. It outlives the model that made it.

    ``ready`` is the event behind its computation, or None: it is there. DLPack hands it to others
    where it lies, as a tensor of an extension device whose address is the plug-in's handle.
    """

    def __init__(
        self,
        device: CallerDevice,
        memory: _native.Memory,
        dtype: tuple[int, int],
        shape: Sequence[int],
        strides: Sequence[int],
        offset: int = 0,
        ready: Event | None = None,
    ) -> None:
        self.device, self.memory, self.ready = device, memory, ready
        self.shape, self.strides = tuple(shape), tuple(strides)
        self._dtype, self._offset = dtype, offset

    @property
    def dtype(self) -> str:
        """Its type of elements, as ``float32``."""
        for name, row in DTYPES.items():
            if (row.dlpack, row.bits) == self._dtype:
                return name
        return f"dlpack {self._dtype[0]}, {self._dtype[1]} bits"

    @property
    def nbytes(self) -> int:
        """The bytes from its first element to its last."""
        if 0 in self.shape:
            return 0
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        return (reach + 1) * -(-self._dtype[1] // 8)

    def wait(self, seconds: float = math.inf) -> None:
        """Wait until it is computed; an error of its computation is raised here."""
        if self.ready is not None:
            self.ready.wait(seconds)

    def host(self) -> HostTensor:
        """A copy on the host, once it is computed: for NumPy, or what takes DLPack."""
        data = bytearray(self.nbytes)
        if data:
            self.memory.read(None, self._offset, _address(data), len(data))
        return HostTensor(data, self._dtype, self.shape, self.strides)

    def as_argument(self) -> tuple[Any, ...]:
        """As ``_native.Artifact.run_on`` takes it."""
        return (self.memory, *self._dtype, self.shape, self.strides, self._offset)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """A copy for NumPy."""
        if copy is False:
            raise ValueError("the tensor is on a device: NumPy gets a copy")
        made = self.host().array()
        return made if dtype is None else made.astype(dtype)

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A capsule that shares the memory; it is waited for unless ``stream`` is -1."""
        if (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()) or copy:
            raise BufferError("the tensor is shared where it lies: host() copies it to the host")
        if stream != -1:
            self.wait()
        versioned = max_version is not None
        return self.memory.dlpack(*self._dtype, self.shape, self.strides, self._offset, versioned)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _EXTENSION, self.device.index

    def __repr__(self) -> str:
        return f"<{self.dtype}{list(self.shape)} on {self.device.name}>"


class HostTensor:
    """What a device's tensor held, on the host."""

    def __init__(
        self,
        data: bytearray,
        dtype: tuple[int, int],
        shape: tuple[int, ...],
        strides: tuple[int, ...],
    ) -> None:
        self.data, self._dtype, self.shape, self.strides = data, dtype, shape, strides

    def array(self) -> Any:
        """As a NumPy array, with no copy; bfloat16 and float8 as the integers of their bits."""
        import numpy as np

        code, bits = self._dtype
        letter = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}.get(code, "u")
        base = np.frombuffer(self.data, dtype=np.dtype(f"{letter}{bits // 8}"))
        steps = [step * base.itemsize for step in self.strides]
        return np.lib.stride_tricks.as_strided(base, self.shape, steps)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        made = self.array()
        return made if dtype is None and not copy else made.astype(dtype or made.dtype)

    def __dlpack__(self, **given: Any) -> Any:
        return self.array().__dlpack__(**given)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU, 0


class CallerDevice:
    """A plug-in's device, as callers of loaded files use it."""

    def __init__(self, plugin: _native.Plugin) -> None:
        self.native = plugin
        self.name = plugin.info()[0]
        self.index = int(plugin.describe()["index"])

    def stream(self, handle: int | None = None) -> Stream:
        """A new stream; with ``handle`` the one that the vendor's own library calls so."""
        from dovetail import _native

        return Stream(self, _native.Stream(self.native, handle))

    def empty(self, shape: Sequence[int], dtype: str = "float32", kind: str = "device") -> Any:
        """Memory for a tensor, row-major; ``kind``: "device", "pinned" or "unified"."""
        from dovetail import _native

        if kind not in KINDS:
            raise GuardFailed(f"memory of kind {kind!r}: give one of {', '.join(KINDS)}")
        if dtype not in DTYPES:
            raise GuardFailed(f"there is no type of elements {dtype!r}")
        row = DTYPES[dtype]
        size = math.prod(shape) * -(-row.bits // 8)
        memory = _native.Memory(self.native, size, KINDS[kind])
        return DeviceTensor(self, memory, (row.dlpack, row.bits), shape, _row_major(shape))

    def tensor(self, source: Any, stream: Stream | None = None) -> DeviceTensor:
        """A tensor of anything that has DLPack, on this device.

        What is on it already stays where it is, and is shared. All else is copied there: at once,
        or on a stream, which keeps the source until then.
        """
        from dovetail import _native

        if isinstance(source, DeviceTensor) and source.device.native is self.native:
            return source
        found = _Taken(source)
        if found.device == _EXTENSION:
            return self._shared(found)
        if found.device != _CPU:
            raise GuardFailed(
                f"a tensor of DLPack's device type {found.device} cannot be copied to "
                f"{self.name!r}: give one of the host or of this device"
            )
        memory = _native.Memory(self.native, found.bytes)
        made = DeviceTensor(self, memory, found.dtype, found.shape, found.strides)
        if found.bytes > 0:
            on = None if stream is None else stream.native
            memory.write(on, 0, found.address + found.offset, found.bytes)
        if stream is not None:
            made.ready = stream.record()
            stream.native.hold(made.ready.native, (found, memory))
        return made

    def host_memory(self, source: Any) -> DeviceTensor:
        """A tensor of the host as the device's, with no copy; the device reads it where it lies.

        PluginFailed where the device cannot: then ``tensor`` copies it.
        """
        from dovetail import _native

        found = _Taken(source)
        if found.device != _CPU:
            raise GuardFailed("the tensor is not on the host")
        memory = _native.Memory(
            self.native, found.bytes, _IMPORTED, found.address + found.offset, found
        )
        return DeviceTensor(self, memory, found.dtype, found.shape, found.strides)

    def _shared(self, found: _Taken) -> DeviceTensor:
        """A tensor of this device's memory that came by DLPack."""
        from dovetail import _native

        if isinstance(found.owner, _native.Memory):
            if found.index != self.index or found.owner.plugin() is not self.native:
                raise GuardFailed(f"the tensor is on another device than {self.name!r}")
            memory = found.owner
            return DeviceTensor(self, memory, found.dtype, found.shape, found.strides, found.offset)
        if self.native.torch_device() is None or found.index != self.index:
            raise GuardFailed(
                f"a tensor of an extension device that is not known to be {self.name!r}: its "
                "plug-in names no device of PyTorch as its own, or it is another one"
            )
        memory = _native.Memory(
            self.native, found.offset + found.bytes, _BORROWED, found.address, found
        )
        return DeviceTensor(self, memory, found.dtype, found.shape, found.strides, found.offset)

    def get(self, name: str) -> int:
        """A number that the plug-in tells of its device, such as "memory.used"."""
        return self.native.get(name)

    def __repr__(self) -> str:
        return f"<device {self.index} of plug-in {self.name!r}>"


class _Taken:
    """A tensor that came by DLPack; it lives as long as this does."""

    def __init__(self, source: Any) -> None:
        from dovetail import _native

        if not hasattr(source, "__dlpack__"):
            raise GuardFailed(f"a {type(source).__name__} has no __dlpack__: give a tensor")
        try:
            capsule = source.__dlpack__(max_version=(1, 0))
        except TypeError:
            capsule = source.__dlpack__()
        (
            self.device,
            self.index,
            self.address,
            code,
            bits,
            lanes,
            self.shape,
            self.strides,
            self.offset,
            self.owner,
        ) = _native.read_dlpack(capsule)
        if lanes != 1:
            raise GuardFailed("a tensor of vectors: give one of numbers")
        if any(step < 0 for step in self.strides):
            raise GuardFailed("a tensor that is laid out backwards: give a contiguous copy of it")
        self.dtype = code, bits
        reach = sum((n - 1) * step for n, step in zip(self.shape, self.strides, strict=True))
        self.bytes = 0 if 0 in self.shape else (reach + 1) * -(-bits // 8)


class OnDevice:
    """A loaded file whose runs go to a stream, or whose results stay on a device."""

    def __init__(self, loaded: Any, place: Stream | CallerDevice) -> None:
        self._loaded, self._place = loaded, place
        self._stream = place if isinstance(place, Stream) else None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run; on a stream this returns before it is done. Results on the device stay there."""
        return self._loaded.run_with(self._run, args, kwargs)

    def _run(self, *flat: Any) -> list[Any]:
        from dovetail import _native

        stream, native = self._stream, self._loaded.native
        given = tuple(t.as_argument() if isinstance(t, DeviceTensor) else t for t in flat)
        if stream is None:
            return [self._result(each, None) for each in native.run_on(given, None, None)]
        done = Event(_native.Event(stream.device.native))
        return [
            self._result(each, done) for each in native.run_on(given, stream.native, done.native)
        ]

    def _result(self, made: Any, done: Event | None) -> Any:
        """A tensor of the host as it is; one on a device with the event that it is ready at."""
        if not isinstance(made, tuple):
            return made
        memory, code, bits, shape, strides = made
        device = self._place.device if isinstance(self._place, Stream) else self._place
        if memory.plugin() is not device.native:  # of another device, which was waited for
            device, done = CallerDevice(memory.plugin()), None
        return DeviceTensor(device, memory, (code, bits), shape, strides, 0, done)


def device_named(plugins: Sequence[_native.Plugin], name: str | None) -> CallerDevice:
    """The device of a plug-in among those that a file runs on; the only one where none is named."""
    known = {plugin.info()[0]: plugin for plugin in plugins}
    if name is None and len(known) == 1:
        name = next(iter(known))
    if name not in known:
        there = ", ".join(repr(each) for each in known) or "none"
        raise PluginNotFound(f"the artifact runs on no device {name!r}; its devices: {there}")
    return CallerDevice(known[name])


def _wait(native: Any, seconds: float, otherwise: str) -> None:
    limit = min(seconds, _MANY_SECONDS)
    if not native.wait(max(limit, 0.0)):
        raise DeviceTimeout(f"{otherwise} after {seconds} s")


def _row_major(shape: Sequence[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return strides[::-1]


def _address(data: bytearray) -> int:
    import ctypes

    return ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
