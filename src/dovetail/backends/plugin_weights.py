"""Tensors that stay on a plug-in's device from call to call, until they change."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from dovetail.capture import _torch
from dovetail.runtime import frozen

if TYPE_CHECKING:
    from dovetail import _native
    from dovetail.runtime.plugins import Library

Key = tuple[int, int]  # address, bytes


@dataclass(slots=True)
class _Held:
    buffer: _native.DeviceBuffer
    owner: weakref.ref[Any]
    state: tuple[int, int]

    def is_current(self, address: int) -> bool:
        """Whether the device has what lies at the address now."""
        owner = self.owner()
        return (
            owner is not None
            and owner.data_ptr() == address
            and _state(owner) == self.state
            and self.buffer.alive()
        )


def weights_of(library: Library) -> Weights:
    """What is kept on a library's device."""
    if not isinstance(library.kept, Weights):
        library.kept = Weights(library.native)
    return library.kept


class Weights:
    """Device copies by host address, each for as long as the tensor it was made from lives.

    A parameter's memory is the same whoever looks at it, so the forward and the backward graph,
    which may hold different tensors over it, share one copy.
    """

    def __init__(self, native: _native.Plugin) -> None:
        self._native = native
        self._held: dict[Key, _Held] = {}

    def keeps(self, tensor: Any, size: int, *, constant: bool) -> bool:
        """Whether a tensor is one that should stay on the device."""
        if tensor.is_inference():  # it has no version: a write would go unnoticed
            return False
        if constant or isinstance(tensor, nn.Parameter):
            return True
        held = self._held.get((tensor.data_ptr(), size))
        return held is not None and held.is_current(tensor.data_ptr())

    def get(self, tensor: Any, size: int) -> _native.DeviceBuffer:
        """The tensor's copy on the device, sent there if it is missing or out of date."""
        address = tensor.data_ptr()
        held = self._held.get((address, size))
        if held is not None and held.is_current(address):
            return held.buffer
        state = _state(tensor)
        buffer = self._native.upload(address, size)
        forget = _Forget(self._held, (address, size))
        self._held[address, size] = _Held(buffer, weakref.ref(tensor, forget), state)
        return buffer

    def clear(self) -> None:
        """Give all of it back."""
        self._held.clear()


class _Forget:
    """Drops a copy when its tensor is gone, unless another has taken the address since."""

    def __init__(self, held: dict[Key, _Held], key: Key) -> None:
        self.held, self.key = held, key

    def __call__(self, owner: weakref.ref[Any]) -> None:
        found = self.held.get(self.key)
        if found is not None and found.owner is owner:
            del self.held[self.key]


def _state(tensor: Any) -> tuple[int, int]:
    """What changes when a tensor is written to, as far as PyTorch or the user tells."""
    return _torch.tensor_version(tensor), frozen.epoch()
