"""What code was made for, part by part, so that a difference can be named."""

from __future__ import annotations

import functools
import hashlib
import platform
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch

from dovetail.backend import Backend
from dovetail.cache.own_sources import own_digest
from dovetail.errors import NotKept
from dovetail.file.processors import PROCESSORS, processor_here, processor_identity
from dovetail.options import Options
from dovetail.sources import Unidentified, identity

PROCESSOR = "the processor"
# In hex digits; enough to tell sources apart.
_DIGITS = 16


def made_for(backends: Sequence[Backend], options: Options) -> dict[str, str]:
    """Everything but the graph that code depends on; NotKept where that has no text."""
    parts = {**_versions(), PROCESSOR: processor_identity()}
    parts["the list of backends"] = ", ".join(backend.name for backend in backends)
    for backend in backends:
        parts[f"the backend {backend.name}"] = _backend(backend)
    for name, text in options.key_parts().items():
        if name != "backends":  # the list says it
            parts[f"the option {name}"] = text
    return parts


@functools.cache
def _versions() -> dict[str, str]:
    return {
        "PyTorch": f"{torch.__version__} ({torch.version.git_version})",
        "Python": platform.python_version(),
        "dovetail": f"sources {own_digest()[:_DIGITS]}",
    }


def _backend(backend: Backend) -> str:
    try:
        args, given = backend.given
        told = identity((args, dict(sorted(given.items()))))
        text = f"{identity(type(backend))}\n{backend.fingerprint()}\n{told}"
    except Unidentified as error:
        raise NotKept(f"the backend {backend.name} has no identity: {error}") from None
    except Exception as error:  # a vendor's library may raise anything
        raise NotKept(f"the backend {backend.name} has no fingerprint: {error}") from error
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def runs_here(processor: str) -> bool:
    """Whether code was made for any processor of a level (``DOVETAIL_PROCESSOR``) that this has."""
    level, here = PROCESSORS.get(processor), processor_here()
    return level is not None and bool(here) and level <= here and _family(level) == _family(here)


def _family(level: int) -> int:
    return level >> 8


def difference(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """In what two sets of parts differ, in words; empty: in nothing."""
    for name in {**now, **then}:
        if then.get(name) != now.get(name):
            return f"{name} was {_shown(then.get(name))} and is {_shown(now.get(name))}"
    return ""


def _shown(text: str | None) -> str:
    words = "absent" if text is None else " ".join(text.split())
    return words if len(words) <= 60 else words[:59] + "…"


def keepable(options: Options) -> dict[str, Any]:
    """The options by name, for who loads a function that was compiled ahead of time.

    NotKept where one is an object of this process.
    """
    kept = {}
    for each in fields(options):
        value = getattr(options, each.name)
        if each.name == "backends" and value is not None:
            value = [name if isinstance(name, str) else type(name) for name in value]
        if value == each.default or each.name == "passes":  # passes are done with
            continue
        if not _is_plain(value):
            raise NotKept(f"the option {each.name} holds an object of this process")
        kept[each.name] = value
    return kept


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_plain(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)
