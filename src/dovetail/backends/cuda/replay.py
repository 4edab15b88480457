"""A segment's calls recorded as a CUDA graph and replayed: the whole of it is one launch.

What lies at the same address at every call, as weights do, is read where it lies; other inputs are
copied to memory of the graph's own. Results are copied out of it: the next replay overwrites them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Lock
from typing import Any

import torch

log = logging.getLogger(__name__)
WARM = 2  # calls before one is recorded: libraries choose their algorithms in the first
MOST_RECORDED = 3  # times that a call is recorded again, because what had stayed has moved

Call = Callable[[list[Any]], list[Any] | None]


class ReplayedCall:
    """The calls of a segment for one set of sizes."""

    def __init__(self, call: Call) -> None:
        self.call, self.lock = call, Lock()
        self.calls = self.recorded = 0
        self.before: list[int] = []
        self.graph: Any = None
        self.refusal = ""

    def __call__(self, inputs: list[Any]) -> list[Any] | None:
        """Run: as ever at first, then by a replay where nothing is in its way."""
        if self.refusal or torch.cuda.is_current_stream_capturing():
            return self.call(inputs)
        with self.lock:
            found = _addresses(inputs)
            if self.graph is not None and self._fits(found):
                return self._replay(inputs)
            if self.calls < WARM:
                self.calls, self.before = self.calls + 1, found
                return self.call(inputs)
            self._record(inputs, found)
            return self.call(inputs) if self.graph is None else self._replay(inputs)

    def _fits(self, found: list[int]) -> bool:
        """Whether a replay reads what it should, in the order of the stream it was recorded for."""
        if torch.cuda.current_stream() != self.stream:
            return False
        return all(found[n] == address for n, address in self.fixed)

    def _record(self, inputs: list[Any], found: list[int]) -> None:
        self.graph = None
        self.recorded += 1
        if self.recorded > MOST_RECORDED:
            self.refusal = "what it reads does not stay where it is"
            return
        self.stream = torch.cuda.current_stream()
        self.fixed = [(n, a) for n, a in enumerate(found) if a and a == self.before[n]]
        stays = {n for n, _ in self.fixed}
        self.moving = [n for n, a in enumerate(found) if a and n not in stays]
        given = list(inputs)
        self.own = [given[n].clone() for n in self.moving]
        for n, tensor in zip(self.moving, self.own, strict=True):
            given[n] = tensor
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                made = self.call(list(given))
        except RuntimeError as error:  # a call that waits for the device cannot be recorded
            self.refusal = str(error)
        else:
            self.refusal = _refusal(made, given)
            self.made, self.graph = made, graph
        if self.refusal:
            self.graph = self.made = None
            log.info("a segment is not recorded as a CUDA graph: %s", self.refusal)

    def _replay(self, inputs: list[Any]) -> list[Any]:
        assert self.made is not None
        if self.moving:
            torch._foreach_copy_(self.own, [inputs[n] for n in self.moving])
        self.graph.replay()
        inputs.clear()  # not before: others could be given their memory
        return [out.clone() if isinstance(out, torch.Tensor) else out for out in self.made]


def _addresses(inputs: list[Any]) -> list[int]:
    """Where each tensor lies; 0 for what is none."""
    return [x.data_ptr() if isinstance(x, torch.Tensor) else 0 for x in inputs]


def _refusal(made: list[Any] | None, given: list[Any]) -> str:
    """Why results cannot be copied out of a graph; empty when they can."""
    if made is None:
        return "an input does not lie as it was described"
    tensors = [t for t in made if isinstance(t, torch.Tensor)]
    if any(t.clone().stride() != t.stride() for t in tensors):
        return "a copy of a result has other strides"
    storages = [t.untyped_storage().data_ptr() for t in tensors]
    held = {x.untyped_storage().data_ptr() for x in given if isinstance(x, torch.Tensor)}
    if len(set(storages)) < len(storages) or held & set(storages):
        return "results share memory"
    return ""
