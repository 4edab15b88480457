"""Plug-ins in C as a process has them: each library once, with its one device. Needs no torch."""

from __future__ import annotations

import functools
import itertools
import logging
import os
import sys
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from dovetail.errors import HOW_TO_TRUST, DovetailError, PluginLeak, UntrustedArtifact
from dovetail.locks import ForkLock

if TYPE_CHECKING:
    from dovetail import _native

_logger = logging.getLogger("dovetail.plugin")
_lock = ForkLock()
_open: dict[tuple[Path, int], Library] = {}
_CHUNK = 1 << 20  # bytes that are hashed at a time


class Clearable(Protocol):
    """What is kept on a device from call to call."""

    def clear(self) -> None:
        """Give all of it back."""


class Library:
    """A loaded plug-in with one of its devices; a process has one for each file and device."""

    def __init__(self, path: Path, index: int = 0) -> None:
        from dovetail import _native

        self.path, self.index = path, index
        self._file = _descriptor(path)  # of what is loaded, whatever takes its place later
        try:
            self.native: _native.Plugin = _native.Plugin(path, index)
        except BaseException:
            if self._file >= 0:
                os.close(self._file)
            raise
        self.name, self.version, self.device, self.abi, self.flags = self.native.info()
        self.kept: Clearable | None = None  # weights of models that torch.compile runs on it

    @cached_property
    def digest(self) -> str:
        """SHA-256 in hex of the file that was loaded, though another may have taken its place."""
        import hashlib

        found, at = hashlib.sha256(), 0
        while data := os.pread(self._file, _CHUNK, at):
            found.update(data)
            at += len(data)
        return found.hexdigest()

    def reaches(self, other: Any) -> bool:
        """Whether the plug-in copies from this device to that one: both are its own."""
        return self is other or (isinstance(other, Library) and other.path == self.path)

    def close(self) -> None:
        """Close the device, which the next use opens again; warn when memory is left on it."""
        if self.kept is not None:
            self.kept.clear()
        leaked = self.native.close()
        if leaked:
            warnings.warn(
                f"the plug-in {self.name!r} ({self.path.name}) leaks: {leaked} bytes of device "
                "memory are in use after every buffer was freed",
                PluginLeak,
                stacklevel=2,
            )


def _descriptor(path: Path) -> int:
    """An open file; -1 where there is none to read, of which the loader says more."""
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1


class _Listener:
    """What plug-ins say: to the logger ``dovetail.plugin``, and as spans of PyTorch's profiler."""

    def __init__(self) -> None:
        self._spans: dict[int, Any] = {}
        self._numbers = itertools.count(1)

    def log(self, level: int, message: str) -> None:
        _logger.log(level, "%s", message)

    def begin(self, name: str) -> int:
        """Begin a span; 0: nobody is profiling."""
        if "torch" not in sys.modules:
            return 0
        from dovetail.capture._torch.profiler import span_of

        span = span_of(name)
        if span is None:
            return 0
        span.__enter__()
        number = next(self._numbers)
        self._spans[number] = span
        return number

    def end(self, number: int) -> None:
        self._spans.pop(number).__exit__(None, None, None)

    def progress(self, what: str, done: float) -> None:
        _logger.info("%s: %.0f%%", what, 100 * done)


@functools.cache
def _listen() -> None:
    from dovetail import _native

    listener = _Listener()
    _native.listen(listener.log, listener.begin, listener.end, listener.progress)


def open_library(path: str | PathLike[str], index: int = 0) -> Library:
    """The plug-in at ``path`` with its device of this number, loaded once in a process."""
    key = Path(fspath(path)).resolve(), index
    _listen()
    with _lock:
        if key not in _open:
            _open[key] = Library(*key)
        return _open[key]


def known_plugins(given: Iterable[str | PathLike[str]] = ()) -> list[Library]:
    """The plug-ins that this process has, those at the given paths last, so that they win."""
    chosen = [open_library(path) for path in given]
    with _lock:
        held = [library for (_, index), library in _open.items() if index == 0]
        return [library for library in held if library not in chosen] + chosen


def brought_plugins(names: Sequence[str], *, trusted: bool) -> list[Library]:
    """The plug-ins of these names that installed packages or registered backends bring.

    Importing a package because a file names it is running code by name: only a trusted file may
    have that done. An untrusted one finds the backends that this process has loaded by itself.
    """
    try:  # reads every installed package's metadata: only on demand
        import dovetail.registry as registry
    except ModuleNotFoundError as error:
        if error.name != "dovetail.registry":
            raise
        return []  # dovetail-runtime, which knows no backends: plug-ins are given by path

    found = []
    for name in names:
        try:
            if not trusted and not registry.backend_info(name).loaded:
                raise UntrustedArtifact(
                    f"the artifact runs on the plug-in {name!r} of an installed package, and "
                    "importing a package because a file names it needs trust: load it yourself "
                    f"first (dovetail.get_backend({name!r}), or plugins=[...]), or {HOW_TO_TRUST}"
                )
            path = getattr(registry.get_backend(name), "library", None)
        except UntrustedArtifact:
            raise
        except DovetailError:
            continue  # the runtime says which plug-in is missing, and how to provide it
        if path is not None:
            found.append(open_library(path))
    return found
