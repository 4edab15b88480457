"""Which tensors were written to: what PyTorch counts, what optimisers do, what users tell.

Whoever keeps something made from a tensor, a value computed once or a copy on a device, compares
the tensor's ``state`` at each use and is told by ``changed`` of writes that a state need not show.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from dovetail import _native
from dovetail.capture._torch.tensors import tensor_version
from dovetail.locks import ForkLock

# How ``_native.states`` reads a tensor's contents: eight words of it, or the whole of one of at
# most 64 KiB, or the whole.
_SAMPLE, _SMALL_WHOLE, _WHOLE = 0, 1, 2
Addresses = Collection[int] | None  # of storages; None: all there are


class Watcher(Protocol):
    """Keeps something that was made from tensors."""

    def forget(self, addresses: Addresses) -> None:
        """Make anew, at the next use, what was made from memory at these addresses."""


_watchers: weakref.WeakSet[Watcher] = weakref.WeakSet()
_lock = ForkLock()
_hooked = False


def refresh(model: object = None) -> None:
    """Have compiled models take a model's parameters and buffers anew at their next call.

    Needed only after a write that PyTorch does not count and no ``torch.optim.Optimizer`` made, to
    part of a tensor or to one in a GPU's memory: through ``.data``, a NumPy array, DLPack, a
    storage, shared memory, a collective, a CUDA graph, or an operator whose schema hides it.
    ``check_weights`` finds such writes. Without a module, all models are refreshed.
    """
    if isinstance(model, nn.Module):
        changed([*model.parameters(), *model.buffers()])
    else:
        _forget(None)


def watch(watcher: Watcher) -> None:
    """Tell ``watcher``, for as long as it lives, of every write that is known."""
    global _hooked
    with _lock:
        _watchers.add(watcher)
        if not _hooked:  # Dynamo breaks the graph of a compiled step anyway; see its own code
            register_optimizer_step_post_hook(torch.compiler.disable(_after_step))
            _hooked = True


def changed(tensors: Iterable[Any]) -> None:
    """Tell all watchers that these tensors were written to."""
    addresses = {storage_address(tensor) for tensor in tensors}
    _forget(None if None in addresses else {a for a in addresses if a is not None})


def storage_address(tensor: Any) -> int | None:
    """Where a tensor's memory begins; None where it is sparse, or a subclass has others inside."""
    try:
        return int(tensor.untyped_storage().data_ptr())
    except (RuntimeError, NotImplementedError):
        return None


def how_to_read(tensors: Sequence[Any]) -> bytes:
    """How ``state`` reads each tensor.

    A parameter is written by optimisers, which tell; eight words spread over it find most other
    writes. Buffers are read whole where they are small: eager's batch norm writes its running
    statistics and raises no version.
    """
    return bytes(_SAMPLE if isinstance(t, nn.Parameter) else _SMALL_WHOLE for t in tensors)


def state(tensors: tuple[Any, ...], how: bytes) -> object:
    """What differs after a tensor was written to or got other memory, as far as can be seen."""
    try:
        return _native.states(tensors, how)
    except TypeError:  # one has no strided memory
        return tuple(map(_slow_state, tensors))


def is_unchanged(tensors: tuple[Any, ...], how: bytes, kept: object) -> bool:
    """Whether the state of these tensors is still ``kept``; the quick way to ask."""
    if not isinstance(kept, bytes):
        return state(tensors, how) == kept
    try:
        return _native.unchanged(tensors, how, kept)
    except TypeError:  # one has no strided memory any more
        return False


def contents(tensor: Any) -> bytes | None:
    """A digest of all a tensor holds; None where it has no strided memory."""
    if tensor.device.type != "cpu":
        tensor = tensor.detach().cpu()
    try:
        return _native.states((tensor,), bytes([_WHOLE]))[-8:]
    except TypeError:
        return None


def _slow_state(tensor: Any) -> object:
    if tensor.is_inference():  # has no version: never known to be unchanged
        return object()
    return storage_address(tensor), tensor_version(tensor), tensor.shape


def _after_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
    """Fused steps, and those of other packages, write to parameters without counting it."""
    if _watchers:
        changed(p for group in optimizer.param_groups for p in group["params"])


def _forget(addresses: Addresses) -> None:
    with _lock:
        watchers = list(_watchers)
    for watcher in watchers:
        watcher.forget(addresses)
