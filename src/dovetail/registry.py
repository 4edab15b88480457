"""Backends by name: the only place that knows them.

A backend comes from three places: the built-in table below, an entry point of group
``dovetail.backends`` in any installed package, or a ``register_backend`` call. The first two are
listed without importing anything and loaded on first use. What fails to load is kept with its
reason and harms nothing else.

One lock guards the tables. It is never held while code of a backend runs (its import, its
``available()``), so that code may itself register and look up.
"""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import pkgutil
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar, cast, overload

from dovetail import discover, errors
from dovetail.backend import Backend, CompilerFn
from dovetail.capture._torch.dynamo_registry import (
    DYNAMO_BACKENDS,
    announce_backend,
    is_installed,
    known_dynamo_backends,
    loaded_dynamo_backend,
    lookup_dynamo_backend,
    withdraw_backend,
)
from dovetail.entries import (
    BackendInfo,
    Entry,
    ask_available,
    builtin_entry,
    entry_for,
    info,
    instantiate,
    plugin_entry,
    try_load,
)
from dovetail.file.processors import no_code_here
from dovetail.locks import ForkLock
from dovetail.names import BackendName, check_name, check_tags

BUILTIN = {
    "aten": "dovetail.backends.aten:AtenBackend",
    "cpu": "dovetail.backends.cpu.backend:CpuBackend",
    "cuda": "dovetail.backends.cuda.backend:CudaBackend",
    "dovetail": "dovetail.dynamo:default_backend",
    "eager": "dovetail.backends.eager:eager [debug]",
    "onnxruntime": "dovetail.backends.onnx.backend:OnnxRuntimeBackend",
    "opencl": "dovetail.backends.opencl.backend:OpenCLBackend",
    "portable": "dovetail.backends.portable:PortableBackend",
    "reference": "dovetail.backends.reference:ReferenceBackend [debug]",
}
_OPENS_A_DEVICE = frozenset({"cuda", "opencl"})  # to say whether it is available
LAST_BACKEND = "aten"  # takes every call, so it ends every list of backends
HIDDEN_TAGS = ("debug", "experimental")
# These stand further on in the pipeline, so they are named here and imported on first use.
_COMPILER_FOR = "dovetail.dynamo:compiler_for"
_LAZY_COMPILER = "dovetail.dynamo:LazyCompiler"
_NO_GPU = "dovetail.backends.cuda.backend:no_gpu"

T = TypeVar("T")
log = logging.getLogger(__name__)


class Registry:
    """A set of backends. The process has one; its methods are dovetail's public functions."""

    def __init__(self) -> None:
        self._lock = ForkLock()
        self._entries = {n: builtin_entry(n, value) for n, value in BUILTIN.items()}
        self._defaults: dict[str | None, str] = {}
        self._refused: list[Entry] = []  # plug-ins whose name is taken or unusable, with why
        self._foreign: dict[str, discover.Declared] = {}  # what others declare for Dynamo
        self._discovered = False

    # ---- registering -----------------------------------------------------------------------

    @overload
    def register_backend(
        self, obj: T, *, name: str | None = None, tags: Iterable[str] = ()
    ) -> T: ...
    @overload
    def register_backend(
        self, obj: None = None, *, name: str | None = None, tags: Iterable[str] = ()
    ) -> Callable[[T], T]: ...
    def register_backend(
        self, obj: Any = None, *, name: str | None = None, tags: Iterable[str] = ()
    ) -> Any:
        """Add a backend: a function ``(gm, example_inputs) -> callable`` or a Backend subclass.

        Works bare (``@register_backend``), with arguments
        (``@register_backend(name="mine", tags=("experimental",))``) and as a call.
        """
        checked = check_tags(tags)
        if name is not None:
            check_name(name)
        if obj is None:
            return partial(self._register, name=name, tags=checked)
        return self._register(obj, name=name, tags=checked)

    @overload
    def register_debug_backend(self, obj: T, *, name: str | None = None) -> T: ...
    @overload
    def register_debug_backend(
        self, obj: None = None, *, name: str | None = None
    ) -> Callable[[T], T]: ...
    def register_debug_backend(self, obj: Any = None, *, name: str | None = None) -> Any:
        """``register_backend`` with the tag "debug": hidden from ``list_backends()``."""
        return self.register_backend(obj, name=name, tags=("debug",))

    @overload
    def register_experimental_backend(self, obj: T, *, name: str | None = None) -> T: ...
    @overload
    def register_experimental_backend(
        self, obj: None = None, *, name: str | None = None
    ) -> Callable[[T], T]: ...
    def register_experimental_backend(self, obj: Any = None, *, name: str | None = None) -> Any:
        """``register_backend`` with the tag "experimental": hidden, and warns at first use."""
        return self.register_backend(obj, name=name, tags=("experimental",))

    @contextlib.contextmanager
    def registered_backend(
        self, obj: T, *, name: str | None = None, tags: Iterable[str] = ()
    ) -> Iterator[T]:
        """Register ``obj`` for the length of a ``with`` block.

        Afterwards its name is free again, for Dynamo too, and devices that have it as their
        default have the one they had before.
        """
        entry = entry_for(obj, name, check_tags(tags))
        with self._lock:
            defaults = dict(self._defaults)
        added = self._add(entry)
        try:
            yield obj
        finally:
            if added:
                self._remove(entry, defaults)

    def _register(self, obj: T, *, name: str | None, tags: frozenset[str]) -> T:
        self._add(entry_for(obj, name, tags))
        return obj

    def _add(self, entry: Entry) -> bool:
        """Take a name; False when the very same object has it already."""
        self._discover()
        with self._lock:
            held = self._entries.get(entry.name)
            holder = "" if held else self._dynamo_owner(entry.name)
            if held is None and not holder:
                self._entries[entry.name] = entry
        if held is not None:
            if self._supersede(held, entry):
                return False
            if held.obj is not entry.obj and not self._fulfil(held, entry):
                raise errors.BackendNameTaken(entry.name, held.owner, entry.owner)
            return False
        if holder:
            raise errors.BackendNameTaken(entry.name, holder, entry.owner)
        self._announce(entry)
        return True

    def _supersede(self, held: Entry, entry: Entry) -> bool:
        """Put a class or function of a notebook in the place of its own earlier version.

        Both come from the program that the user types, under one name. What was compiled for the
        earlier one is compiled again.
        """
        old, new = held.obj, entry.obj
        same = old is not None and discover.qualified(old) == discover.qualified(new)
        if old is new or not same or new.__module__ != "__main__":
            return False
        with self._lock:
            held.obj, held.tags = new, entry.tags
        if "torch" in sys.modules:
            sys.modules["torch"].compiler.reset()
        return True

    def _fulfil(self, held: Entry, entry: Entry) -> bool:
        """Take a plug-in's own registration, on its import, for what its entry point declares."""
        if held.target is None or held.name in BUILTIN:
            return False
        declared = discover.package_of(discover.target_of(held.target))
        with self._lock:
            fits = held.obj is None and declared == discover.package_of(
                discover.qualified(entry.obj)
            )
            if fits:
                held.obj, held.tags, held.broken = entry.obj, held.tags | entry.tags, ""
        return fits

    def _remove(self, entry: Entry, defaults: dict[str | None, str]) -> None:
        with self._lock:
            self._entries.pop(entry.name, None)
            for device in [d for d, name in self._defaults.items() if name == entry.name]:
                del self._defaults[device]
                if device in defaults:
                    self._defaults[device] = defaults[device]
        withdraw_backend(entry.name)

    # ---- looking up ------------------------------------------------------------------------

    def lookup_backend(self, backend: BackendName | CompilerFn) -> CompilerFn:
        """The Dynamo compiler function for a name; a callable is passed through.

        Names that only Dynamo knows (``inductor``, ``aot_eager``, another package's
        ``torch_dynamo_backends``) are found too.
        """
        if not isinstance(backend, str):
            return self._pass_through(backend)
        entry = self._find(backend)
        if entry is None:
            return self._lookup_in_dynamo(backend)
        self._load(entry)
        self._require_available(entry)
        self._warn_if_experimental(entry)
        return self._compiler(entry)

    def get_backend(self, name: BackendName, **options: Any) -> Backend:
        """A new instance of the named backend, made with its own options.

        A function, one of Dynamo's included, comes as a Backend that takes whole segments.
        """
        if name == "dovetail":
            name = self.default_backend("cpu")
        entry = self._find(name)
        if entry is None:
            found = self._lookup_in_dynamo(name)
            entry = Entry(name, frozenset(), declarer="torch", obj=found)
        else:
            self._load(entry)
        self._warn_if_experimental(entry)
        return instantiate(entry, options)

    def list_backends(self, exclude_tags: Collection[str] | None = HIDDEN_TAGS) -> list[str]:
        """Names of dovetail's backends, built-in, plugged in and registered, sorted.

        Those that bear an excluded tag are left out. Imports nothing.
        """
        excluded = check_tags(exclude_tags or ())
        return [e.name for e in self._all() if not excluded & e.tags]

    def backend_info(self, name: BackendName) -> BackendInfo:
        """What is known of a backend, or of a name only Dynamo has; imports nothing."""
        entry = self._find(name)
        return info(entry) if entry is not None else self._dynamo_info(name)

    def backend_table(self, *, load: bool = False) -> list[BackendInfo]:
        """A row per backend, and per plug-in that was refused a name somebody else has.

        With ``load`` each is imported and asked whether it can run here.
        """
        for entry in self._all():
            if load or entry.name in BUILTIN.keys() - _OPENS_A_DEVICE:  # within milliseconds
                with contextlib.suppress(errors.DovetailError):
                    self._load(entry)
        with self._lock:
            entries = [*self._entries.values(), *self._refused]
        return [info(entry) for entry in sorted(entries, key=lambda e: e.name)]

    def reserved_names(self) -> frozenset[str]:
        """Identifiers that some backend's generated code may not use: the union over all."""
        names: set[str] = set()
        for entry in self._all():
            try:
                self._load(entry)
                names |= entry.obj.reserved_names() if entry.is_class else frozenset()
            except Exception as error:  # a plug-in may raise anything
                log.warning("the reserved names of backend %r are unknown: %s", entry.name, error)
        return frozenset(names)

    # ---- defaults --------------------------------------------------------------------------

    def set_default_backend(self, name: BackendName | None, device: str | None = None) -> None:
        """What ``backend="dovetail"`` uses for inputs on ``device`` (all devices when None).

        ``None`` as the name goes back to the built-in default.
        """
        if name == "dovetail":
            expected = "a backend that 'dovetail' can stand for"
            raise errors.InvalidOption("default backend", name, expected)
        if name is not None:
            self.backend_info(name)  # raises when nobody knows it
        key = None if device is None else str(device).split(":")[0]
        with self._lock:
            if name is None:
                self._defaults.pop(key, None)
            else:
                self._defaults[key] = name

    def default_backend(self, device: str) -> str:
        """The name of the backend that ``backend="dovetail"`` stands for on a device type."""
        with self._lock:
            kind = device.split(":")[0]
            chosen = self._defaults.get(kind) or self._defaults.get(None)
        return chosen or built_in_default(kind)

    # ---- finding ---------------------------------------------------------------------------

    def _all(self) -> list[Entry]:
        self._discover()
        with self._lock:
            return sorted(self._entries.values(), key=lambda e: e.name)

    def _find(self, name: str) -> Entry | None:
        if not isinstance(name, str):
            raise errors.InvalidBackendName(name)
        self._discover()
        with self._lock:
            entry = self._entries.get(name)
        if entry is None and name not in DYNAMO_BACKENDS:
            self._discover(again=True)  # it may have been installed since we last looked
            with self._lock:
                entry = self._entries.get(name)
        return entry

    def _discover(self, *, again: bool = False) -> None:
        if self._discovered and not again:
            return
        plugins, foreign = discover.declared()
        with self._lock:
            new = [] if self._discovered else list(self._entries.values())
            self._foreign, self._refused = foreign, []
            new += [entry for entry in map(plugin_entry, plugins) if self._admit(entry)]
        for entry in new:
            self._announce(entry)
        self._discovered = True

    def _admit(self, entry: Entry) -> bool:
        """Whether a plug-in is new. Refuse it where its name is unusable or somebody else's."""
        held = self._entries.get(entry.name)
        if held is not None and held.declarer == entry.declarer and held.name not in BUILTIN:
            return False  # known since an earlier look
        if held is None:
            entry.broken = self._objection(entry)
        elif held.target is None or held.name in BUILTIN:
            entry.broken = f"the name is taken by {held.owner}"
        elif entry.owner not in held.rivals:
            held.rivals += (entry.owner,)
        if entry.broken:
            self._refused.append(entry)
        elif held is None:
            self._entries[entry.name] = entry
        return held is None and not entry.broken

    def _objection(self, entry: Entry) -> str:
        try:
            check_name(entry.name)
        except errors.InvalidBackendName as error:
            return str(error)
        owner = self._dynamo_owner(entry.name, besides=entry.declarer)
        return f"the name is taken by {owner}" if owner else ""

    def _dynamo_owner(self, name: str, besides: str | None = None) -> str:
        """Who has given Dynamo a backend of this name, other than us and one distribution."""
        if name in DYNAMO_BACKENDS:
            return discover.describe_owner("torch", "torch._dynamo")
        declared = self._foreign.get(name)
        if declared is not None:
            return "" if declared.distribution == besides else declared.owner
        loaded = loaded_dynamo_backend(name)
        if loaded is None or discover.package_of(discover.qualified(loaded)) == "dovetail":
            return ""
        distribution = discover.distribution_of(loaded)
        if distribution == besides:
            return ""
        return discover.describe_owner(distribution, discover.qualified(loaded))

    def _announce(self, entry: Entry) -> None:
        """Make ``torch.compile(backend=name)`` find it, now or when Dynamo is imported."""
        announce_backend(entry.name, partial(self._lazy, entry), tuple(sorted(entry.tags)))

    def announced(self, name: str) -> CompilerFn:
        """What Dynamo is given for a built-in name that is announced before we are imported."""
        return self._lazy(self._entries[name])

    # ---- loading ---------------------------------------------------------------------------

    def _load(self, entry: Entry) -> None:
        if entry.rivals:
            raise errors.BackendNameTaken(entry.name, entry.owner, ", ".join(entry.rivals))
        if entry.obj is None and not entry.broken:
            obj, tags, reason = try_load(entry)
            with self._lock:  # its import may have registered it: see _fulfil
                entry.obj, entry.broken = None if reason else entry.obj or obj, reason
                entry.tags |= tags
        if entry.broken:
            raise errors.BrokenPlugin(entry.name, entry.owner, entry.broken)
        if entry.availability is None:
            entry.availability = ask_available(entry)

    def _require_available(self, entry: Entry) -> None:
        if not entry.availability:
            entry.availability = ask_available(entry)  # a device may have come up since
        if not entry.availability:
            raise errors.BackendUnavailable(entry.name, entry.availability.reason)

    def _warn_if_experimental(self, entry: Entry) -> None:
        with self._lock:
            if entry.warned or "experimental" not in entry.tags:
                return
            entry.warned = True
        warnings.warn(
            f"the backend {entry.name!r} of {entry.owner} is experimental",
            errors.ExperimentalBackendWarning,
            stacklevel=3,
        )

    def _pass_through(self, backend: Any) -> CompilerFn:
        if not callable(backend):
            raise errors.BackendNotCallable(backend)
        if not isinstance(backend, type) or not issubclass(backend, Backend):
            return cast(CompilerFn, backend)
        entry = next((e for e in self._all() if e.obj is backend), None)
        if entry is None:
            raise self._unknown(discover.qualified(backend))
        return self.lookup_backend(entry.name)

    def _compiler(self, entry: Entry) -> CompilerFn:
        if not entry.is_class:
            return cast(CompilerFn, entry.obj)
        made = entry.compiler or pkgutil.resolve_name(_COMPILER_FOR)(entry.name)
        with self._lock:
            entry.compiler = entry.compiler or made
        return cast(CompilerFn, entry.compiler)

    def dynamo_compiler(self, name: str) -> CompilerFn:
        """What Dynamo is given for a name: one object, which looks the backend up when called."""
        entry = self._find(name)
        if entry is None:
            raise self._unknown(name)
        return self._lazy(entry)

    def _lazy(self, entry: Entry) -> CompilerFn:
        made = entry.lazy or pkgutil.resolve_name(_LAZY_COMPILER)(entry.name)
        with self._lock:
            entry.lazy = entry.lazy or made
        return cast(CompilerFn, entry.lazy)

    # ---- Dynamo's own ----------------------------------------------------------------------

    def _lookup_in_dynamo(self, name: str) -> CompilerFn:
        try:
            found = lookup_dynamo_backend(name)
        except Exception as error:  # another package's entry point may raise anything
            declared = discover.declared_for_dynamo(name)
            owner = declared.owner if declared else "torch"
            reason = f"{type(error).__name__}: {error}"
            raise errors.BrokenPlugin(name, owner, reason) from error
        if found is not None:
            return found
        if name in DYNAMO_BACKENDS and not is_installed():
            raise errors.BackendUnavailable(name, "it is PyTorch's, and PyTorch is not installed")
        raise self._unknown(name)

    def _dynamo_info(self, name: str) -> BackendInfo:
        loaded, declared = loaded_dynamo_backend(name), self._foreign.get(name)
        if loaded is None and declared is None and name not in DYNAMO_BACKENDS:
            raise self._unknown(name)
        if declared is not None:
            distribution = declared.distribution
        elif name in DYNAMO_BACKENDS:
            distribution = "torch"
        else:
            distribution = discover.distribution_of(loaded)
        tags = tuple(sorted(getattr(loaded, "_tags", ())))
        reason = "a backend of Dynamo's own registry"
        known = loaded is not None
        return BackendInfo(name, tags, "experimental" in tags, distribution, known, None, reason)

    def _unknown(self, name: object) -> errors.UnknownBackend:
        entries = self._all()
        broken = {e.name: e.broken for e in entries if e.broken}
        broken |= {f"{e.name} of {e.declarer}": e.broken for e in self._refused}
        known = [e.name for e in entries if not e.broken]
        return errors.UnknownBackend(name, {*known, *known_dynamo_backends()}, broken)


def built_in_default(device: str) -> str:
    """The backend for a device type where nobody has chosen one.

    It imports nothing to find out, but for tensors of a GPU, which only PyTorch makes.
    """
    if device == "cpu":
        generates = not no_code_here() and importlib.util.find_spec("llvmlite") is not None
        return "cpu" if generates else LAST_BACKEND
    if device == "cuda" and importlib.util.find_spec("triton") is not None:
        return LAST_BACKEND if pkgutil.resolve_name(_NO_GPU)() else "cuda"
    return LAST_BACKEND


_REGISTRY = Registry()
register_backend = _REGISTRY.register_backend
announced = _REGISTRY.announced
register_debug_backend = _REGISTRY.register_debug_backend
register_experimental_backend = _REGISTRY.register_experimental_backend
registered_backend = _REGISTRY.registered_backend
lookup_backend = _REGISTRY.lookup_backend
get_backend = _REGISTRY.get_backend
list_backends = _REGISTRY.list_backends
backend_info = _REGISTRY.backend_info
backend_table = _REGISTRY.backend_table
reserved_names = _REGISTRY.reserved_names
set_default_backend = _REGISTRY.set_default_backend
default_backend = _REGISTRY.default_backend
dynamo_compiler = _REGISTRY.dynamo_compiler
