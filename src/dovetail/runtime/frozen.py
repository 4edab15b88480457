"""Frozen parameters: what depends on them alone is computed once, and again when one changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

from dovetail.capture import _torch
from dovetail.locks import ForkLock

Run = Callable[[list[Any]], list[Any]]
_NEVER = object()
_refreshes = itertools.count(1)
_epoch = 0


def refresh(model: object = None) -> None:
    """Have every frozen model repack its parameters at its next call.

    Needed only after writes that PyTorch does not count, such as through ``.data``. ``model`` is
    accepted for readability; repacking is cheap enough to do for all.
    """
    del model
    global _epoch
    _epoch = next(_refreshes)


def epoch() -> int:
    """A number that changes at each ``refresh()``."""
    return _epoch


class FrozenRunner:
    """``once`` on the frozen inputs when they change, ``every`` on the rest at each call."""

    def __init__(self, once: Run, every: Run, frozen: Sequence[int]) -> None:
        self.once, self.every = once, every
        self.frozen = tuple(frozen)
        self._is_frozen = frozenset(frozen)
        # One attribute, replaced as a whole: threads see old or new values, never a mixture.
        # The memory of the inputs is held too, so that no other tensor can come to its address.
        self._packed: tuple[Any, list[Any], list[Any]] = (_NEVER, [], [])
        self._lock = ForkLock()
        self.packs = 0

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Check the frozen inputs' versions and addresses, repack if need be, run."""
        constants = [inputs[i] for i in self.frozen]
        state = (_epoch, *map(_version, constants))
        seen, values, _ = self._packed
        if state != seen:
            values = self._pack(state, constants)
        rest = [x for i, x in enumerate(inputs) if i not in self._is_frozen]
        inputs.clear()
        return self.every(rest + values)

    def _pack(self, state: Any, constants: list[Any]) -> list[Any]:
        with self._lock:
            seen, values, _ = self._packed
            if state != seen:
                memory = [tensor.untyped_storage() for tensor in constants]
                values = self.once(constants)
                self._packed = (state, values, memory)
                self.packs += 1
            return values


def _version(tensor: Any) -> object:
    """What changes when a tensor's contents or place do."""
    if tensor.is_inference():  # has no version counter: never known to be unchanged
        return object()
    return (tensor.data_ptr(), _torch.tensor_version(tensor), tensor.shape, tensor.stride())
