"""Restoring: from the bytes in PyTorch's entry to a function, if they are for this very call.

PyTorch finds an entry by a function's qualified name and line number, and unpickles it when
``torch.compile`` is called. An error on the way means that the function is traced; one later,
when the code is installed, would reach the user. So everything is checked, and linked, while the
entry is read.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from dovetail import history, registry
from dovetail.backend import Backend
from dovetail.capture._torch.frames import Asked, asked_for, is_loading_aot, level_of_caller
from dovetail.capture._torch.logs import hide_traceback
from dovetail.capture._torch.precompile import (
    declare_serializable,
    forget_entries,
    output_code,
    precompile_artifact,
    skip_names,
)
from dovetail.capture.aot import as_plain
from dovetail.compiled import decode
from dovetail.errors import DovetailError, NotRestored, PrecompileWarning
from dovetail.history import CacheVerdict
from dovetail.linking import GraphLinker
from dovetail.options import Options
from dovetail.place.priority import priority_list
from dovetail.precompile.guards import check_guards, describe
from dovetail.precompile.made_for import PROCESSOR, difference, made_for, runs_here
from dovetail.precompile.payload import Payload
from dovetail.runtime.link import Linked

_OURS = "dovetail.dynamo"  # what ``backend=`` stands for comes from there


def restore(key: str, content: bytes) -> Any:
    """Code in Dynamo's entry, ready to call; pickled entries name this function."""
    call = as_plain(_restored(content))
    return precompile_artifact(key, content, restore, call)


def restore_part(content: bytes) -> Any:
    """A graph in AOTAutograd's result; pickled entries name this function."""
    linked = _restored(content)
    return output_code(linked.run, lambda: (restore_part, (content,)))


class AotCompiled:
    """A whole graph as ``aot_compile`` saves and loads it."""

    def __init__(self, call: Callable[..., Any], content: bytes) -> None:
        declare_serializable(type(self))
        self.call, self.content = call, content

    def __call__(self, *args: Any) -> Any:
        """Run it."""
        return self.call(*args)

    @classmethod
    def serialize_compile_artifacts(cls, fn: AotCompiled) -> bytes:
        """What PyTorch saves of it."""
        return fn.content

    @classmethod
    def deserialize_compile_artifacts(cls, data: bytes) -> AotCompiled:
        """It, from what PyTorch saved; NotRestored where it cannot run here."""
        return cls(as_plain(_restored(data)), data)


def _restored(content: bytes) -> Linked:
    asked = asked_for()
    if asked is None and not is_loading_aot():
        raise NotRestored("entries of other caches have not all that must be checked")
    try:
        return _link(Payload.decode(content), asked)
    except Exception as error:  # a vendor's loader may raise anything
        if asked is None:
            raise NotRestored(f"compile the function again: {_words(error)}") from error
        name = getattr(asked.function, "__qualname__", "a function")
        text = f"precompiled code of {name} is not used, and it is traced: {_words(error)}"
        warnings.warn(text, PrecompileWarning, stacklevel=level_of_caller())
        forget_entries(asked.function)
        hide_traceback(NotRestored)
        raise NotRestored(_words(error)) from None


def _words(error: Exception) -> str:
    return str(error) if isinstance(error, DovetailError) else f"{type(error).__name__}: {error}"


def _link(payload: Payload, asked: Asked | None) -> Linked:
    backends, options = _chosen(payload, asked)
    parts = made_for(backends, options)
    if runs_here(payload.parts.get(PROCESSOR, "")):
        parts[PROCESSOR] = payload.parts[PROCESSOR]
    if asked is not None:
        parts["the function"] = describe(asked.function) or ""
    if found := difference(payload.parts, parts):
        raise NotRestored(found)
    check_guards(payload.guards)
    skip_names(payload.names)
    record = history.begin(*(backend.name for backend in backends))
    record.cache.append(CacheVerdict("dynamo", "hit", "PyTorch's precompile"))
    try:
        return GraphLinker(backends, options, record).link(decode(payload.graph))
    except BaseException:
        history.discard(record)
        raise


def _chosen(payload: Payload, asked: Asked | None) -> tuple[tuple[Backend, ...], Options]:
    """The backends and options of this call, or those that the code was compiled with."""
    if asked is None:
        options = Options.resolve(payload.options)
        return priority_list(options, payload.backend or None), options
    options = Options.resolve(asked.options.get("options"), asked.options.get("mode"))
    name: str | None = _name(asked.compiler)
    if name == "dovetail":
        name = None if options.backends else registry.default_backend(payload.device)
    return priority_list(options, name), options


def _name(compiler: Any) -> str:
    if getattr(type(compiler), "__module__", "") == _OURS:
        return str(compiler.name)
    if (getattr(compiler, "__module__", ""), getattr(compiler, "__name__", "")) == (
        _OURS,
        "default_backend",
    ):
        return "dovetail"
    shown = getattr(compiler, "__name__", type(compiler).__name__)
    raise NotRestored(f"it is dovetail's, and torch.compile is asked for the backend {shown}")
