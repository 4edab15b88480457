"""What PyTorch is in the middle of, read off the stack: a trace, an entry, a user's call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple


class Asked(NamedTuple):
    """The call of ``torch.compile`` for which PyTorch reads an entry."""

    function: Callable[..., Any]  # what is compiled, a method of its module mostly
    compiler: Any  # what ``backend=`` stands for
    options: dict[str, Any]  # and its keyword arguments


def asked_for() -> Asked | None:
    """Which call of ``torch.compile`` reads an entry right now, from the frames; None: none does.

    PyTorch passes none of it on: an entry is found by a function's name and line alone.
    """
    from torch._dynamo import eval_frame, package

    load = package.DiskDynamoCache.load.__code__
    call = eval_frame._TorchDynamoContext.__call__.__code__
    function: Any = None
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code is load:
            function = eval_frame.innermost_fn(frame.f_locals["fn"])
        elif frame.f_code is call and function is not None:
            backend = eval_frame.innermost_backend(frame.f_locals["self"].callback)
            compiler = getattr(backend, "compiler_fn", backend)
            return Asked(function, compiler, dict(getattr(backend, "kwargs", {})))
        frame = frame.f_back
    return None


def is_loading_aot() -> bool:
    """Whether ``torch.compiler.load_compiled_function`` or its like reads a function right now."""
    from torch._dynamo.aot_compile import AOTCompiledFunction

    load = AOTCompiledFunction.deserialize.__func__.__code__
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not load:
        frame = frame.f_back
    return frame is not None


# Guards that compare identities. An entry leaves them out: another process has other objects.
_DROPPED_GUARDS = frozenset(
    [
        "BUILTIN_MATCH",
        "CLASS_MATCH",
        "CLOSURE_MATCH",
        "DICT_VERSION",
        "FUNCTION_MATCH",
        "ID_MATCH",
        "MODULE_MATCH",
        "NN_MODULE",
        "WEAKREF_ALIVE",
    ]
)


class Traced(NamedTuple):
    """What Dynamo traces right now, and the guards that its entry leaves out."""

    function: Callable[..., Any]
    dropped: dict[str, Any]  # where an object is found, ``L['self'].act``: Dynamo's source of it
    scope: dict[str, dict[str, Any]]  # L and G: the frame's variables
    output: Any

    def guard_attributes(self, name: str, attributes: Iterable[str]) -> None:
        """Guard the values of attributes, such as ``__code__.co_code``, of a dropped one's object.

        They are constants, which an entry keeps.
        """
        from torch._dynamo.guards import GuardBuilder
        from torch._dynamo.source import AttrSource

        for path in attributes:
            source = self.dropped[name]
            for attribute in path.split("."):
                source = AttrSource(source, attribute)
            self.output.guards.add(source.make_guard(GuardBuilder.CONSTANT_MATCH))


def traced() -> Traced | None:
    """What Dynamo traces for an entry, or for ``aot_compile``, right now; None: nothing."""
    found = _traced_ahead() or _traced_for_entry()
    if found is None:
        return None
    function, output = found
    guards = (guard for guard in output.guards if guard.create_fn_name() in _DROPPED_GUARDS)
    dropped = {guard.name: guard.originating_source for guard in guards}
    scope = {"L": dict(output.local_scope), "G": output.global_scope}
    return Traced(function, dict(sorted(dropped.items())), scope, output)


def _traced_for_entry() -> tuple[Callable[..., Any], Any] | None:
    from torch._dynamo.symbolic_convert import InstructionTranslator

    try:
        output = InstructionTranslator.current_tx().output
    except AttributeError:  # none in this thread
        return None
    function = getattr(output.package, "_innermost_fn", None)
    return None if function is None else (function, output)


def _traced_ahead() -> tuple[Callable[..., Any], Any] | None:
    from torch._dynamo.aot_compile import aot_compile_fullgraph

    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code is not aot_compile_fullgraph.__code__:
        frame = frame.f_back
    if frame is None:
        return None
    return frame.f_locals["fn"], frame.f_locals["graph_capture_output"].output_graph


def level_of_caller() -> int:
    """``stacklevel`` of a warning about the call that led into PyTorch and from there to us."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None:
        if frame.f_globals.get("__name__", "").partition(".")[0] not in ("dovetail", "torch"):
            return level
        level, frame = level + 1, frame.f_back
    return level
