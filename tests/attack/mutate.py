"""Hostile variants of a call: what a file could pass instead of what a model does.

They are made from the encoded call, so that each can be printed and made again by itself.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tests.attack.samples import Call

Path = tuple[Any, ...]
Change = tuple[Path, Any]

_INTS = (-1, 0, 1, 2, 1000, -1000, 2**31 - 1, 2**31, -(2**31), 2**62, 2**63 - 1, -(2**63))
_FLOATS = (float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 1e300, -1e300, 1e-300)
_LIMITS = {"uint8": (0, 255), "int8": (-128, 127), "int16": (-(2**15), 2**15 - 1)}
_LIMITS |= {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1), "bool": (0, 1)}
_DTYPES = ("float32", "float64", "float16", "bfloat16", "int64", "int32", "uint8", "bool")
_DTYPES += ("complex64",)
_TEXTS = ("", "none", "mean", "sum", "tanh", "amax", "prod", "trunc", "floor", "x")


def variants(call: Call, pairs: int, seed: int = 0) -> Iterator[tuple[str, Call]]:
    """The call itself, each single change, integers divided by -1, and pairs of changes."""
    op, args, kwargs = call
    root = [args, kwargs]
    single = list(_changes(root))
    yield "as it is", call
    for change in single:
        yield _told([change]), _with(op, root, [change])
    whole = [path for path, leaf in _leaves(root) if _is_whole(leaf)]
    if len(whole) > 1:
        extreme = [
            (path, _extreme(_at(root, path), place == 0)) for place, path in enumerate(whole)
        ]
        yield _told(extreme), _with(op, root, extreme)
    chosen = random.Random(f"{seed} {op}")
    for _ in range(pairs if len(single) > 1 else 0):
        both = chosen.sample(single, 2)
        if both[0][0] != both[1][0][: len(both[0][0])]:
            yield _told(both), _with(op, root, both)


def some(made: Iterator[tuple[str, Call]], limit: int) -> list[tuple[str, Call]]:
    """The first of some variants, and others by a seed up to a limit; all where it is 0."""
    found = list(made)
    if limit == 0 or len(found) <= limit:
        return found
    chosen = random.Random(found[0][1][0])
    return [found[0], *chosen.sample(found[1:], limit - 1)]


def of_dtype(call: Call, dtype: str) -> Call | None:
    """A call of float32 tensors with another dtype in all of them; None if there are none."""
    op, args, kwargs = call
    root: list[Any] = [args, kwargs]
    found = [(p, v) for p, v in _leaves(root) if _is_tensor(v) and v["t"][0] == "float32"]
    changes = [(path, {"t": [dtype, *leaf["t"][1:]]}) for path, leaf in found]
    return _with(op, root, changes) if changes else None


def _is_tensor(leaf: Any) -> bool:
    return isinstance(leaf, dict) and "t" in leaf


def _told(changes: list[Change]) -> str:
    return "; ".join(f"{list(path)} = {value}" for path, value in changes)[:300]


def _with(op: str, root: list[Any], changes: list[Change]) -> Call:
    made: Any = root
    for path, value in changes:
        made = _replaced(made, path, value)
    return op, made[0], made[1]


def _replaced(node: Any, path: Path, value: Any) -> Any:
    if not path:
        return value
    made = node.copy()
    try:
        made[path[0]] = _replaced(node[path[0]], path[1:], value)
    except IndexError:
        return node  # a change before this one took it away
    return made


def _at(node: Any, path: Path) -> Any:
    for step in path:
        node = node[step]
    return node


def _leaves(node: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Tensors, plain values and lists, with where they stand; the outermost two are the call."""
    if isinstance(node, dict) and set(node) in ({"t"}, {"a"}, {"c"}):
        yield path, node
    elif isinstance(node, list | dict):
        if len(path) > 1:
            yield path, node
        steps = node.items() if isinstance(node, dict) else enumerate(node)
        for step, child in steps:
            yield from _leaves(child, (*path, step))
    elif node is not None:
        yield path, node


def _changes(root: list[Any]) -> Iterator[Change]:
    for path, leaf in _leaves(root):
        for value in _instead(leaf):
            yield path, value


def _instead(leaf: Any) -> Iterator[Any]:
    if isinstance(leaf, bool):
        yield not leaf
    elif isinstance(leaf, int):
        yield from (v for v in _INTS if v != leaf)
    elif isinstance(leaf, float):
        yield from _FLOATS
    elif isinstance(leaf, str):
        yield from _TEXTS
    elif isinstance(leaf, list):
        yield from ([], leaf[:-1], [*leaf, *leaf[:1]], leaf * 20)
        if leaf and all(isinstance(v, int) for v in leaf):
            yield from ([v] * len(leaf) for v in _INTS)
    elif "t" in leaf:
        for tensor in _tensors(*leaf["t"]):
            yield {"t": list(tensor)}


def _tensors(dtype: str, shape: list[int], strides: Any, values: Any) -> Iterator[tuple[Any, ...]]:
    for value in _values(dtype):
        yield dtype, shape, strides, value
    if isinstance(values, list) and shape:
        yield dtype, shape, None, {"last": _values(dtype)[0]}
    for other in _shapes(shape):
        yield dtype, other, None, None
    for strides in _layouts(shape):
        for value in (None, *_values(dtype)[:3]):
            yield dtype, shape, strides, value
    for kind in _DTYPES:
        if kind != dtype:
            yield kind, shape, None, None


def _values(dtype: str) -> tuple[Any, ...]:
    if dtype in _LIMITS:
        low, high = _LIMITS[dtype]
        return (high, low, *(v for v in (-1, 0, 1, 2, 5, 1000, 2**31, 2**40) if low <= v <= high))
    return (*_FLOATS[:4], 0.0, 1e30, -1e30) if "complex" not in dtype else (float("nan"),)


def _shapes(shape: list[int]) -> Iterator[list[int]]:
    yield from ([], [0] * len(shape), [1] * len(shape), [*shape, 2], [0], [1000, 0])
    for axis, size in enumerate(shape):
        for other in (0, size + 1, max(size - 1, 0), 2 * size):
            yield [*shape[:axis], other, *shape[axis + 1 :]]
        yield [*shape[:axis], *shape[axis + 1 :]]


def _layouts(shape: list[int]) -> Iterator[list[int]]:
    """Strides: one element for all, the last axes expanded, transposed, channels last."""
    rank = len(shape)
    if rank == 0:
        return
    yield [0] * rank
    yield _packed(shape, list(range(rank)))
    if rank > 1:
        yield [1] + [0] * (rank - 1)
    if rank > 2:
        yield _packed(shape, [1, *range(rank - 1, 1, -1), 0])


def _packed(shape: list[int], order: list[int]) -> list[int]:
    """Strides without gaps; the axis that comes first in ``order`` varies fastest."""
    strides, step = [0] * len(shape), 1
    for axis in order:
        strides[axis] = step
        step *= max(shape[axis], 1)
    return strides


def _is_whole(leaf: Any) -> bool:
    if _is_tensor(leaf):
        return leaf["t"][0] in _LIMITS
    return isinstance(leaf, int) and not isinstance(leaf, bool)


def _extreme(leaf: Any, first: bool) -> Any:
    """The least integer for the first of several, -1 for the rest: their quotient overflows."""
    if not isinstance(leaf, dict):
        return -(2**63) if first else -1
    dtype, shape, strides, _ = leaf["t"]
    low = _LIMITS[dtype][0]
    return {"t": [dtype, shape, strides, low if first else max(low, -1)]}
