"""What a pass is, and the three stages passes run at."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.history import Compilation
from dovetail.sources import identity

PassFn = Callable[[Any], Any]

STAGES = ("pre_grad", "joint", "post_grad")


@dataclass(frozen=True)
class Pass:
    """A named function from graph module to graph module, with an identity from its source.

    ``fn`` may change the module it is given and must return the module to go on with.
    ``subgraphs`` is False for a pass that handles nested graphs itself.
    """

    name: str
    fn: Callable[..., Any]
    subgraphs: bool = True

    @property
    def identity(self) -> str:
        """``name-hash``: the same in every process as long as the sources are the same.

        Read anew each time: what a function reads may change while a process runs.

        ``sources.py`` says which; an object that stands for several functions has the text that
        is hashed as its ``identity_source``. Unidentified where there is no such text.
        """
        return f"{self.name}-{hashlib.sha256(identity(self.fn).encode()).hexdigest()[:16]}"

    def __call__(self, graph_module: Any) -> Any:
        """Run the pass."""
        return self.fn(graph_module)


def as_pass(obj: Pass | PassFn, *, name: str | None = None) -> Pass:
    """``obj`` itself, or the function ``obj`` as a pass named after it."""
    return obj if isinstance(obj, Pass) else Pass(name or _name(obj), obj)


@dataclass(frozen=True)
class Passes:
    """Passes for each stage, in the order in which they run."""

    pre_grad: tuple[Pass, ...] = ()
    joint: tuple[Pass, ...] = ()
    post_grad: tuple[Pass, ...] = ()

    @staticmethod
    def of(
        pre_grad: Iterable[Pass | PassFn] = (),
        joint: Iterable[Pass | PassFn] = (),
        post_grad: Iterable[Pass | PassFn] = (),
    ) -> Passes:
        """Passes from plain functions."""
        return Passes(*(tuple(map(as_pass, group)) for group in (pre_grad, joint, post_grad)))

    def at(self, stage: str) -> tuple[Pass, ...]:
        """The passes of one stage."""
        return tuple(getattr(self, stage))


class PassRecorder(NamedTuple):
    """Where each pass is recorded; ``debug``: it is verified, ``keep_graphs``: kept as text."""

    record: Compilation
    debug: bool = False
    keep_graphs: bool = False


def _name(fn: PassFn) -> str:
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return str(name)
