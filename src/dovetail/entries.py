"""One backend as the registry keeps it: declared or registered, loaded or not."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any, cast

from dovetail import discover, errors
from dovetail.backend import Availability, Backend, CompilerFn, FunctionBackend
from dovetail.names import check_name, check_tags


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What is known of a backend without importing it."""

    name: str
    tags: tuple[str, ...]
    experimental: bool
    distribution: str  # empty: registered by code that no installed package brought
    loaded: bool
    available: bool | None  # None: not known before it is loaded
    reason: str
    device: str | None = None


@dataclass(slots=True, eq=False)
class Entry:
    """A name, who has it, and what has come of it so far."""

    name: str
    tags: frozenset[str]
    target: EntryPoint | None = None  # of a built-in or a plug-in
    declarer: str = ""  # the distribution of the target
    obj: Any = None
    broken: str = ""
    rivals: tuple[str, ...] = ()  # other distributions that declare the same name
    warned: bool = False
    availability: Availability | None = None
    compiler: CompilerFn | None = None
    lazy: Any = None

    @property
    def distribution(self) -> str:
        """The distribution that brought it; empty when none did."""
        return self.declarer or discover.distribution_of(self.obj)

    @property
    def owner(self) -> str:
        """Distribution and module, for messages."""
        if self.target is not None:
            return discover.describe_owner(self.declarer, discover.target_of(self.target))
        return discover.describe_owner(self.distribution, discover.qualified(self.obj))

    @property
    def is_class(self) -> bool:
        """Whether it is loaded and a Backend subclass."""
        return isinstance(self.obj, type)


def builtin_entry(name: str, value: str) -> Entry:
    """The entry of a backend in this package."""
    declared = discover.Declared(EntryPoint(name, value, discover.GROUP), "dovetail")
    return plugin_entry(declared)


def plugin_entry(declared: discover.Declared) -> Entry:
    """The entry of a backend that a package declares."""
    return Entry(declared.name, declared.tags, declared.point, declared.distribution)


def entry_for(obj: Any, name: str | None, tags: frozenset[str]) -> Entry:
    """The entry of an object that is being registered; raises when it cannot be a backend."""
    problem = _not_a_backend(obj)
    if problem is not None:
        raise problem
    if isinstance(obj, type):
        tags |= check_tags(obj.tags)  # type: ignore[attr-defined]
    return Entry(check_name(_own_name(obj) if name is None else name), tags, obj=obj)


def _own_name(obj: Any) -> object:
    if not isinstance(obj, type):
        return getattr(obj, "__name__", type(obj).__name__)
    if getattr(obj, "name", None) is None:
        raise errors.BackendHasNoName(obj)
    return obj.name  # type: ignore[attr-defined]


def _not_a_backend(obj: Any) -> errors.DovetailError | None:
    """Why ``obj`` cannot be a backend, or None."""
    if not callable(obj) or (isinstance(obj, type) and not issubclass(obj, Backend)):
        return errors.BackendNotCallable(obj)
    if isinstance(obj, type) and inspect.isabstract(obj):
        return errors.IncompleteBackend(obj, getattr(obj, "__abstractmethods__", ()))
    return None


def try_load(entry: Entry) -> tuple[Any, frozenset[str], str]:
    """Import what an entry points at: the object and its tags, or None and the reason."""
    nothing: frozenset[str] = frozenset()
    assert entry.target is not None
    if not entry.target.pattern.match(entry.target.value):
        return None, nothing, f"its entry point {entry.target.value!r} is not module:attribute"
    try:
        obj = entry.target.load()
        problem = _not_a_backend(obj)
        if problem is not None:
            raise problem
        return obj, check_tags(getattr(obj, "tags", ())) if isinstance(obj, type) else nothing, ""
    except errors.DovetailError as error:
        return None, nothing, str(error)
    except (Exception, SystemExit) as error:  # a plug-in may raise anything
        return None, nothing, f"{type(error).__name__}: {error}"


def ask_available(entry: Entry) -> Availability:
    """A loaded backend's answer to whether it can run here."""
    if not entry.is_class:
        return Availability(True)
    try:
        answer = instantiate(entry, {}).available()
        return Availability(bool(answer), str(getattr(answer, "reason", "")))
    except Exception as error:  # a plug-in may raise anything
        return Availability(False, f"asking it raised {type(error).__name__}: {error}")


def instantiate(entry: Entry, options: dict[str, Any]) -> Backend:
    """A new Backend made with its own options; a function is wrapped."""
    kind = f"option of backend {entry.name!r}"
    if not entry.is_class:
        if options:
            raise errors.UnknownOption(kind, next(iter(options)), ())
        return FunctionBackend(entry.name, entry.obj)
    parameters = inspect.signature(entry.obj).parameters
    if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        for option in options:
            if option not in parameters:
                raise errors.UnknownOption(kind, option, parameters)
    backend = cast(Backend, entry.obj(**options))
    if getattr(backend, "name", None) != entry.name:  # registered under another name, or had none
        object.__setattr__(backend, "name", entry.name)
    object.__setattr__(backend, "made_with", dict(options))
    return backend


def info(entry: Entry) -> BackendInfo:
    """What the entry says of itself now."""
    available, reason = None, entry.broken
    if entry.broken:
        available = False
    elif entry.rivals:
        available, reason = False, f"the name is also declared by {', '.join(entry.rivals)}"
    elif entry.availability is not None:
        available, reason = entry.availability.ok, entry.availability.reason
    return BackendInfo(
        name=entry.name,
        tags=tuple(sorted(entry.tags)),
        experimental="experimental" in entry.tags,
        distribution=entry.distribution,
        loaded=entry.obj is not None,
        available=available,
        reason=reason,
        device=getattr(entry.obj, "device", None) if entry.is_class else None,
    )
