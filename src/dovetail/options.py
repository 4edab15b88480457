"""Every option of a compilation and its DOVETAIL_* variable, typed, in one place.

An option comes from ``torch.compile(…, options={…})``, else from its variable
(``DOVETAIL_STRICT=1``), else from its default. Options marked ``key=True`` change what is
compiled and enter cache keys; passes and backends do so by identities of their own. Variables of
the process that are no option: ``variables.py``.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.errors import InvalidOption, UnknownOption
from dovetail.variables import parse_flag

if TYPE_CHECKING:
    from dovetail.passes.manager import PassManager

# torch.compile's modes, each a set of options; docs/compiling.md says what they are for.
MODES: Mapping[str, Mapping[str, Any]] = {
    "default": {},
    "reduce-overhead": {"freeze": True, "cuda_graphs": True},
    "max-autotune": {"autotune": True, "freeze": True, "cuda_graphs": True},
    "max-autotune-no-cudagraphs": {"autotune": True, "freeze": True},
}
# Modes that PyTorch has and we do not, and why.
_NO_MODES: Mapping[str, str] = {
    "lite": "nothing is left out to compile sooner; see the options background and progressive",
}


class Kind(NamedTuple):
    """What values an option takes, in words and as a test, and how a variable writes one."""

    expected: str
    fits: Callable[[Any], bool]
    parse: Callable[[str], Any] = str  # ValueError or InvalidOption where it cannot be one
    written: str = ""  # what to write in a variable, where that differs from ``expected``


def _number(text: str) -> float:
    return int(text) if text.strip().isdecimal() else float(text)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and _is_number(value) and value > 0)


def _is_pass_manager(value: Any) -> bool:
    cls = type(value)  # an identity may be slow to tell, or impossible
    return value is None or (hasattr(cls, "run") and hasattr(cls, "identity"))


def _is_backend(value: Any) -> bool:
    return isinstance(value, str) or (hasattr(value, "supports") and hasattr(value, "name"))


def _are_backends(value: Any) -> bool:
    return value is None or (isinstance(value, list | tuple) and all(map(_is_backend, value)))


def _are_named(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(k, str) for k in value))


WAYS = ("in-process", "serialize", "subprocess")
FLAG = Kind(
    "True or False", lambda value: isinstance(value, bool), partial(parse_flag, ""), "1 or 0"
)
WAY = Kind(f"one of {', '.join(WAYS)}", lambda value: isinstance(value, str) and value in WAYS)
SECONDS = Kind(
    "a number of seconds above 0",
    lambda value: _is_number(value) and 0 < value < math.inf,
    _number,
)
COUNT = Kind("a whole number above 0, or None", _is_count, int, "a whole number above 0")
BACKENDS = Kind("a list of names of backends, Backend classes or Backend objects", _are_backends)
PASS_MANAGER = Kind("a dovetail.passes.PassManager", _is_pass_manager)
NAMED = Kind("a dict, by option name", _are_named)


def _option(default: Any, kind: Kind, *, env: str | None = None, key: bool = False) -> Any:
    return field(default=default, metadata={"kind": kind, "env": env, "key": key})


@dataclass(frozen=True)
class Options:
    """What a user can choose for one compilation."""

    strict: bool = _option(False, FLAG, env="DOVETAIL_STRICT", key=True)
    """Raise where a segment would otherwise fall back to the next backend."""

    backends: Sequence[Any] | None = _option(None, BACKENDS)
    """Who may run what, best first, such as ``["my_accel", "cpu"]``; ``aten`` ends every list."""

    keep_small: bool = _option(False, FLAG, env="DOVETAIL_KEEP_SMALL", key=True)
    """Leave a segment on its accelerator even where its copies take longer than it saves."""

    profile: bool = _option(False, FLAG, env="DOVETAIL_PROFILE")
    """Measure each segment at each call, for the report."""

    freeze: bool = _option(False, FLAG, env="DOVETAIL_FREEZE", key=True)
    """Treat parameters as constants in inference; a change of one is noticed at the next call."""

    cuda_graphs: bool = _option(False, FLAG, env="DOVETAIL_CUDA_GRAPHS")
    """Record what runs on a GPU in inference as CUDA graphs, and replay them."""

    autotune: bool = _option(False, FLAG, env="DOVETAIL_AUTOTUNE", key=True)
    """Measure the ways to compute each product, convolution and attention; take the fastest."""

    check_weights: bool = _option(False, FLAG, env="DOVETAIL_CHECK_WEIGHTS")
    """Compare the contents of all weights at each call; warn of writes that nothing else shows."""

    check: bool = _option(False, FLAG, env="DOVETAIL_CHECK")
    """Run every segment a second time on PyTorch's operators; name the first call that is wrong."""

    debug: bool = _option(False, FLAG, env="DOVETAIL_DEBUG")
    """Verify what every pass and every stage makes: graphs, segments, plans, kernels, programs."""

    keep_graphs: bool = _option(False, FLAG, env="DOVETAIL_KEEP_GRAPHS")
    """Keep each pass's graph, before and after, as text; ``explain`` does so by itself."""

    cache: bool = _option(True, FLAG)
    """Look the compiled graph up in the cache and keep it there; ``DOVETAIL_CACHE=0``: never."""

    compile: str = _option("in-process", WAY, env="DOVETAIL_COMPILE")
    """Where segments are compiled: see docs/compiling.md."""

    background: bool = _option(False, FLAG, env="DOVETAIL_BACKGROUND")
    """Return at once: calls run uncompiled until the code is there, then switch between two."""

    progressive: bool = _option(False, FLAG, env="DOVETAIL_PROGRESSIVE")
    """Make quick code first, for the first calls, and the chosen one in the background."""

    compile_timeout: float = _option(600.0, SECONDS, env="DOVETAIL_COMPILE_TIMEOUT")
    """Seconds that a compiler in a worker process may take for one segment."""

    compile_memory: int | None = _option(None, COUNT, env="DOVETAIL_COMPILE_MEMORY")
    """Bytes that a compiler in a worker process may hold; None: half of the machine's."""

    compile_workers: int | None = _option(None, COUNT, env="DOVETAIL_COMPILE_WORKERS")
    """How many worker processes compile side by side; None: one for each core."""

    passes: PassManager | None = _option(None, PASS_MANAGER)
    """The passes to run, instead of the default ones."""

    backend_options: Mapping[str, Any] | None = _option(None, NAMED)
    """The backend's own options: keyword arguments of its class."""

    @staticmethod
    def resolve(given: Mapping[str, Any] | None = None, mode: str | None = None) -> Options:
        """Options from ``torch.compile``'s arguments and the environment, checked."""
        if mode is not None and mode in _NO_MODES:
            wanted = f"{' or '.join(map(repr, MODES))}: {_NO_MODES[mode]}"
            raise InvalidOption("mode", mode, wanted)
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
            kind = known[name].metadata["kind"]
            if not kind.fits(value):
                raise InvalidOption(name, value, kind.expected)
        return Options(**chosen)

    def key_parts(self) -> dict[str, str]:
        """The options that change what is compiled, for a cache key."""
        return {f.name: repr(getattr(self, f.name)) for f in fields(self) if f.metadata["key"]}


def _from_environment() -> dict[str, Any]:
    found = {}
    for option in fields(Options):
        variable = option.metadata["env"]
        if variable and variable in os.environ:
            found[option.name] = _parse(variable, os.environ[variable], option.metadata["kind"])
    return found


def _parse(variable: str, text: str, kind: Kind) -> Any:
    """What a variable says; InvalidOption, which names the variable, where it says nothing."""
    try:
        value = kind.parse(text)
    except (ValueError, InvalidOption):
        value = None
    if value is None or not kind.fits(value):
        raise InvalidOption(variable, text, kind.written or kind.expected)
    return value
