"""Where Dynamo enters: compiler functions for ``torch.compile(backend=…)``.

A package that brings a backend names it twice in its metadata: in ``dovetail.backends``, for us,
and in ``torch_dynamo_backends`` as ``my_accel = "dovetail.dynamo:my_accel"``, so that
``torch.compile(backend="my_accel")`` works in a process that never imported dovetail. Any
registered name can be read off this module; where a name is not a Python identifier, with ``_``
for each character that is not.
"""

from __future__ import annotations

import re as _re
import sys as _sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from dovetail import registry as _registry  # underscored: a backend may be called "registry"
from dovetail.capture.collector import CollectorPause as _CollectorPause
from dovetail.errors import DovetailError, UnknownBackend

if TYPE_CHECKING:
    from dovetail.options import Options


class BackendCompiler:
    """A Backend as a Dynamo compiler function, with ``mode`` and ``options``."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(
        self,
        gm: Any,
        example_inputs: Sequence[Any],
        *,
        mode: str | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> Callable[..., Any]:
        """Compile a captured graph."""
        return _compile(gm, example_inputs, mode, options, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return _lookup, (self.name,)

    def __repr__(self) -> str:
        return f"<dovetail backend {self.name!r}>"


class LazyCompiler:
    """A registered backend as Dynamo sees it: looked up when it is first called.

    There is one for each registration, so Dynamo, which compares backends before it reuses
    compiled code, never takes the code of an earlier backend of the same name.
    """

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(self, gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a captured graph with the backend of this name."""
        compiler = _lookup(self.name)
        compiled = compiler(gm, example_inputs, **kwargs)
        if isinstance(compiler, BackendCompiler) or self.name in _registry.BUILTIN:
            return compiled
        return _checked(compiled, gm, self.name)

    def __reduce__(self) -> tuple[Any, ...]:
        return lazy_compiler, (self.name,)

    def __repr__(self) -> str:
        return f"<dovetail backend {self.name!r}>"


def default_backend(gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """``backend="dovetail"``: the backends of the options, else the default for the device.

    That is the device the inputs are on.
    """
    _import_lookup()
    options = kwargs.get("options")
    if isinstance(options, Mapping) and options.get("backends"):
        return _compile(gm, example_inputs, kwargs.get("mode"), options, None)
    name = _registry.default_backend(device_of(example_inputs))
    return _lookup(name)(gm, example_inputs, **kwargs)


def _compile(
    gm: Any,
    example_inputs: Sequence[Any],
    mode: str | None,
    options: Mapping[str, Any] | None,
    first: str | None,
) -> Callable[..., Any]:
    """Compile for ``first`` and the backends that the options name."""
    _import_lookup()
    from dovetail.capture._torch.dynamo import pass_through_dynamo
    from dovetail.capture._torch.precompile import is_aot_compiling, is_precompiling
    from dovetail.lookup import compile_dynamo
    from dovetail.options import Options
    from dovetail.place.priority import priority_list

    try:
        chosen = Options.resolve(options, mode)
        backends = priority_list(chosen, first)
        if not (is_precompiling() or is_aot_compiling()):
            with _logs(), _lines(chosen) as chosen:
                return compile_dynamo(gm, example_inputs, backends, chosen)
        from dovetail.precompile.keep import compile_kept

        return compile_kept(
            gm, example_inputs, backends, chosen, first or "", device_of(example_inputs)
        )
    except DovetailError as error:
        raise pass_through_dynamo(error) from error.__cause__


def _logs() -> AbstractContextManager[None]:
    """What writes the logs that TORCH_LOGS asks for, imported where it does."""
    from dovetail.capture._torch.logs import wanted_artifacts

    if not wanted_artifacts():
        return nullcontext()
    from dovetail.report.logs import logged

    return logged()


@contextmanager
def _lines(options: Options) -> Iterator[Options]:
    """What shows lines of the model in profiles, and the options with it.

    A graph from the cache comes without lines, so what is profiled is compiled anew.
    """
    from dataclasses import replace

    from dovetail import history

    if not options.profile or history.is_observed():
        yield options
        return
    from dovetail.report.profiled import lines_told

    with lines_told():
        yield replace(options, cache=False)


def _import_lookup() -> None:
    """Import what finds and links compiled graphs, with the cycle collector paused.

    Nothing that a module defines is garbage. A full collection, which so many new objects may set
    off, takes a fifth of a second where torch is loaded.
    """
    if "dovetail.lookup" not in _sys.modules:
        with _CollectorPause():
            import dovetail.lookup  # noqa: F401


def device_of(inputs: Sequence[Any]) -> str:
    """The device type of the inputs; an accelerator beats the CPU when both occur."""
    types = {x.device.type for x in inputs if hasattr(x, "device")}
    return min(types - {"cpu", "meta"}, default="cpu")


def compiler_for(name: str) -> BackendCompiler:
    """The compiler function of a Backend subclass."""
    return BackendCompiler(name)


def lazy_compiler(name: str) -> Any:
    """What Dynamo holds for a registered name; also how a copy or a pickle finds it again."""
    return _registry.dynamo_compiler(name)


def _lookup(name: str) -> Callable[..., Callable[..., Any]]:
    from dovetail.capture._torch.dynamo import pass_through_dynamo

    try:
        return _registry.lookup_backend(name)
    except DovetailError as error:
        raise pass_through_dynamo(error) from error.__cause__


def _checked(compiled: Callable[..., Any], gm: Any, name: str) -> Callable[..., Any]:
    """A function backend's result, held to the number of outputs its graph has."""
    from dovetail.runtime.runner import check_outputs

    count = len(gm.graph.output_node().args[0])

    def run(*args: Any) -> Any:
        results = compiled(*args)
        check_outputs(results, count, name)
        return results

    return run


def __getattr__(attribute: str) -> Any:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    names = _registry.list_backends(exclude_tags=())
    name = next((n for n in names if _re.sub(r"\W", "_", n) == attribute), attribute)
    try:
        compiler = _registry.dynamo_compiler(name)
    except UnknownBackend as error:  # hasattr() and entry points expect this class
        raise AttributeError(str(error)) from None
    _registry.lookup_backend(name)  # what cannot run says so now, not at the first call
    return compiler
