"""Host operations: instructions of an artifact that call PyTorch's operators.

Imported only where torch is in the process already. Operators come from a file, so only
functional ones of the dispatcher are called, and none that reaches for files.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.capture.ops import OpOverload, resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.errors import InvalidArtifact, UnsupportedArtifact, UnsupportedGraph
from dovetail.ir.call import Arg, Attr
from dovetail.ir.program_text import arg_from_json

_REFUSED = frozenset({"aten.from_file.default", "aten.from_file.out"})
Getter = Callable[[Sequence[Any], Sequence[int]], Any]


@functools.cache
def match_threads() -> None:
    """Use as many threads as PyTorch does, unless the environment says how many."""
    from dovetail import _native

    if "DOVETAIL_NUM_THREADS" not in os.environ:
        _native.set_threads(torch.get_num_threads())


def share_threads() -> bool:
    """Have kernels run on PyTorch's OpenMP threads from now on: one pool instead of two.

    False where PyTorch was built without GNU's OpenMP. See docs/decisions/0014 for when it pays.
    """
    from dovetail import _native

    return _native.adopt_openmp()


class Host:
    """Every host call of one artifact, resolved once."""

    tensor_type = torch.Tensor

    def __init__(self) -> None:
        self.calls: list[Callable[[Sequence[Any], Sequence[int]], Any]] = []

    def prepare(self, calls: Sequence[tuple[str, str]]) -> None:
        """Resolve the operators and arguments that a file lists."""
        self.calls = [_resolve(op, arguments) for op, arguments in calls]

    def call(self, number: int, tensors: Sequence[Any], sizes: Sequence[int]) -> Sequence[Any]:
        """Run one call; every result has memory of its own."""
        with torch.no_grad():
            result = self.calls[number](tensors, sizes)
            results = result if isinstance(result, tuple | list) else (result,)
            held = {t.untyped_storage().data_ptr() for t in tensors}
            return [_owned(r, held) for r in results]

    @staticmethod
    def fit(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """The same values in another layout."""
        made = torch.empty_strided(shape, strides, dtype=tensor.dtype, device=tensor.device)
        return made.copy_(tensor.expand(shape) if tensor.shape != tuple(shape) else tensor)


def _owned(value: Any, held: set[int]) -> Any:
    if isinstance(value, torch.Tensor) and value.untyped_storage().data_ptr() in held:
        return value.clone()
    return value


def _resolve(op: str, arguments: str) -> Callable[[Sequence[Any], Sequence[int]], Any]:
    try:
        target = resolve_op(op)
        data = json.loads(arguments)
        args = [_getter(a) for a in data["args"]]
        kwargs = {str(k): _getter(v) for k, v in data["kwargs"].items()}
    except UnsupportedGraph as error:
        raise UnsupportedArtifact(
            f"{error}: load it with the PyTorch it was exported with"
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArtifact(f"the arguments of {op} cannot be read: {error!r}") from None
    _require_functional(op, target)

    def run(tensors: Sequence[Any], sizes: Sequence[int]) -> Any:
        return target(
            *[get(tensors, sizes) for get in args],
            **{key: get(tensors, sizes) for key, get in kwargs.items()},
        )

    return run


def _require_functional(op: str, target: Any) -> None:
    if op in _REFUSED or (isinstance(target, OpOverload) and target._schema.is_mutable):  # noqa: SLF001
        raise UnsupportedArtifact(f"an artifact may not call {op}")


def _getter(data: Any) -> Getter:
    if isinstance(data, list):
        items = [_getter(item) for item in data]
        return lambda tensors, sizes: [get(tensors, sizes) for get in items]
    if isinstance(data, dict) and set(data) == {"tensor"}:
        place = int(data["tensor"])
        return lambda tensors, _: tensors[place]
    if isinstance(data, dict) and set(data) == {"number"}:
        place = int(data["number"])
        return lambda _, sizes: sizes[place]
    value: Arg = arg_from_json(data)
    constant = to_torch(value) if isinstance(value, Attr) else value
    return lambda _tensors, _sizes: constant
