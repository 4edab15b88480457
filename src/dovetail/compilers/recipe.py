"""How another process makes a backend equal to one of this process."""

from __future__ import annotations

import json
import pkgutil
import sys
from typing import Any

from dovetail.backend import Backend, FunctionBackend

Recipe = dict[str, Any]


class NotElsewhere(Exception):
    """A backend that only this process has; the message says why."""


def recipe_of(backend: Backend) -> Recipe:
    """The class and options of a backend that the registry made; NotElsewhere for others."""
    if isinstance(backend, FunctionBackend):
        raise NotElsewhere("it is a function, whose code lives in this process")
    if backend.made_with is None:
        raise NotElsewhere("it was passed as an object, not by its name")
    recipe = {"name": backend.name, **_class_of(type(backend))}
    return {**recipe, "options": _plain(dict(backend.made_with), "its options")}


def _class_of(cls: type[Backend]) -> Recipe:
    if cls.made_by is not None:
        function, arguments = cls.made_by
        return {"function": function, "arguments": _plain(dict(arguments), "what made its class")}
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = getattr(found, part, None)
    if cls.__module__ == "__main__" or found is not cls:
        where = f"{cls.__module__}.{cls.__qualname__}"
        raise NotElsewhere(f"its class, {where}, cannot be imported by another process")
    return {"class": f"{cls.__module__}:{cls.__qualname__}"}


def _plain(values: dict[str, Any], what: str) -> dict[str, Any]:
    """``values`` if JSON gives them back as they are."""
    try:
        same = _same(json.loads(json.dumps(values)), values)
    except (TypeError, ValueError, RecursionError):
        same = False
    if not same:
        raise NotElsewhere(f"{what} are not all plain values (numbers, texts, lists, dicts)")
    return values


def _same(read: Any, given: Any) -> bool:
    """Equal, and of the same types throughout: 1 is not True, a list is no tuple."""
    if type(read) is not type(given):
        return False
    if isinstance(read, dict):
        return read.keys() == given.keys() and all(_same(v, given[k]) for k, v in read.items())
    if isinstance(read, list):
        return len(read) == len(given) and all(map(_same, read, given))
    return bool(read == given)


def make(recipe: Recipe) -> Backend:
    """The backend of a recipe."""
    if "function" in recipe:
        cls = pkgutil.resolve_name(recipe["function"])(**recipe["arguments"])
    else:
        cls = pkgutil.resolve_name(recipe["class"])
    backend = cls(**recipe["options"])
    if getattr(backend, "name", None) != recipe["name"]:  # it is registered under another
        object.__setattr__(backend, "name", recipe["name"])
    if not isinstance(backend, Backend):
        raise TypeError(f"{recipe} makes {backend!r}, which is no Backend")
    return backend
