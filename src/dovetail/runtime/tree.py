"""Nested arguments and results as a file describes them: no code, no pickle, no torch.

A tree is JSON: ``{"tuple": [...]}``, ``{"list": [...]}``, ``{"dict": [[key, tree], ...]}``, and
leaves ``{"tensor": i}``, ``{"value": v}`` (a plain value), ``{"size": "s0 * 2"}``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail.errors import GuardFailed

Tree = dict[str, Any]


def flatten(tree: Tree, given: Any, tensors: list[Any], where: str = "arguments") -> None:
    """Append the tensors in ``given`` in the tree's order; GuardFailed for another form."""
    ((kind, body),) = tree.items()
    if kind == "tensor":
        tensors.append(given)
    elif kind == "value":
        if type(body) is not type(given) or body != given:
            raise GuardFailed(f"{where} is {given!r}, but the model was exported with {body!r}")
    elif kind == "dict":
        keys = [key for key, _ in body]
        if not isinstance(given, dict) or set(given) != set(keys):
            raise GuardFailed(f"{where} must be a dict with the keys {keys}, not {_form(given)}")
        for key, child in body:
            flatten(child, given[key], tensors, f"{where}[{key!r}]")
    else:
        expected = tuple if kind == "tuple" else list
        if not isinstance(given, expected) or len(given) != len(body):
            raise GuardFailed(f"{where} must be a {kind} of {len(body)} values, not {_form(given)}")
        for i, child in enumerate(body):
            flatten(child, given[i], tensors, f"{where}[{i}]")


def unflatten(tree: Tree, tensors: Sequence[Any], size: Callable[[str], int]) -> Any:
    """Results in the tree's form."""
    ((kind, body),) = tree.items()
    match kind:
        case "tensor":
            return tensors[body]
        case "value":
            return body
        case "size":
            return size(body)
        case "dict":
            return {key: unflatten(child, tensors, size) for key, child in body}
    items = [unflatten(child, tensors, size) for child in body]
    return tuple(items) if kind == "tuple" else items


def leaf_numbers(tree: Tree, numbers: list[Any]) -> None:
    """Append the number of each tensor in a tree that has no other leaves, else ValueError."""
    ((kind, body),) = tree.items()
    if kind == "tensor":
        numbers.append(body)
        return
    if kind not in ("tuple", "list", "dict"):
        raise ValueError(f"a leaf {kind!r}")
    for child in body:
        leaf_numbers(child[1] if kind == "dict" else child, numbers)


def _form(given: Any) -> str:
    if isinstance(given, dict):
        return f"a dict with {list(given)}"
    if isinstance(given, tuple | list):
        return f"a {type(given).__name__} of {len(given)} values"
    return f"a {type(given).__name__}"
