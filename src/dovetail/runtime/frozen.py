"""Frozen parameters: what depends on them alone is computed once, and again when one changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

from dovetail.locks import ForkLock
from dovetail.runtime import writes
from dovetail.runtime.writes import Addresses

Run = Callable[[list[Any]], Sequence[Any]]
# A function of the other inputs alone, where these values are always the last; None: the same is
# to be had by calling the whole.
Bind = Callable[[Sequence[Any]], Run | None]


@dataclass(frozen=True, slots=True)
class _Packed:
    """What was computed once, and the state of the inputs it was computed from."""

    run: Run  # ``every`` with the values that were computed
    state: object
    how: bytes  # how the state was read
    memory: dict[int | None, Any]  # by address; held, so that no other can come to lie there


_NOTHING = _Packed(list, None, b"", {})


class FrozenRunner:
    """``once`` on the frozen inputs when they change, ``every`` on the rest at each call."""

    def __init__(
        self, once: Run, every: Run, frozen: Sequence[int], bind: Bind | None = None
    ) -> None:
        self.once, self.every, self.bind = once, every, bind
        self.frozen = tuple(frozen)
        self._constants = _picking(self.frozen)
        self._rest: list[int] | None = None  # the other positions, once the inputs are counted
        # One attribute, replaced as a whole: threads see old or new values, never a mixture.
        self._packed = _NOTHING
        self._forgotten = 0  # how often forget() was called
        self._lock = ForkLock()
        self.packs = 0
        writes.watch(self)

    def __call__(self, inputs: list[Any]) -> Sequence[Any]:
        """Compare the frozen inputs' state with the one kept, repack if need be, run."""
        constants = self._constants(inputs)
        if self._rest is None:
            self._rest = [i for i in range(len(inputs)) if i not in self.frozen]
        packed = self._packed
        if packed is _NOTHING or not writes.is_unchanged(constants, packed.how, packed.state):
            packed = self._pack(constants)
        rest = [inputs[i] for i in self._rest]
        inputs.clear()
        return packed.run(rest)

    def forget(self, addresses: Addresses) -> None:
        """Repack at the next call if memory at one of these addresses is a frozen input's."""
        self._forgotten += 1  # a thread that packs now may have read before the write
        if addresses is None or not self._packed.memory.keys().isdisjoint(addresses):
            self._packed = _NOTHING

    def _pack(self, constants: tuple[Any, ...]) -> _Packed:
        with self._lock:
            packed, forgotten = self._packed, self._forgotten
            if packed is not _NOTHING and writes.is_unchanged(constants, packed.how, packed.state):
                return packed  # another thread was first
            how = writes.how_to_read(constants)
            state = writes.state(constants, how)
            run = self._with(self.once(list(constants)))
            packed = _Packed(run, state, how, _memory_of(constants))
            self._packed = packed
            if self._forgotten != forgotten:  # written to while it was read
                self._packed = _NOTHING
            self.packs += 1
            return packed

    def _with(self, values: Sequence[Any]) -> Run:
        bound = self.bind(values) if self.bind is not None else None
        return bound or partial(_run_with, self.every, list(values))


def _run_with(every: Run, values: list[Any], rest: list[Any]) -> Sequence[Any]:
    return every(rest + values)


def _picking(positions: tuple[int, ...]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """Reads these positions of a list."""
    if len(positions) > 1:
        return itemgetter(*positions)
    return lambda inputs: tuple([inputs[i] for i in positions])


def _memory_of(tensors: Sequence[Any]) -> dict[int | None, Any]:
    addresses = [writes.storage_address(tensor) for tensor in tensors]
    return {
        address: tensor if address is None else tensor.untyped_storage()
        for address, tensor in zip(addresses, tensors, strict=True)
    }
