"""PyTorch's descriptions of nested arguments and results as trees of a file, and back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dovetail.capture._torch import tensors as torch_tensors
from dovetail.errors import CannotSave
from dovetail.runtime import tree as trees

pytree = torch_tensors.pytree()


def tree_of(spec: Any, leaves: Iterator[dict[str, Any]]) -> trees.Tree:
    """PyTorch's tree description as ours; CannotSave for containers a file does not know."""
    if spec.is_leaf():
        return next(leaves)
    children = [tree_of(child, leaves) for child in spec.children()]
    if spec.type in (tuple, list):
        return {spec.type.__name__: children}
    if issubclass(spec.type, dict):
        keys = list(spec.context)
        if all(isinstance(key, str | int) for key in keys):
            return {"dict": [[key, child] for key, child in zip(keys, children, strict=True)]}
    if issubclass(spec.type, tuple):  # a named tuple
        return {"tuple": children}
    raise CannotSave(f"arguments or results in a {spec.type.__name__}: use tuples, lists and dicts")


def spec_of(tree: trees.Tree, leaves: int | None = None) -> Any:
    """Our tree as PyTorch's description; ValueError unless its leaves are numbered in order."""
    numbers: list[Any] = []
    trees.leaf_numbers(tree, numbers)
    if numbers != list(range(len(numbers))) or leaves not in (None, len(numbers)):
        raise ValueError("leaves that are not in order")
    return pytree.tree_structure(trees.unflatten(tree, numbers, int))
