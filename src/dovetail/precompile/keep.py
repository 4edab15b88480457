"""Keeping: a compiled graph goes into the entry that Dynamo keeps for a function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from dovetail.backend import Backend
from dovetail.capture._torch import frames
from dovetail.capture._torch.precompile import (
    is_aot_compiling,
    is_kept,
    keep_artifact,
    names_given,
    output_code,
    precompile_id,
    precompile_missing,
)
from dovetail.compiled import encode
from dovetail.errors import DovetailError, NotKept, PrecompileWarning
from dovetail.lookup import compile_dynamo
from dovetail.options import Options
from dovetail.precompile.guards import describe, keep_guards
from dovetail.precompile.made_for import keepable, made_for
from dovetail.precompile.payload import Payload
from dovetail.precompile.restore import AotCompiled, restore, restore_part
from dovetail.runtime.link import Linked

# Names that Dynamo may give a frame after its graph is compiled: a few for each graph break.
_FOLLOWING = 1000


def compile_kept(
    gm: Any,
    example_inputs: Sequence[Any],
    backends: tuple[Backend, ...],
    options: Options,
    first: str,
    device: str,
) -> Callable[..., Any]:
    """Compile what Dynamo captured, and keep the code for PyTorch's precompile."""
    ahead, key = is_aot_compiling(), precompile_id(gm)
    missing = precompile_missing()
    if missing or not key:  # of a graph without a key PyTorch says why
        if missing:
            warn(missing)
        return compile_dynamo(gm, example_inputs, backends, options)
    keeper = Keeper(backends, options, first, device, "" if ahead else key)
    call = compile_dynamo(gm, example_inputs, backends, options, keeper)
    if ahead and keeper.reasons:
        raise NotKept(f"aot_compile cannot save this function: {'; '.join(keeper.reasons)}")
    if not ahead and not is_kept(key):
        warn("; ".join(keeper.reasons) or "AOTAutograd cannot keep it")
    return call


@dataclass(frozen=True)
class Keeper:
    """Keeps the graphs of one compilation; ``reasons`` has why one is not kept.

    ``key`` is the name that Dynamo's entry has for the code. Without, the code is compiled ahead
    of time and saved by the user.
    """

    backends: tuple[Backend, ...]
    options: Options
    first: str
    device: str
    key: str
    reasons: list[str] = field(default_factory=list)

    @cached_property
    def _parts(self) -> Payload | None:
        """All of a payload but the graph; also adds guards. None: nothing can be kept."""
        try:
            traced = frames.traced()
            if traced is None:
                raise NotKept("what Dynamo traces is not known")
            guards = keep_guards(traced, ahead=not self.key)
            parts = made_for(self.backends, self.options)
            if self.key:
                parts["the function"] = describe(traced.function) or ""
            options = {} if self.key else keepable(self.options)
        except DovetailError as error:
            self.reasons.append(str(error))
            return None
        names = names_given() + _FOLLOWING
        return Payload(parts, guards, self.first, self.device, b"", options, names)

    def whole(self, linked: Linked, call: Callable[..., Any]) -> Callable[..., Any]:
        """Keep the one graph that a Dynamo graph is; what to call in its place."""
        content = self._content(linked)
        if not content:
            return call
        if not self.key:
            return AotCompiled(call, content)
        keep_artifact(self.key, content, restore)
        return call

    def part(self, linked: Linked) -> Any:
        """A graph as AOTAutograd can keep it with its own result."""
        content = self._content(linked)

        def reduced() -> tuple[Any, ...]:
            if not content:
                raise TypeError("; ".join(self.reasons))  # one of pickling
            return restore_part, (content,)

        return output_code(linked.run, reduced)

    def _content(self, linked: Linked) -> bytes:
        """What is kept of a graph; empty where it cannot be, with the reason noted."""
        if self._parts is None:
            return b""
        try:
            return replace(self._parts, graph=encode(linked.graph)).encode()
        except DovetailError as error:
            if str(error) not in self.reasons:
                self.reasons.append(str(error))
            return b""


def warn(reason: str) -> None:
    """Say in one line that the next process traces again."""
    text = f"PyTorch's precompile keeps nothing of a graph, which is traced again: {reason}"
    warnings.warn(text, PrecompileWarning, stacklevel=frames.level_of_caller())
