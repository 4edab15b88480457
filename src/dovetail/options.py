"""Every option of a compilation and its DOVETAIL_* variable, typed, in one place.

An option comes from ``torch.compile(…, options={…})``, else from its variable
(``DOVETAIL_STRICT=1``), else from its default. Options marked ``key=True`` change the code that
is generated and enter cache keys. Variables of the process that are no option: ``variables.py``.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

from dovetail.errors import InvalidOption, UnknownOption
from dovetail.variables import parse_flag

if TYPE_CHECKING:
    from dovetail.passes.manager import PassManager

# torch.compile's modes. Each is a set of options; today's backends need none of them to differ.
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {},
    "max-autotune": {},
    "max-autotune-no-cudagraphs": {},
}


def _option(default: Any, expected: str, *, env: str | None = None, key: bool = False) -> Any:
    return field(default=default, metadata={"expected": expected, "env": env, "key": key})


@dataclass(frozen=True)
class Options:
    """What a user can choose for one compilation."""

    strict: bool = _option(False, "True or False", env="DOVETAIL_STRICT")
    """Raise where a segment would otherwise fall back to the next backend."""

    backends: Sequence[Any] | None = _option(
        None, "a list of names of backends, Backend classes or Backend objects", key=True
    )
    """Who may run what, best first, such as ``["my_accel", "cpu"]``; ``aten`` ends every list."""

    keep_small: bool = _option(False, "True or False", env="DOVETAIL_KEEP_SMALL", key=True)
    """Leave a segment on its accelerator even where its copies take longer than it saves."""

    profile: bool = _option(False, "True or False", env="DOVETAIL_PROFILE")
    """Measure each segment at each call, for the report."""

    freeze: bool = _option(False, "True or False", env="DOVETAIL_FREEZE", key=True)
    """Treat parameters as constants in inference; a change of one is noticed at the next call."""

    check_weights: bool = _option(False, "True or False", env="DOVETAIL_CHECK_WEIGHTS")
    """Compare the contents of all weights at each call; warn of writes that nothing else shows."""

    debug: bool = _option(False, "True or False", env="DOVETAIL_DEBUG")
    """Verify the graph and its metadata after every pass."""

    keep_graphs: bool = _option(True, "True or False", env="DOVETAIL_KEEP_GRAPHS")
    """Keep each stage's graph, before and after, for ``explain``."""

    cache: bool = _option(True, "True or False")
    """Look the compiled graph up in the cache and keep it there; ``DOVETAIL_CACHE=0``: never."""

    passes: PassManager | None = _option(None, "a dovetail.passes.PassManager", key=True)
    """The passes to run, instead of the default ones."""

    backend_options: Mapping[str, Any] | None = _option(None, "a dict, by option name", key=True)
    """The backend's own options: keyword arguments of its class."""

    @staticmethod
    def resolve(given: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
        """Options from ``torch.compile``'s arguments and the environment, checked."""
        if mode is not None and mode not in MODES:
            raise UnknownOption("mode", mode, MODES)
        if given is not None and not isinstance(given, Mapping):
            raise InvalidOption("options", given, "a dict")
        known = {f.name: f for f in fields(Options)}
        chosen: dict[str, Any] = {
            **_from_environment(),
            **MODES[mode or "default"],
            **(given or {}),
        }
        for name, value in chosen.items():
            if name not in known:
                raise UnknownOption("option", name, known)
            _check(name, value, known[name].metadata["expected"])
        return Options(**chosen)

    def key_parts(self) -> dict[str, str]:
        """The options that change generated code, for a cache key."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.metadata["key"]}
        return {name: _key_part(value) for name, value in values.items()}


def _key_part(value: Any) -> str:
    if isinstance(value, list | tuple):  # of backends, whose own fingerprints enter keys too
        return ", ".join(each if isinstance(each, str) else str(each.name) for each in value)
    return str(getattr(value, "identity", None) or repr(value))


def _check(name: str, value: Any, expected: str) -> None:
    if name == "passes":
        fits = value is None or (hasattr(value, "run") and hasattr(value, "identity"))
    elif name == "backends":
        fits = value is None or (isinstance(value, list | tuple) and all(map(_is_backend, value)))
    elif name == "backend_options":
        fits = value is None or (
            isinstance(value, Mapping) and all(isinstance(k, str) for k in value)
        )
    else:
        fits = isinstance(value, bool)
    if not fits:
        raise InvalidOption(name, value, expected)


def _is_backend(value: Any) -> bool:
    return isinstance(value, str) or (hasattr(value, "supports") and hasattr(value, "name"))


def _from_environment() -> dict[str, bool]:
    found = {}
    for option in fields(Options):
        variable = option.metadata["env"]
        if variable and variable in os.environ:
            found[option.name] = parse_flag(variable, os.environ[variable])
    return found
