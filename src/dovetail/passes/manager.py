"""The pass manager: an immutable list of passes for each stage, and the loop that runs them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from torch import fx

from dovetail.errors import (
    BackendContract,
    DovetailError,
    InvalidOption,
    PassFailed,
    UnknownOption,
    UnknownPass,
)
from dovetail.passes import verify
from dovetail.passes.base import STAGES, Pass, Passes, PassFn, PassRecorder, as_pass
from dovetail.passes.builtin import BUILTIN
from dovetail.passes.graphs import subgraphs
from dovetail.passes.steps import STEPS
from dovetail.passes.text import graph_text

if TYPE_CHECKING:
    from dovetail.backend import Backend


@dataclass(frozen=True)
class PassManager:
    """Passes by stage. Every method that changes something returns a new manager.

    >>> manager = dovetail.passes.default().add("post_grad", my_pass, after="cse").remove("dce")
    >>> torch.compile(model, backend="dovetail", options={"passes": manager})
    """

    passes: Passes = BUILTIN

    def names(self, stage: str) -> list[str]:
        """The names of a stage's passes, in order."""
        return [p.name for p in self._at(stage)]

    def add(
        self,
        stage: str,
        new: Pass | PassFn,
        *,
        before: str | None = None,
        after: str | None = None,
    ) -> PassManager:
        """With one more pass: at the end, or next to another."""
        if before is not None and after is not None:
            raise InvalidOption("after", after, "left out when before= is given")
        held = list(self._at(stage))
        anchor = before or after
        if anchor is None:
            position = len(held)
        else:
            position = self._position(stage, anchor) + (after is not None)
        added = as_pass(new)
        if added.name in self.names(stage):
            raise PassFailed(added.name, stage, "is already there; remove it first or rename it")
        held.insert(position, added)
        return self._with(stage, held)

    def remove(self, name: str) -> PassManager:
        """Without the passes of this name, at whatever stage."""
        if not any(name in self.names(stage) for stage in STAGES):
            raise UnknownPass(name, [n for stage in STAGES for n in self.names(stage)])
        manager = self
        for stage in STAGES:
            manager = manager._with(stage, [p for p in self._at(stage) if p.name != name])
        return manager

    def reorder(self, stage: str, names: Iterable[str]) -> PassManager:
        """With a stage's passes in this order; those not named follow in the order they had."""
        wanted = dict.fromkeys(names)
        first = [self._at(stage)[self._position(stage, name)] for name in wanted]
        rest = [p for p in self._at(stage) if p not in first]
        return self._with(stage, [*first, *rest])

    def extend(self, more: Passes) -> PassManager:
        """With a backend's own passes at the end of each stage."""
        manager = self
        for stage in STAGES:
            for new in more.at(stage):
                manager = manager.add(stage, new)
        return manager

    @property
    def identity(self) -> str:
        """A hash of every pass's identity, and of the steps that follow, for cache keys."""
        parts = [f"{stage}:{p.identity}" for stage in STAGES for p in self._at(stage)]
        parts += [f"step:{p.identity}" for p in STEPS]
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]

    def run(
        self,
        stage: str,
        gm: fx.GraphModule,
        graph: str,
        recorder: PassRecorder,
    ) -> fx.GraphModule:
        """Run a stage's passes on a graph and its nested graphs; ``graph`` says which it is."""
        record, debug, keep_graphs = recorder
        text = graph_text(gm) if keep_graphs else ""
        watch = verify.Verifier(gm) if debug and stage != "pre_grad" else None
        for each in self._at(stage):
            with record.stage(each.name, graph) as entry:
                entry.before = text
                before = verify.Watch(gm)
                gm = _run_one(each, stage, gm)
                entry.changed = before.sees_change(gm)
                if watch is not None and entry.changed:
                    watch.check(each.name, stage, gm)
                text = graph_text(gm) if keep_graphs and entry.changed else text
                entry.after = text
                entry.changed &= not keep_graphs or entry.before != text
        return gm

    def _at(self, stage: str) -> tuple[Pass, ...]:
        if stage not in STAGES:
            raise UnknownOption("stage", stage, STAGES)
        return self.passes.at(stage)

    def _with(self, stage: str, passes: Iterable[Pass]) -> PassManager:
        changed: dict[str, Any] = {stage: tuple(passes)}
        return PassManager(replace(self.passes, **changed))

    def _position(self, stage: str, name: str) -> int:
        names = self.names(stage)
        if name not in names:
            raise UnknownPass(name, names)
        return names.index(name)


def _run_one(each: Pass, stage: str, gm: fx.GraphModule) -> fx.GraphModule:
    if each.subgraphs:
        for name, sub in subgraphs(gm).items():
            setattr(gm, name, _run_one(each, stage, sub))
    inputs = verify.count_inputs(gm)
    try:
        result = each(gm)
    except DovetailError:
        raise
    except Exception as error:  # a pass may raise anything; say which one it was
        raise PassFailed(each.name, stage, f"raised {type(error).__name__}: {error}") from error
    problem = verify.check_structure(result, inputs)
    if problem:
        raise PassFailed(each.name, stage, problem)
    if stage != "pre_grad":
        verify.fill_metadata(result)
    return result


_default = PassManager()


def default() -> PassManager:
    """The passes that every compilation runs unless told otherwise."""
    return _default


def with_backends(chosen: PassManager | None, backends: Iterable[Backend]) -> PassManager:
    """The passes to run: the chosen ones, then each backend's own, in the list's order."""
    passes = chosen or default()
    for backend in backends:
        own = backend.passes()
        if not isinstance(own, Passes):
            raise BackendContract(backend.name, "passes()", f"returned {own!r}")
        passes = passes.extend(own)
    return passes


def set_default(manager: PassManager | Callable[[PassManager], PassManager] | None) -> None:
    """Change the default for the whole process: a manager, an edit of the current one, or None."""
    global _default
    if manager is None:
        _default = PassManager()
    elif isinstance(manager, PassManager):
        _default = manager
    elif callable(manager):
        _default = manager(_default)
    else:
        raise InvalidOption("manager", manager, "a PassManager, a function on one, or None")
