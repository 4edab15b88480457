"""Where Dynamo enters: compiler functions for ``torch.compile(backend=…)``.

A package that brings a backend names it twice in its metadata: in ``dovetail.backends``, for us,
and in ``torch_dynamo_backends`` as ``my_accel = "dovetail.dynamo:my_accel"``, so that
``torch.compile(backend="my_accel")`` works in a process that never imported dovetail. Any
registered name can be read off this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dovetail import registry
from dovetail.errors import DovetailError


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
        from dovetail.capture import _torch
        from dovetail.options import Options
        from dovetail.pipeline import compile_dynamo

        try:
            chosen = Options.resolve(options, mode)
            backend = registry.get_backend(self.name, **(chosen.backend_options or {}))
            return compile_dynamo(gm, example_inputs, backend, chosen)
        except DovetailError as error:
            raise _torch.pass_through_dynamo(error) from error.__cause__

    def __repr__(self) -> str:
        return f"<dovetail backend {self.name!r}>"


class LazyCompiler:
    """A registered backend as Dynamo sees it: looked up when it is first called."""

    def __init__(self, name: str) -> None:
        self.name = self.__name__ = name

    def __call__(self, gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
        """Compile a captured graph with the backend of this name."""
        from dovetail.capture import _torch

        try:
            compiler = registry.lookup_backend(self.name)
        except DovetailError as error:
            raise _torch.pass_through_dynamo(error) from error.__cause__
        compiled = compiler(gm, example_inputs, **kwargs)
        if isinstance(compiler, BackendCompiler) or self.name in registry.BUILTIN:
            return compiled
        return _checked(compiled, gm, self.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LazyCompiler) and other.name == self.name

    def __hash__(self) -> int:
        return hash(self.name)

    def __repr__(self) -> str:
        return f"<dovetail backend {self.name!r}>"


def default_backend(gm: Any, example_inputs: Sequence[Any], **kwargs: Any) -> Callable[..., Any]:
    """``backend="dovetail"``: the default backend for the device the inputs are on."""
    name = registry.default_backend(device_of(example_inputs))
    return registry.lookup_backend(name)(gm, example_inputs, **kwargs)


def device_of(inputs: Sequence[Any]) -> str:
    """The device type of the inputs; an accelerator beats the CPU when both occur."""
    types = {x.device.type for x in inputs if hasattr(x, "device")}
    return min(types - {"cpu", "meta"}, default="cpu")


def compiler_for(name: str) -> BackendCompiler:
    """The compiler function of a Backend subclass."""
    return BackendCompiler(name)


def _checked(compiled: Callable[..., Any], gm: Any, name: str) -> Callable[..., Any]:
    """A function backend's result, held to the number of outputs its graph has."""
    from dovetail.runtime.runner import check_outputs

    count = len(gm.graph.output_node().args[0])

    def run(*args: Any) -> Any:
        results = compiled(*args)
        check_outputs(results, count, name)
        return results

    return run


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return registry.lookup_backend(name)
