"""The mode ``check_weights``: finds by their contents that weights were written to unnoticed."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from dovetail.errors import StaleWeights
from dovetail.runtime import writes
from dovetail.runtime.writes import Addresses

Run = Callable[[list[Any]], list[Any]]


@dataclass(frozen=True, slots=True)
class _Seen:
    """A tensor as it was when it was last looked at."""

    storage: weakref.ref[Any]  # while it lives, nobody else's memory is at its address
    state: object
    contents: bytes | None


class _Ledger:
    """What tensors held when a compiled graph last took them, for all graphs of the process.

    A device's copy outlives the graph that made it, so what one graph saw counts for the next.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[Any, ...], _Seen] = {}
        writes.watch(self)

    def is_stale(self, tensor: Any) -> bool:
        """Whether a tensor was written to since it was last seen, and nothing shows it."""
        layout = (tensor.storage_offset(), tensor.dtype, tuple(tensor.shape), tensor.stride())
        key = (writes.storage_address(tensor), *layout)
        state = writes.state((tensor,), writes.how_to_read((tensor,)))
        storage = weakref.ref(tensor.untyped_storage(), lambda dead: self._drop(key, dead))
        before = self._seen.get(key)
        now = self._seen[key] = _Seen(storage, state, writes.contents(tensor))
        if before is None or before.storage() is None or before.state != now.state:
            return False
        return before.contents != now.contents

    def forget(self, addresses: Addresses) -> None:
        """Told of a write: what was seen of that memory says nothing any more."""
        for key in list(self._seen):
            if addresses is None or key[0] in addresses:
                self._seen.pop(key, None)

    def _drop(self, key: tuple[Any, ...], storage: weakref.ref[Any]) -> None:
        seen = self._seen.get(key)
        if seen is not None and seen.storage is storage:
            self._seen.pop(key, None)


_ledger: _Ledger | None = None


class CheckedRunner:
    """Compares the contents of the weights of a graph before each of its calls."""

    def __init__(self, run: Run, labels: Mapping[int, str]) -> None:
        global _ledger
        _ledger = _ledger or _Ledger()
        self.run, self._labels, self._ledger = run, labels, _ledger

    def __call__(self, inputs: list[Any]) -> list[Any]:
        """Run with weights as they are now; warn where one was written to unnoticed."""
        stale = {n: inputs[n] for n in range(len(inputs)) if self._is_stale(n, inputs[n])}
        if stale:
            writes.changed(stale.values())
            warnings.warn(StaleWeights([self._name(*each) for each in stale.items()]), stacklevel=2)
        return self.run(inputs)

    def _is_stale(self, position: int, value: Any) -> bool:
        """Of what a graph or a device may keep: parameters and what is marked as the module's."""
        if not isinstance(value, nn.Parameter) and position not in self._labels:
            return False
        if writes.storage_address(value) is None or value.is_inference():  # compared whole anyway
            return False
        return self._ledger.is_stale(value)

    def _name(self, position: int, tensor: Any) -> str:
        label = self._labels.get(position, f"input {position}")
        return f"{label} ({str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)})"
