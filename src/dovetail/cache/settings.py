"""Where the cache lies and what it may do: the ``DOVETAIL_CACHE*`` variables, or ``configure``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dovetail.errors import InvalidOption
from dovetail.variables import parse_flag, variable

# Bytes: room for some thousand compiled graphs without their weights.
DEFAULT_SIZE = 4 << 30
# Seconds, longer than any graph of our benchmarks takes to compile on one slow core.
DEFAULT_WAIT = 120.0
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


@dataclass(frozen=True)
class Settings:
    """What a process uses the cache with."""

    enabled: bool
    folder: str
    size: int
    """The most bytes that the folder may hold."""
    wait: float
    """The most seconds to wait for another process that compiles the same key."""
    remote: str
    """The remote cache's URL, or ``""``."""
    key_file: str
    """The file whose key authenticates remote entries, or ``""``."""


_configured: dict[str, Any] = {}


def configure(
    *,
    enabled: bool | None = None,
    folder: str | os.PathLike[str] | None = None,
    size: int | str | None = None,
    wait: float | None = None,
    remote: str | None = None,
    key_file: str | os.PathLike[str] | None = None,
) -> Settings:
    """Set up this process's cache; what is not given comes from the variables."""
    given: dict[str, tuple[Any, Callable[[str, str], Any]]] = {
        "enabled": (None if enabled is None else str(int(enabled)), parse_flag),
        "folder": (folder, _parse_path),
        "size": (size, parse_size),
        "wait": (wait, _parse_seconds),
        "remote": (remote, _parse_url),
        "key_file": (key_file, _parse_path),
    }
    chosen = {
        name: parse(name, str(value)) for name, (value, parse) in given.items() if value is not None
    }
    _configured.clear()
    _configured.update(chosen)
    return current()


def current() -> Settings:
    """What holds now. The variables are read each time: they may change while a process runs."""
    held = _from_environment(
        variable("DOVETAIL_CACHE"),
        variable("DOVETAIL_CACHE_DIR") or _default_folder(),
        variable("DOVETAIL_CACHE_SIZE"),
        variable("DOVETAIL_CACHE_WAIT"),
        variable("DOVETAIL_CACHE_REMOTE"),
        variable("DOVETAIL_CACHE_KEY"),
    )
    return Settings(**{**vars(held), **_configured}) if _configured else held


def parse_size(name: str, text: str) -> int:
    """Bytes from a number with an optional unit: ``500M``."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    if not found:
        raise InvalidOption(name, text, "a number of bytes such as 500M or 4G")
    return int(float(found[1]) * _UNITS[found[2].upper()])


@lru_cache(maxsize=1)
def _from_environment(
    enabled: str | None,
    folder: str,
    size: str | None,
    wait: str | None,
    remote: str | None,
    key_file: str | None,
) -> Settings:
    return Settings(
        enabled=parse_flag("DOVETAIL_CACHE", enabled) if enabled else True,
        folder=_parse_path("DOVETAIL_CACHE_DIR", folder),
        size=parse_size("DOVETAIL_CACHE_SIZE", size) if size else DEFAULT_SIZE,
        wait=_parse_seconds("DOVETAIL_CACHE_WAIT", wait) if wait else DEFAULT_WAIT,
        remote=_parse_url("DOVETAIL_CACHE_REMOTE", remote) if remote else "",
        key_file=_parse_path("DOVETAIL_CACHE_KEY", key_file) if key_file else "",
    )


def _default_folder() -> str:
    home = os.environ.get("XDG_CACHE_HOME", "")
    return f"{home if home.startswith('/') else '~/.cache'}/dovetail"


def _parse_path(_name: str, text: str) -> str:
    return os.path.abspath(os.path.expanduser(text))  # noqa: PTH100, PTH111 (cheap)


def _parse_seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise InvalidOption(name, text, "a number of seconds")
    return seconds


def _parse_url(name: str, text: str) -> str:
    if text and "://" not in text:
        raise InvalidOption(name, text, "a URL such as redis://host:6379/0 or s3://bucket/folder")
    return text
