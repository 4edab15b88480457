"""A backend from a renderer: turn kernel IR into source, and the rest comes along.

A subclass says how a kernel is written (``render``) and how its device is reached (``open``);
lowering, fusion, scheduling, memory planning, copies, weights that stay on the device, dynamic
shapes and training are shared. See docs/renderers.md for one from beginning to end.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from dovetail.backend import (
    Availability,
    Blob,
    Executable,
    Support,
    torch_available,
)
from dovetail.backends.lowering import LoweringBackend
from dovetail.errors import DovetailError
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.locks import ForkLock

if TYPE_CHECKING:
    from dovetail.backends.rendered.program import RenderedProgram
    from dovetail.ir import OpCall, Segment
    from dovetail.ir.kernel import Kernel
    from dovetail.runtime.device_weights import Weights

Memory = Any  # what a device calls a piece of its memory
Function = Any  # what a device calls a compiled kernel


class NoDevice(DovetailError, RuntimeError):
    """A backend's device cannot be opened; the message says why."""


class Device(ABC):
    """A device as a renderer's author describes it; a process has one for each backend class.

    Calls come from one thread at a time and in order. They may return before the work is done;
    ``download`` may not.
    """

    alignment: int = 64  # bytes; where a part of memory may begin

    @abstractmethod
    def build(self, source: str, names: Sequence[str]) -> Sequence[Function]:
        """Compile source; a function for each kernel named. Raise where it does not compile."""

    @abstractmethod
    def allocate(self, size: int) -> Memory:
        """``size`` bytes (at least one), freed when nothing refers to them any more."""

    @abstractmethod
    def part(self, memory: Memory, offset: int, size: int) -> Memory:
        """Some bytes of memory, as memory; ``offset`` is a multiple of ``alignment``."""

    @abstractmethod
    def upload(self, memory: Memory, address: int, size: int) -> None:
        """Copy from the host's memory to the device's."""

    @abstractmethod
    def download(self, memory: Memory, address: int, size: int) -> None:
        """Copy from the device's memory to the host's, after all work asked for so far."""

    @abstractmethod
    def launch(
        self,
        function: Function,
        points: int,
        buffers: Sequence[Memory],
        sizes: Sequence[int],
        flag: Memory | None,
    ) -> None:
        """Run a kernel on ``points`` points.

        ``buffers`` and ``sizes`` are in the kernel's own order; ``flag`` is 8 bytes for a kernel
        that checks indices, else None.
        """


class Opened:
    """A device in use: counted copies, kernels compiled once, and the weights that stay on it."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.lock = ForkLock()
        self.counters = dict.fromkeys(("uploads", "downloads", "launches", "builds"), 0)
        self.counters |= {"uploaded_bytes": 0, "downloaded_bytes": 0}
        self._functions: dict[str, Sequence[Function]] = {}

    @cached_property
    def weights(self) -> Weights:
        """The tensors that stay."""
        from dovetail.runtime.device_weights import Weights

        return Weights(_Uploader(self))  # type: ignore[arg-type]  # all it asks for

    def functions(self, source: str, names: Sequence[str]) -> Sequence[Function]:
        """The kernels of a source, compiled when it is first seen."""
        if source not in self._functions:
            self.counters["builds"] += 1
            self._functions[source] = self.device.build(source, names)
        return self._functions[source]

    def kept(self, tensor: Any, size: int) -> Memory:
        """The memory of a tensor that stays on the device, sent where it is out of date."""
        held: Any = self.weights.get(tensor, size)
        return held.memory

    def upload(self, memory: Memory, address: int, size: int) -> None:
        """A counted copy to the device."""
        if size:
            self.counters["uploads"] += 1
            self.counters["uploaded_bytes"] += size
            self.device.upload(memory, address, size)

    def download(self, memory: Memory, address: int, size: int) -> None:
        """A counted copy from the device."""
        if size:
            self.counters["downloads"] += 1
            self.counters["downloaded_bytes"] += size
            self.device.download(memory, address, size)


class _Uploader:
    """What ``Weights`` needs of a device."""

    def __init__(self, opened: Opened) -> None:
        self.opened = opened

    def upload(self, address: int, size: int, _constant: bool = False) -> _Kept:
        memory = self.opened.device.allocate(max(size, 1))
        self.opened.upload(memory, address, size)
        return _Kept(memory)


class _Kept:
    """Memory of a weight."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory

    def alive(self) -> bool:
        """As long as it is referred to."""
        return True


class RendererBackend(LoweringBackend):
    """A backend whose kernels are rendered from kernel IR.

    Subclasses set ``name`` and define ``render`` and ``open``; operations without a lowering
    rule, products and convolutions among them, are refused and go to the next backend.
    """

    exact_processor = False  # sources become code when they are loaded
    prelude: ClassVar[str] = ""  # stands at the top of every source
    _opened: ClassVar[Opened | None] = None
    _lock: ClassVar[ForkLock] = ForkLock()

    @abstractmethod
    def render(self, kernel: Kernel) -> str:
        """A kernel's source: a function named ``kernel.name``."""

    @abstractmethod
    def open(self) -> Device:
        """The device, on first use; raise where there is none."""

    def refuses(self, call: OpCall) -> str:
        """Why this target cannot run a call that kernel IR can express; empty: it can."""
        del call
        return ""

    @property
    def opened(self) -> Opened:
        """The device in use, one for a process."""
        cls = type(self)
        with RendererBackend._lock:
            if cls.__dict__.get("_opened") is None:
                cls._opened = Opened(self.open())
            assert cls._opened is not None
            return cls._opened

    def available(self) -> Availability:
        """Whether the device opens, and PyTorch is there to compile for."""
        try:
            return torch_available() if self.opened is not None else Availability(False)
        except (DovetailError, ImportError, OSError, RuntimeError) as error:
            return Availability(False, str(error))

    def supports(self, call: OpCall) -> Support:
        """What has a lowering rule and nothing against it on this target."""
        from dovetail.backends.rendered.program import refusal

        reason = refusal(call) or self.refuses(call)
        return Support.no(reason) if reason else Support.yes()

    def compile(self, segment: Segment) -> Blob:
        """Plan, render and build; the blob is the segment, for code is made where it runs."""
        return Blob(segment_to_bytes(segment), ready=self._program(segment))

    def load(self, blob: Blob) -> Executable:
        """A program on the device."""
        from dovetail.backends.rendered.run import RenderedExecutable

        program = blob.ready or self._program(segment_from_bytes(blob.data))
        return RenderedExecutable(self.opened, program)

    def _program(self, segment: Segment) -> RenderedProgram:
        from dovetail.backends.rendered.program import RenderedProgram

        program = RenderedProgram(segment)
        parts = [self.prelude, *(self.render(launch.kernel) for launch in program.launches)]
        program.source = "\n".join(filter(None, parts)) if program.launches else ""
        if program.launches:
            names = [launch.kernel.name for launch in program.launches]
            opened = self.opened
            with opened.lock:
                program.functions = opened.functions(program.source, names)
        return program
