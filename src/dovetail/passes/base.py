"""What a pass is, and the three stages passes run at."""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

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

    @functools.cached_property
    def identity(self) -> str:
        """``name-hash``: the same in every process as long as the source is the same."""
        return f"{self.name}-{hashlib.sha256(source_of(self.fn).encode()).hexdigest()[:16]}"

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


def _name(fn: PassFn) -> str:
    name = getattr(fn, "__name__", None) or type(fn).__name__
    return str(name)


def source_of(fn: Any) -> str:
    """The text a pass's identity is taken from: its source, and what it closes over.

    An object that stands for several functions has it as its ``identity_source``.
    """
    if hasattr(fn, "identity_source"):
        return str(fn.identity_source)
    target = fn.func if isinstance(fn, functools.partial) else fn
    if not inspect.isroutine(target):
        target = type(target)
    try:
        text = inspect.getsource(target)
    except (OSError, TypeError):  # typed at a prompt, or compiled: its code object must do
        code = getattr(target, "__code__", None)
        text = f"{code.co_code!r}{code.co_consts!r}" if code else repr(target)
    bound = getattr(fn, "args", ()), getattr(fn, "keywords", {})
    cells = [c.cell_contents for c in getattr(target, "__closure__", None) or ()]
    return f"{target.__module__}.{target.__qualname__}\n{text}\n{_stable(bound)}\n{_stable(cells)}"


def _stable(value: Any) -> str:
    """A repr without addresses: functions by name, other objects by type."""
    if isinstance(value, dict):
        return repr(sorted((str(k), _stable(v)) for k, v in value.items()))
    if isinstance(value, list | tuple | set | frozenset):
        return repr([_stable(v) for v in value])
    if isinstance(value, str | int | float | bool | bytes | None):
        return repr(value)
    return str(getattr(value, "__qualname__", type(value).__qualname__))
