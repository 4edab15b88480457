"""Tensors that stay on a device from call to call, until they change."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from dovetail.runtime import writes
from dovetail.runtime.writes import Addresses

if TYPE_CHECKING:
    from dovetail import _native
    from dovetail.runtime.plugins import Library

Key = tuple[int, int]  # address, bytes (their complement where it was packed)


@dataclass(slots=True)
class _Held:
    buffer: _native.DeviceBuffer
    # Not of the tensor: torch.utils.swap_tensors refuses a tensor that has weak references.
    storage: weakref.ref[Any]
    begins: int | None  # where the storage does
    how: bytes  # how the state is read
    state: object

    def is_current(self, tensor: Any) -> bool:
        """Whether the device has what the tensor holds now."""
        return (
            self.storage() is tensor.untyped_storage()
            and writes.state((tensor,), self.how) == self.state
            and self.buffer.alive()
        )


def weights_of(library: Library) -> Weights:
    """What is kept on a library's device."""
    if not isinstance(library.kept, Weights):
        library.kept = Weights(library.native)
    return library.kept


class Weights:
    """Device copies by host address, each for as long as the memory it was made from lives.

    A parameter's memory is the same whoever looks at it, so the forward and the backward graph,
    which may hold different tensors over it, share one copy.
    """

    def __init__(self, native: _native.Plugin) -> None:
        self._native = native
        self._held: dict[Key, _Held] = {}
        self._forgotten = 0  # how often forget() was called
        writes.watch(self)

    def keeps(self, tensor: Any, size: int, *, constant: bool) -> bool:
        """Whether a tensor is one that should stay on the device."""
        if tensor.is_inference():  # it has no version: a write would go unnoticed
            return False
        if constant or isinstance(tensor, nn.Parameter):
            return True
        held = self._held.get((tensor.data_ptr(), size))
        return held is not None and held.is_current(tensor)

    def get(
        self,
        tensor: Any,
        size: int,
        *,
        constant: bool = False,
        pack: Callable[[Any], Any] | None = None,
    ) -> _native.DeviceBuffer:
        """The tensor's copy on the device, sent there if it is missing or out of date.

        Of a ``constant`` the plug-in may make a copy in a layout of its own. ``pack`` makes of the
        tensor what is sent.
        """
        address = tensor.data_ptr()
        key = address, size if pack is None else ~size
        held = self._held.get(key)
        if held is not None and held.is_current(tensor):
            return held.buffer
        how, forgotten = writes.how_to_read((tensor,)), self._forgotten
        state = writes.state((tensor,), how)
        sent = tensor if pack is None else pack(tensor)
        buffer = self._native.upload(sent.data_ptr(), size, constant)
        if forgotten == self._forgotten:  # else written to while it was sent
            drop = _Drop(self._held, key)
            storage = weakref.ref(tensor.untyped_storage(), drop)
            begins = writes.storage_address(tensor)
            self._held[key] = _Held(buffer, storage, begins, how, state)
        return buffer

    def forget(self, addresses: Addresses) -> None:
        """Send again, at the next use, what was made from memory at these addresses."""
        self._forgotten += 1
        for key in list(self._held):
            held = self._held.get(key)
            if held is not None and (addresses is None or held.begins in addresses):
                self._held.pop(key, None)

    def clear(self) -> None:
        """Give all of it back."""
        self._held.clear()


class _Drop:
    """Drops a copy when its memory is gone, unless another has taken the address since."""

    def __init__(self, held: dict[Key, _Held], key: Key) -> None:
        self.held, self.key = held, key

    def __call__(self, storage: weakref.ref[Any]) -> None:
        found = self.held.get(self.key)
        if found is not None and found.storage is storage:
            del self.held[self.key]
