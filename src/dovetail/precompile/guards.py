"""Guards that compare identities, in a form that another process can check.

A trace depends on which function an attribute or a global name holds: ``self.act``, ``F.gelu``.
Dynamo guards that by the object's address. PyTorch's precompile leaves such guards out, of an
entry and of the process that makes it: a model of the same class with another function in
``self.act`` would run the first one's code. So guards of ours take their place, on attributes that
tell a function from others; PyTorch keeps and checks those like any other. What lies in modules
that a model does not write to (``torch.nn.functional``, builtins) is compared when an entry is
read.
"""

from __future__ import annotations

import ast
import enum
import sys
import types
from collections.abc import Iterable
from typing import Any

from dovetail.capture._torch.frames import Traced
from dovetail.capture._torch.operators import operator_types
from dovetail.errors import NotKept, NotRestored
from dovetail.sources import BUILTINS, code_digest

_SINGLETONS = (type(None), bool, type(...), type(NotImplemented))
_CONSTANTS = (*_SINGLETONS[:2], int, float, str, bytes)
# Dynamo adds these names to a module's globals.
_IMPORTED, _BUILTINS_DICT = "__import_", "__builtins_dict__"


# ---- what an object is ---------------------------------------------------------------------------


def describe(value: Any) -> str | None:
    """What an object is, in words that are the same in every process; None: nothing tells."""
    if isinstance(value, types.ModuleType):
        return f"the module {value.__name__}"
    if isinstance(value, enum.Enum):
        return f"{describe(type(value))}.{value.name}"
    if isinstance(value, type):
        return f"the class {value.__module__}.{value.__qualname__}"
    if isinstance(value, types.FunctionType):
        return f"{value.__module__}.{value.__qualname__} ({code_digest(value.__code__)[:16]})"
    if isinstance(value, types.MethodType):
        return f"the method {describe(value.__func__)}"
    if isinstance(value, types.CodeType):
        return f"the code of {value.co_qualname} ({code_digest(value)[:16]})"
    if isinstance(value, BUILTINS):
        return _builtin(value)
    if isinstance(value, operator_types()):
        return f"the operator {value}"
    return repr(value) if isinstance(value, _SINGLETONS) else None


def _builtin(value: Any) -> str | None:
    owner = getattr(value, "__self__", None)
    known = isinstance(owner, type | types.ModuleType | None)
    if not known and not type(owner).__name__.startswith(("PyCapsule", "pybind11")):
        return None  # a method of some object
    return f"the built-in {getattr(value, '__module__', None) or ''}.{value.__qualname__}"


# ---- where it is found ---------------------------------------------------------------------------


def keep_guards(traced: Traced, *, ahead: bool = False) -> tuple[tuple[str, str], ...]:
    """Guard by attributes what is guarded by identity; what modules hold is returned instead.

    Those are places, such as ``modules['torch.nn.functional'].gelu`` or ``builtins['len']``, each
    with what is there: ``check_guards`` compares them once for a process, before the code is used.
    With ``ahead`` that is so for every global variable, as ``aot_compile`` guards none.
    NotKept where an object has neither attributes nor words that tell it from others.
    """
    found, unknown = [], []
    for name in traced.dropped:
        try:
            steps = parse(name)
            value = _follow(steps, traced.scope[steps[0]])
        except (NotKept, LookupError, AttributeError, TypeError):
            unknown.append(name)
            continue
        place = _place(steps, traced.scope, ahead)
        attributes = None if place else telling(value)
        if place and (what := describe(value)):
            found.append((place, what))
        elif attributes:
            traced.guard_attributes(name, attributes)
        else:
            unknown.append(name)
    if unknown:
        names = ", ".join(unknown)
        raise NotKept(f"Dynamo checks the identity of {names}; PyTorch's precompile does not")
    return tuple(sorted(set(found)))


def telling(value: Any) -> tuple[str, ...]:
    """Attributes whose values, constants all, tell a function, class or module from others."""
    if isinstance(value, types.ModuleType):
        return ("__name__",)
    if isinstance(value, type) or (isinstance(value, BUILTINS) and _builtin(value)):
        return ("__module__", "__qualname__")
    if isinstance(value, types.MethodType):
        return tuple(f"__func__.{each}" for each in telling(value.__func__))
    if not isinstance(value, types.FunctionType):
        return ()
    names = ["co_code", "co_names", "co_firstlineno"]
    if all(type(const) in _CONSTANTS for const in value.__code__.co_consts):
        names.append("co_consts")
    return ("__module__", "__qualname__", *(f"__code__.{each}" for each in names))


def _place(steps: list[Any], scope: dict[str, dict[str, Any]], ahead: bool) -> str:
    """Where another process finds what a module holds; empty for what is guarded instead."""
    root, (_, first), *rest = steps
    if root != "G":
        return ""
    if first.startswith(_BUILTINS_DICT):
        return _text(rest, "builtins")
    value = scope["G"][first]
    if first.startswith(_IMPORTED) and isinstance(value, types.ModuleType):
        return _text([("item", value.__name__), *rest], "modules")
    module = scope["G"].get("__name__")
    own = [("item", module), ("attr", first), *rest]
    return _text(own, "modules") if ahead and module else ""


def check_guards(guards: Iterable[tuple[str, str]]) -> None:
    """NotRestored unless each place has what it had.

    Nobody has changed a module that is not loaded.
    """
    scope = {"modules": sys.modules, "builtins": vars(sys.modules["builtins"])}
    for place, what in guards:
        steps = parse(place)
        if steps[0] == "modules" and steps[1][1] not in sys.modules:
            continue
        try:
            now = describe(_follow(steps, scope[steps[0]]))
        except (LookupError, AttributeError, TypeError):
            now = None
        if now != what:
            raise NotRestored(f"{place} was {what} and is {now or 'something else'}")


# ---- paths ---------------------------------------------------------------------------------------


def parse(text: str) -> list[Any]:
    """A path such as ``L['self'].act`` as its root and its steps; NotKept for any other text.

    Nothing is evaluated: steps are attributes, items by a constant, and ``type(…)``.
    """
    try:
        node: ast.expr = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError):
        raise NotKept(f"Dynamo checks the identity of {text}") from None
    steps: list[Any] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append(("attr", node.attr))
            node = node.value
        elif isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            steps.append(("item", node.slice.value))
            node = node.value
        elif (
            isinstance(node, ast.Call) and ast.unparse(node.func) == "type" and len(node.args) == 1
        ):
            steps.append(("type", None))
            node = node.args[0]
        else:
            raise NotKept(f"Dynamo checks the identity of {text}")
    return [node.id, *reversed(steps)]


def _text(steps: Iterable[tuple[str, Any]], root: str) -> str:
    text = root
    for kind, which in steps:
        if kind == "attr":
            text = f"{text}.{which}"
        else:
            text = f"{text}[{which!r}]" if kind == "item" else f"type({text})"
    return text


def _follow(steps: list[Any], value: Any) -> Any:
    for kind, which in steps[1:]:
        if kind == "attr":
            value = getattr(value, which)
        else:
            value = value[which] if kind == "item" else type(value)
    return value
