"""Backends by name: the only place that knows them.

A backend comes from three places: the built-in table below, an entry point of group
``dovetail.backends`` in any installed package, or a ``register_backend`` call. The first two are
listed without importing anything and loaded on first use. What fails to load is kept with its
reason and harms nothing else.
"""

from __future__ import annotations

import contextlib
import inspect
import pkgutil
import threading
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from typing import Any, TypeVar, cast, overload

from dovetail import errors
from dovetail.backend import Backend, CompilerFn, FunctionBackend
from dovetail.capture import _torch
from dovetail.names import BackendName

GROUP = "dovetail.backends"
BUILTIN = {
    "aten": "dovetail.backends.aten:AtenBackend",
    "dovetail": "dovetail.dynamo:default_backend",
    "eager": "dovetail.backends.eager:eager [debug]",
    "reference": "dovetail.backends.reference:ReferenceBackend [debug]",
}
LAST_BACKEND = "aten"  # takes every call, so it ends every list of backends
DEFAULT_BACKEND = LAST_BACKEND
HIDDEN_TAGS = ("debug", "experimental")
# Both stand at the far end of the pipeline, so they are named here and imported on first use.
_COMPILER_FOR = "dovetail.dynamo:compiler_for"
_LAZY_COMPILER = "dovetail.dynamo:LazyCompiler"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What is known of a backend without importing it."""

    name: str
    tags: tuple[str, ...]
    experimental: bool
    distribution: str
    loaded: bool
    available: bool | None  # None: not known before it is loaded
    reason: str
    device: str | None = None


@dataclass(slots=True, eq=False)
class _Entry:
    name: str
    tags: frozenset[str]
    distribution: str
    target: EntryPoint | None = None
    obj: Any = None
    broken: str = ""
    rival: str = ""  # another distribution that declares the same name
    warned: bool = False
    compiler: CompilerFn | None = None
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def owner(self) -> str:
        where = _target_of(self.target) if self.target else _qualified(self.obj)
        return f"{self.distribution} ({where})"

    @property
    def is_class(self) -> bool:
        return isinstance(self.obj, type)


class Registry:
    """A set of backends. The process has one; its methods are dovetail's public functions."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._entries = {n: _builtin(n, value) for n, value in BUILTIN.items()}
        self._defaults: dict[str | None, str] = {}
        self._shadowed: dict[str, str] = {}  # plug-ins whose name was already taken
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
        checked = _check_tags(tags)
        if name is not None:
            _check_name(name)
        if obj is None:
            return partial(self._register, name=name, tags=checked)
        return self._register(obj, name=name, tags=checked)

    def register_debug_backend(self, obj: Any = None, *, name: str | None = None) -> Any:
        """``register_backend`` with the tag "debug": hidden from ``list_backends()``."""
        return self.register_backend(obj, name=name, tags=("debug",))

    def register_experimental_backend(self, obj: Any = None, *, name: str | None = None) -> Any:
        """``register_backend`` with the tag "experimental": hidden, and warns at first use."""
        return self.register_backend(obj, name=name, tags=("experimental",))

    @contextlib.contextmanager
    def registered_backend(
        self, obj: T, *, name: str | None = None, tags: Iterable[str] = ()
    ) -> Iterator[T]:
        """Register ``obj`` for the length of a ``with`` block."""
        entry = _entry_for(obj, name, _check_tags(tags))
        with self._lock:
            defaults = dict(self._defaults)
        self._add(entry)
        try:
            yield obj
        finally:
            with self._lock:
                self._entries.pop(entry.name, None)
                self._defaults = defaults
            _torch.withdraw_backend(entry.name)

    def _register(self, obj: T, *, name: str | None, tags: frozenset[str]) -> T:
        self._add(_entry_for(obj, name, tags))
        return obj

    def _add(self, entry: _Entry) -> None:
        self._discover()
        if entry.name in _torch.DYNAMO_BACKENDS:
            raise errors.BackendNameTaken(entry.name, "torch (torch._dynamo)", entry.owner)
        with self._lock:
            held = self._entries.get(entry.name)
            if held is not None and held.obj is entry.obj and entry.obj is not None:
                return  # the very same object: nothing to do
            if held is not None and _fulfils(held, entry.obj):
                held.obj, held.tags = entry.obj, held.tags | entry.tags
                return
            if held is not None:
                raise errors.BackendNameTaken(entry.name, held.owner, entry.owner)
            self._entries[entry.name] = entry
        self._announce(entry)

    # ---- looking up ------------------------------------------------------------------------

    def lookup_backend(self, backend: BackendName | CompilerFn) -> CompilerFn:
        """The Dynamo compiler function for a name; a callable is passed through.

        Names that only Dynamo knows (``inductor``, ``aot_eager``, another package's
        ``torch_dynamo_backends``) are found too.
        """
        if not isinstance(backend, str):
            if not callable(backend):
                raise errors.BackendNotCallable(backend)
            return backend
        entry = self._find(backend)
        if entry is None:
            return self._lookup_in_dynamo(backend)
        self._load(entry)
        if entry.is_class:
            self._require_available(entry)
        self._warn_if_experimental(entry)
        return self._compiler(entry)

    def get_backend(self, name: BackendName, **options: Any) -> Backend:
        """A new instance of the named backend, made with its own options."""
        if name == "dovetail":
            name = self.default_backend("cpu")
        entry = self._find(name)
        if entry is None:
            raise self._unknown(name)
        self._load(entry)
        self._warn_if_experimental(entry)
        return _instantiate(entry, options)

    def list_backends(self, exclude_tags: Collection[str] | None = HIDDEN_TAGS) -> list[str]:
        """Names for ``torch.compile(backend=…)``, sorted, without those that bear a tag."""
        excluded = _check_tags(exclude_tags or ())
        return [e.name for e in self._all() if not excluded & e.tags]

    def backend_info(self, name: BackendName) -> BackendInfo:
        """What is known of a backend; imports nothing."""
        entry = self._find(name)
        if entry is None:
            raise self._unknown(name)
        return _info(entry)

    def backend_table(self, *, load: bool = False) -> list[BackendInfo]:
        """A row per backend. With ``load`` each is imported and asked whether it can run."""
        rows = []
        for entry in self._all():
            if load or entry.distribution == "dovetail":  # ours load in milliseconds
                with contextlib.suppress(errors.DovetailError):
                    self._load(entry)
            rows.append(_info(entry))
        return rows

    def reserved_names(self) -> frozenset[str]:
        """Identifiers that some backend's generated code may not use: the union over all."""
        names: set[str] = set()
        for entry in self._all():
            with contextlib.suppress(errors.DovetailError):
                self._load(entry)
                names |= entry.obj.reserved_names() if entry.is_class else frozenset()
        return frozenset(names)

    # ---- defaults --------------------------------------------------------------------------

    def set_default_backend(self, name: BackendName | None, device: str | None = None) -> None:
        """What ``backend="dovetail"`` uses for inputs on ``device`` (all devices when None).

        ``None`` as the name goes back to the built-in default.
        """
        if name is not None and (name == "dovetail" or self._find(name) is None):
            raise self._unknown(name)
        with self._lock:
            if name is None:
                self._defaults.pop(device, None)
            else:
                self._defaults[device] = name

    def default_backend(self, device: str) -> str:
        """The name of the backend that ``backend="dovetail"`` stands for on a device type."""
        with self._lock:
            anywhere = self._defaults.get(None, DEFAULT_BACKEND)
            return self._defaults.get(device.split(":")[0], anywhere)

    # ---- inside ----------------------------------------------------------------------------

    def _all(self) -> list[_Entry]:
        self._discover()
        with self._lock:
            return sorted(self._entries.values(), key=lambda e: e.name)

    def _find(self, name: str) -> _Entry | None:
        self._discover()
        with self._lock:
            entry = self._entries.get(name)
        if entry is None:  # it may have been installed since we last looked
            self._discover(again=True)
            with self._lock:
                entry = self._entries.get(name)
        return entry

    def _discover(self, *, again: bool = False) -> None:
        if self._discovered and not again:
            return
        found = sorted(entry_points(group=GROUP), key=lambda p: (p.name, _distribution(p)))
        new = []
        with self._lock:
            for point in found:
                entry = _Entry(point.name, frozenset(point.extras), _distribution(point), point)
                held = self._entries.setdefault(point.name, entry)
                if held is entry:
                    new.append(entry)
                elif held.target is None or held.distribution == "dovetail":
                    self._shadowed[f"{point.name} of {entry.distribution}"] = (
                        f"the name is taken by {held.owner}"
                    )
                elif held.distribution != entry.distribution:
                    held.rival = entry.owner
            first, self._discovered = not self._discovered, True
        for entry in [*(self._entries[n] for n in BUILTIN if first), *new]:
            self._announce(entry)

    def _announce(self, entry: _Entry) -> None:
        """Make ``torch.compile(backend=name)`` find it, now or when Dynamo is imported."""
        lazy = partial(_lazy_compiler, entry.name)
        _torch.announce_backend(entry.name, lazy, tuple(sorted(entry.tags)))

    def _load(self, entry: _Entry) -> None:
        if entry.rival:
            raise errors.BackendNameTaken(entry.name, entry.owner, entry.rival)
        with entry.lock:
            if entry.obj is None and not entry.broken:
                entry.broken = _try_load(entry)
        if entry.broken:
            raise errors.BrokenPlugin(entry.name, entry.owner, entry.broken)

    def _require_available(self, entry: _Entry) -> None:
        answer = _instantiate(entry, {}).available()
        if not answer:
            raise errors.BackendUnavailable(entry.name, answer.reason)

    def _warn_if_experimental(self, entry: _Entry) -> None:
        with entry.lock:
            if entry.warned or "experimental" not in entry.tags:
                return
            entry.warned = True
        warnings.warn(
            f"the backend {entry.name!r} of {entry.distribution} is experimental",
            errors.ExperimentalBackendWarning,
            stacklevel=3,
        )

    def _compiler(self, entry: _Entry) -> CompilerFn:
        if not entry.is_class:
            return cast(CompilerFn, entry.obj)
        with entry.lock:
            if entry.compiler is None:
                entry.compiler = pkgutil.resolve_name(_COMPILER_FOR)(entry.name)
            return entry.compiler

    def _lookup_in_dynamo(self, name: str) -> CompilerFn:
        found = _torch.lookup_dynamo_backend(name)
        if found is None:
            raise self._unknown(name)
        return found

    def _unknown(self, name: object) -> errors.UnknownBackend:
        entries = self._all()
        broken = {e.name: e.broken for e in entries if e.broken} | self._shadowed
        known = [e.name for e in entries if not e.broken]
        return errors.UnknownBackend(name, {*known, *_torch.known_dynamo_backends()}, broken)


def _builtin(name: str, value: str) -> _Entry:
    point = EntryPoint(name, value, GROUP)
    return _Entry(name, frozenset(point.extras), "dovetail", point)


def _entry_for(obj: Any, name: str | None, tags: frozenset[str]) -> _Entry:
    problem = _not_a_backend(obj)
    if problem is not None:
        raise problem
    if isinstance(obj, type):
        tags |= _check_tags(obj.tags)  # type: ignore[attr-defined]
        chosen = name or _class_name(obj)
    else:
        chosen = name or str(getattr(obj, "__name__", type(obj).__name__))
    _check_name(chosen)
    return _Entry(chosen, tags, _distribution_of(obj), obj=obj)


def _class_name(cls: type) -> str:
    if getattr(cls, "name", None) is None:
        raise errors.BackendHasNoName(cls)
    return cast(str, cls.name)  # type: ignore[attr-defined]


def _not_a_backend(obj: Any) -> errors.DovetailError | None:
    """Why ``obj`` cannot be a backend, or None."""
    if not callable(obj) or (isinstance(obj, type) and not issubclass(obj, Backend)):
        return errors.BackendNotCallable(obj)
    if isinstance(obj, type) and inspect.isabstract(obj):
        return errors.IncompleteBackend(obj, getattr(obj, "__abstractmethods__", ()))
    return None


def _try_load(entry: _Entry) -> str:
    """Import the entry's object; the reason when that fails, else an empty string."""
    assert entry.target is not None
    try:
        obj = entry.target.load()
    except Exception as error:  # a plug-in may raise anything
        return f"{type(error).__name__}: {error}"
    problem = _not_a_backend(obj)
    if problem is not None:
        return str(problem)
    if isinstance(obj, type):
        entry.tags |= frozenset(getattr(obj, "tags", ()))
    entry.obj = obj
    return ""


def _instantiate(entry: _Entry, options: dict[str, Any]) -> Backend:
    if not entry.is_class:
        if options:
            raise errors.UnknownOption(f"option of backend {entry.name!r}", next(iter(options)), ())
        return FunctionBackend(entry.name, entry.obj)
    parameters = inspect.signature(entry.obj).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                kind = f"option of backend {entry.name!r}"
                raise errors.UnknownOption(kind, option, parameters)
    return cast(Backend, entry.obj(**options))


def _info(entry: _Entry) -> BackendInfo:
    loaded, reason = entry.obj is not None, entry.broken
    available: bool | None = None
    if entry.broken:
        available = False
    elif entry.rival:
        available, reason = False, f"the name is also declared by {entry.rival}"
    elif loaded and entry.is_class:
        answer = _instantiate(entry, {}).available()
        available, reason = answer.ok, answer.reason
    elif loaded:
        available = True
    device = getattr(entry.obj, "device", None) if entry.is_class else None
    return BackendInfo(
        name=entry.name,
        tags=tuple(sorted(entry.tags)),
        experimental="experimental" in entry.tags,
        distribution=entry.distribution,
        loaded=loaded,
        available=available,
        reason=reason,
        device=device,
    )


def _fulfils(held: _Entry, obj: Any) -> bool:
    """Whether ``obj`` is what a lazy entry points at (its module registers itself on import)."""
    if held.obj is not None or held.target is None or obj is None:
        return False
    return _target_of(held.target) == _qualified(obj)


def _lazy_compiler(name: str) -> Any:
    return pkgutil.resolve_name(_LAZY_COMPILER)(name)


def _check_name(name: object) -> None:
    if not isinstance(name, str) or not name or any(c.isspace() or c in ":[]" for c in name):
        raise errors.InvalidBackendName(name)


def _check_tags(tags: Iterable[str]) -> frozenset[str]:
    if isinstance(tags, str) or not isinstance(tags, Iterable):
        raise errors.InvalidTags(tags)
    tags = tuple(tags)
    if not all(isinstance(tag, str) for tag in tags):
        raise errors.InvalidTags(tags)
    return frozenset(tags)


def _target_of(point: EntryPoint) -> str:
    return point.value.split("[")[0].replace(" ", "")


def _qualified(obj: Any) -> str:
    name = getattr(obj, "__qualname__", type(obj).__qualname__)
    return f"{getattr(obj, '__module__', '?')}:{name}"


def _distribution(point: EntryPoint) -> str:
    dist = point.dist
    return "an unknown distribution" if dist is None else dist.name


def _distribution_of(obj: Any) -> str:
    """Where a registered object comes from: its top-level module, as the user knows it."""
    return str(getattr(obj, "__module__", None) or "?").split(".")[0]


_REGISTRY = Registry()
register_backend = _REGISTRY.register_backend
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
