"""The manifest of a file: how tensors are nested in arguments and results. Needs no torch.

It is JSON from anywhere, so all of it that a call will use is checked when the file is opened: what
passes here cannot fail later but for a size that does not fit 64 bits.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dovetail.errors import InvalidArtifact, SizeError
from dovetail.runtime.tree import Tree

if TYPE_CHECKING:  # few files have sizes among their outputs: the others load without
    from dovetail.ir.size import Dim

_DEEPEST = 100  # levels of a tree; Python's own limit is a thousand frames
_LONGEST = 1000  # characters of a size expression
Info = tuple[str, int, int, tuple[int, ...]]  # an input or output as the C runtime describes it


class Manifest(NamedTuple):
    """What a file says of its calls; ``values`` is the whole of it, for those who show it."""

    values: dict[str, Any]
    inputs: Tree
    outputs: Tree
    symbols: tuple[tuple[str, int, int], ...]  # that sizes need: name, input, axis or VALUE
    sizes: dict[str, Dim]  # each size expression of the outputs, by its text


def read_manifest(data: bytes | None, inputs: Sequence[Info], outputs: Sequence[Info]) -> Manifest:
    """The manifest, or a plain one where the file has none: tensors in, a tuple of tensors out."""
    if data is None:
        leaves = [[{"tensor": i} for i in range(len(given))] for given in (inputs, outputs)]
        arguments: Tree = {"tuple": [{"tuple": leaves[0]}, {"dict": []}]}
        return Manifest({}, arguments, {"tuple": leaves[1]}, (), {})
    try:
        return _read(json.loads(data), inputs, outputs)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, SizeError) as error:
        raise InvalidArtifact(f"the manifest cannot be read: {error!r:.300}") from None


def _read(values: dict[str, Any], inputs: Sequence[Info], outputs: Sequence[Info]) -> Manifest:
    if list(_check_tree(values["inputs"], len(inputs))):
        raise ValueError("an argument is a size")
    texts = list(_check_tree(values["outputs"], len(outputs)))
    symbols = tuple(_symbol(row, inputs) for row in values.get("symbols", ())) if texts else ()
    known = {name for name, _, _ in symbols}
    sizes = {text: _size(text, known) for text in texts}
    return Manifest(values, values["inputs"], values["outputs"], symbols, sizes)


def _symbol(row: Any, inputs: Sequence[Info]) -> tuple[str, int, int]:
    from dovetail.ir.size import VALUE

    name, position, axis = row
    rank = len(inputs[_index(position, len(inputs))][3])
    if not isinstance(name, str) or (axis != VALUE and _index(axis, rank) != axis):
        raise ValueError(f"the symbol {name!r}")
    return name, position, axis


def _size(text: Any, known: set[str]) -> Dim:
    from dovetail.ir.size import parse_size, symbols_of

    if not isinstance(text, str) or len(text) > _LONGEST:
        raise ValueError(f"the size {text!r:.100}")
    made = parse_size(text)
    if not symbols_of(made) <= known:
        raise ValueError(f"the size {text!r:.100} of unknown symbols")
    return made


def _index(value: Any, count: int) -> int:
    if type(value) is not int or not 0 <= value < count:
        raise ValueError(f"number {value!r} of {count}")
    return value


def _check_tree(tree: Any, count: int, level: int = 0) -> Iterator[Any]:
    """The size expressions of a tree, once the rest of it is as it should be."""
    ((kind, body),) = tree.items()
    if level > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} levels deep")
    if kind == "tensor":
        _index(body, count)
    elif kind == "size":
        yield body
    elif kind in ("tuple", "list", "dict"):
        if not isinstance(body, list):
            raise TypeError(f"a {kind} of {type(body).__name__}")
        for child in body:
            yield from _check_tree(_item(child) if kind == "dict" else child, count, level + 1)
    elif kind != "value":
        raise ValueError(f"unknown node {kind!r}")


def _item(pair: Any) -> Any:
    """The value of a dict's item, whose key must be one."""
    key, child = pair
    hash(key)
    return child
