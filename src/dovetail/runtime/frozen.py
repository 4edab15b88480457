"""Frozen parameters: what depends on them alone is computed once, and again when one changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.locks import ForkLock
from dovetail.runtime import writes
from dovetail.runtime.writes import Addresses

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Packed:
    """What was computed once, and the state of the inputs it was computed from."""

    values: list[Any]
    state: object
    how: bytes  # how the state was read
    memory: dict[int | None, Any]  # by address; held, so that no other can come to lie there


_NOTHING = _Packed([], None, b"", {})


class FrozenRunner:
    """``once`` on the frozen inputs when they change, ``every`` on the rest at each call."""

    def __init__(self, once: Run, every: Run, frozen: Sequence[int]) -> None:
        self.once, self.every = once, every
        self.frozen = tuple(frozen)
        self._rest: list[int] | None = None  # the other positions, once the inputs are counted
        # One attribute, replaced as a whole: threads see old or new values, never a mixture.
        self._packed = _NOTHING
        self._forgotten = 0  # how often forget() was called
        self._lock = ForkLock()
        self.packs = 0
        writes.watch(self)

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Compare the frozen inputs' state with the one kept, repack if need be, run."""
        constants = tuple([inputs[i] for i in self.frozen])
        if self._rest is None:
            self._rest = [i for i in range(len(inputs)) if i not in self.frozen]
        packed = self._packed
        if packed is _NOTHING or writes.state(constants, packed.how) != packed.state:
            packed = self._pack(constants)
        rest = [inputs[i] for i in self._rest]
        inputs.clear()
        return self.every(rest + packed.values)

    def forget(self, addresses: Addresses) -> None:
        """Repack at the next call if memory at one of these addresses is a frozen input's."""
        self._forgotten += 1  # a thread that packs now may have read before the write
        if addresses is None or not self._packed.memory.keys().isdisjoint(addresses):
            self._packed = _NOTHING

    def _pack(self, constants: tuple[Any, ...]) -> _Packed:
        with self._lock:
            packed, forgotten = self._packed, self._forgotten
            if packed is not _NOTHING and writes.state(constants, packed.how) == packed.state:
                return packed  # another thread was first
            how = writes.how_to_read(constants)
            state = writes.state(constants, how)
            packed = _Packed(self.once(list(constants)), state, how, _memory_of(constants))
            self._packed = packed
            if self._forgotten != forgotten:  # written to while it was read
                self._packed = _NOTHING
            self.packs += 1
            return packed


def _memory_of(tensors: Sequence[Any]) -> dict[int | None, Any]:
    addresses = [writes.storage_address(tensor) for tensor in tensors]
    return {
        address: tensor if address is None else tensor.untyped_storage()
        for address, tensor in zip(addresses, tensors, strict=True)
    }
