"""The list of backends that may run a graph, best first; the last is always ``aten``.

``backend="my_accel"`` stands for ``["my_accel", "aten"]``. What the accelerator refuses then runs
in PyTorch, whatever this process's default backend is; ``backends=["my_accel", "cpu"]`` asks for
generated code there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail import registry
from dovetail.backend import Backend
from dovetail.errors import BackendUnavailable, InvalidOption
from dovetail.options import Options

Wanted = str | type[Backend] | Backend


def priority_list(options: Options, first: Wanted | None = None) -> tuple[Backend, ...]:
    """The backends of one compilation: ``first`` (what ``backend=`` names), then the option's.

    ``backend_options`` go to the first of them; another's can be given by passing an instance.
    """
    wanted: list[Wanted] = list(options.backends or ())
    if first is not None and (not wanted or _name(wanted[0]) != _name(first)):
        wanted.insert(0, first)
    names = [_name(each) for each in wanted]
    _check(names, options, first)
    if names[-1:] != [registry.LAST_BACKEND]:
        wanted.append(registry.LAST_BACKEND)
    own = options.backend_options or {}
    return tuple(_instance(each, own if n == 0 else {}) for n, each in enumerate(wanted))


def _check(names: Sequence[str], options: Options, first: Wanted | None) -> None:
    if first is not None and _name(first) in names[1:]:
        wanted = f"a list that starts with {_name(first)!r}, which backend= names, or lacks it"
        raise InvalidOption("backends", options.backends, wanted)
    if len(set(names)) < len(names):
        raise InvalidOption("backends", options.backends, "a list that names each backend once")
    if registry.LAST_BACKEND in names[:-1]:
        wanted = f"a list with {registry.LAST_BACKEND!r} last, since it takes everything"
        raise InvalidOption("backends", [*names], wanted)


def _name(wanted: Wanted) -> str:
    return wanted if isinstance(wanted, str) else wanted.name


def _instance(wanted: Wanted, options: dict[str, Any] | Any) -> Backend:
    """A backend that can run here; BackendUnavailable with its reason otherwise."""
    if isinstance(wanted, str):
        registry.lookup_backend(wanted)  # raises where it cannot run
        return registry.get_backend(wanted, **options)
    backend = wanted(**options) if isinstance(wanted, type) else wanted
    available = backend.available()
    if not available:
        raise BackendUnavailable(backend.name, available.reason)
    return backend
