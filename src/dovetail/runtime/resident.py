"""Values that stay on a plug-in's device: between segments of one call, and from call to call.

A segment hands such a value on as a ``Resident``. Whoever runs on the same device takes it as it
is, another device of the same plug-in has it copied there, everybody else fetches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from dovetail.errors import DeviceLost
from dovetail.ir import Ref
from dovetail.runtime.runner import Runner

if TYPE_CHECKING:
    from dovetail import _native
    from dovetail.backend import Executable
    from dovetail.compiled.graph import CompiledPart
    from dovetail.ir.segment import ValueKey
    from dovetail.runtime.link import Linked
    from dovetail.runtime.plugins import Library
    from dovetail.runtime.sized import TensorLayout


class Resident:
    """A tensor in a device's memory, described as a tensor of the host is."""

    __slots__ = ("_host", "buffer", "layout", "library", "start")
    device = "cpu"  # where the graph says that it is

    def __init__(
        self, library: Library, buffer: _native.DeviceBuffer, layout: TensorLayout, start: int = 0
    ) -> None:
        self.library, self.buffer, self.layout, self.start = library, buffer, layout, start
        self._host: torch.Tensor | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""
        return self.layout.shape

    @property
    def dtype(self) -> torch.dtype:
        """Its type of elements."""
        return self.layout.torch

    def stride(self) -> tuple[int, ...]:
        """Its strides, in elements."""
        return self.layout.strides

    def fetch(self) -> torch.Tensor:
        """The tensor on the host, copied there once."""
        if self._host is None:
            layout = self.layout
            made = torch.empty_strided(layout.shape, layout.strides, dtype=layout.torch)
            self.buffer.fetch(made.data_ptr(), self.start, layout.bytes)
            self._host = made
        return self._host

    def on(self, library: Library) -> Resident | None:
        """The same on another device, copied there directly; None where that cannot be done."""
        if not self.buffer.alive():
            raise DeviceLost(
                f"a value that stayed on the device of plug-in {self.library.name!r} is lost: "
                "the device was, or what computed it failed"
            )
        if library is self.library:
            return self
        made = self.buffer.to(library.native)
        return None if made is None else Resident(library, made, self.layout, self.start)


def on_host(value: Any) -> Any:
    """A value as the host takes it."""
    return value.fetch() if isinstance(value, Resident) else value


def keep_between(part: CompiledPart, executables: Sequence[Executable], run: Any) -> None:
    """Have results stay on the device where a segment there, or on one like it, reads them."""
    if all(each.memory is None for each in executables):
        return
    readers = _readers(part, executables)
    for placed, executable in zip(part.segments, executables, strict=True):
        memory = executable.memory
        if memory is not None:
            here = [
                n
                for n, key in enumerate(placed.results)
                if any(each is not None and memory.reaches(each) for each in readers.get(key, ()))
            ]
            elsewhere = [
                n for n in here if not all(r is memory for r in readers[placed.results[n]])
            ]
            _keep(run, executable, [placed.results[n] for n in here], here, elsewhere)


def keep_state(linked: Linked, writes: Mapping[int, int]) -> frozenset[int]:
    """Have state stay on the device that alone reads and writes it, from call to call.

    ``writes`` tells which output is the new value of which input. The outputs that stay come back;
    the caller gives each as it is to the next call.
    """
    part = linked.parts[-1]
    executables = [each.executable for each in part.segments]
    readers = _readers(part.compiled, executables)
    rest = [n for n in range(linked.graph.count_inputs()) if n not in linked.graph.frozen]
    made = {
        key: (executable, n)
        for placed, executable in zip(part.compiled.segments, executables, strict=True)
        for n, key in enumerate(placed.results)
    }
    kept = []
    for output, given in writes.items():
        out = part.compiled.outputs[output]
        key = (out.name, out.path) if isinstance(out, Ref) else None
        if key not in made or given not in rest:
            continue
        executable, n = made[key]
        name = part.compiled.inputs[rest.index(given)].name
        if executable.memory is not None and all(
            each is executable.memory for each in readers.get((name, ()), ())
        ):
            _keep(part.run, executable, [key], [n])
            kept.append(output)
    if isinstance(part.run, Runner):
        part.run.leave(kept)
    return frozenset(kept)


def _keep(
    run: Any,
    executable: Executable,
    keys: Sequence[ValueKey],
    outputs: Sequence[int],
    fetched: Sequence[int] = (),
) -> None:
    executable.keep(frozenset(outputs), frozenset(fetched))
    if isinstance(run, Runner):
        run.fetches(keys, on_host)


def _readers(part: CompiledPart, executables: Sequence[Executable]) -> dict[ValueKey, list[Any]]:
    """Each value's readers: the memory that each has, None for the host and for the caller."""
    readers: dict[ValueKey, list[Any]] = {}
    for placed, executable in zip(part.segments, executables, strict=True):
        for key in placed.sources:
            readers.setdefault(key, []).append(executable.memory)
    for out in part.outputs:
        if isinstance(out, Ref):
            readers.setdefault((out.name, out.path), []).append(None)
    return readers
