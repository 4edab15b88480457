"""Host operations: instructions of an artifact that call PyTorch's operators.

Imported only where torch is in the process already. Operators come from a file: one that is not
trusted may call those of ``ir.host_operators``, which check their arguments; any other, the
functional ones of the dispatcher, but none that reaches for files.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.capture.ops import OpOverload, resolve_op
from dovetail.capture.to_fx import to_torch
from dovetail.errors import (
    HOW_TO_TRUST,
    InvalidArtifact,
    RunFailed,
    UnsupportedArtifact,
    UnsupportedGraph,
    UntrustedArtifact,
)
from dovetail.ir.argument_json import arg_from_json
from dovetail.ir.call import Arg, Attr, Ref
from dovetail.ir.host_operators import require_listed
from dovetail.ir.real import Real
from dovetail.ir.size import Size, real_of
from dovetail.runtime.host_checks import CHECKS, checked
from dovetail.runtime.host_plan import Description, describe
from dovetail.runtime.layouts import copy_with_strides
from dovetail.variables import variable

_REFUSED = frozenset({"aten.from_file.default", "aten.from_file.out"})
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError)
Getter = Callable[[Sequence[Any], Sequence[int]], Any]


@functools.cache
def use_torch_threads() -> bool:
    """Have kernels run on PyTorch's OpenMP threads: one pool in the process instead of two.

    False where PyTorch was built without GNU's OpenMP: then they run on threads of their own. See
    docs/decisions/0014.
    """
    from dovetail import _native

    _native.set_threads(0 if variable("DOVETAIL_NUM_THREADS") else torch.get_num_threads())
    return _native.share_threads(True)


class HostOperators:
    """Every host call of one artifact, resolved once."""

    tensor_type = torch.Tensor
    is_autocast_enabled = staticmethod(torch.is_autocast_enabled)

    def __init__(self) -> None:
        self.calls: list[Callable[[Sequence[Any], Sequence[int]], Any]] = []
        # Whether to use as many threads as PyTorch does at the time of a call.
        self.follows_torch = variable("DOVETAIL_NUM_THREADS") is None

    def prepare(self, native: Any) -> None:
        """Resolve the operators and arguments that a file lists, if it may call them."""
        calls = native.host_calls()
        trusted = native.trusted()
        if not trusted:
            require_listed(op for op, _ in calls)
        resolved = [_resolve(op, arguments, trusted) for op, arguments in calls]
        self.calls = [call for call, _ in resolved]
        native.plan_host([description for _, description in resolved])

    def call(self, number: int, tensors: Sequence[Any], sizes: Sequence[int]) -> Sequence[Any]:
        """Run one call; every result has memory of its own."""
        outer = sys.exception()
        with torch.no_grad():
            try:
                result = self.calls[number](tensors, sizes)
            except BaseException as error:
                _forget_lent(error, outer)
                raise
            results = result if isinstance(result, tuple | list) else (result,)
            held = {t.untyped_storage().data_ptr() for t in tensors}
            return [_owned(r, held) for r in results]

    @staticmethod
    def without_autocast(native: Any, args: Sequence[Any]) -> Any:
        """One call of an artifact with autocast off: its dtypes were decided when it was made."""
        with torch.autocast("cpu", enabled=False):
            return native(*args)

    @staticmethod
    def fit(tensor: torch.Tensor, shape: Sequence[int], strides: Sequence[int]) -> torch.Tensor:
        """The same values in another layout."""
        if tensor.shape != tuple(shape):
            raise RunFailed(
                f"a result of shape {list(tensor.shape)} where {list(shape)} was promised"
            )
        return copy_with_strides(tensor, strides)


def _forget_lent(error: BaseException | None, outer: BaseException | None) -> None:
    """Clear the frames of an exception: their tensors' memory will be gone when somebody looks.

    ``outer`` is what was being handled when the call began; its frames are the caller's.
    """
    seen: set[int] = set()
    while error is not None and error is not outer and id(error) not in seen:
        traceback.clear_frames(error.__traceback__)
        seen.add(id(error))
        error = error.__cause__ or error.__context__


def _owned(value: Any, held: set[int]) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    if value.untyped_storage().data_ptr() in held:
        return value.clone()
    return value.resolve_conj().resolve_neg()


def _resolve(op: str, arguments: str, trusted: bool) -> tuple[Getter, Description | None]:
    try:
        target = resolve_op(op)
        data = json.loads(arguments)
        args = [_getter(a, trusted) for a in data["args"]]
        kwargs = {str(k): _getter(v, trusted) for k, v in data["kwargs"].items()}
    except UnsupportedGraph as error:
        raise UnsupportedArtifact(
            f"{error}: load it with the PyTorch it was exported with"
        ) from None
    except _UNREADABLE as error:
        raise InvalidArtifact(f"the arguments of {op} cannot be read: {error!r:.300}") from None
    _require_functional(op, target)
    description = describe(op, target, data["args"], data["kwargs"])
    if not trusted and (op in CHECKS or "pin_memory" in kwargs):
        target, description = checked(op, target), None  # C would call it unchecked

    def run(tensors: Sequence[Any], sizes: Sequence[int]) -> Any:
        return target(
            *[get(tensors, sizes) for get in args],
            **{key: get(tensors, sizes) for key, get in kwargs.items()},
        )

    return run, description


def _require_functional(op: str, target: Any) -> None:
    if op in _REFUSED or (isinstance(target, OpOverload) and target._schema.is_mutable):  # noqa: SLF001
        raise UnsupportedArtifact(f"an artifact may not call {op}")


def _getter(data: Any, trusted: bool) -> Getter:
    if isinstance(data, list):
        items = [_getter(item, trusted) for item in data]
        return lambda tensors, sizes: [get(tensors, sizes) for get in items]
    if isinstance(data, dict) and set(data) == {"tensor"}:
        nth_tensor = _nth(data["tensor"])
        return lambda tensors, _: nth_tensor(tensors)
    if isinstance(data, dict) and set(data) == {"number"}:
        nth_number = _nth(data["number"])
        return lambda _, sizes: nth_number(sizes)
    if isinstance(data, dict) and set(data) == {"double"}:
        nth_bits = _nth(data["double"])
        return lambda _, sizes: real_of(nth_bits(sizes))
    value: Arg = arg_from_json(data)
    if isinstance(value, Size | Real | Ref):
        raise ValueError(f"{data!r} is a number or a tensor of the program, not of the call")
    if isinstance(value, Attr) and not trusted:
        _require_plain(value)
    constant = to_torch(value) if isinstance(value, Attr) else value
    return lambda _tensors, _sizes: constant


def _nth(place: Any) -> Callable[[Sequence[Any]], Any]:
    """What takes one operand of a call out of all of them."""
    if type(place) is not int or place < 0:
        raise ValueError(f"operand {place!r}")

    def get(items: Sequence[Any]) -> Any:
        if place >= len(items):
            raise RunFailed(f"a call of operand {place}, which has {len(items)}")
        return items[place]

    return get


def _require_plain(value: Attr) -> None:
    """What an untrusted file may name: tensors of PyTorch's own dtypes, dense, on this processor.

    Elsewhere results would lie where no check reaches: in another layout, on another device.
    """
    plain = {"device": ("cpu",), "layout": ("strided",)}
    if value.kind not in ("dtype", "memory_format") and value.value not in plain.get(
        value.kind, ()
    ):
        raise UntrustedArtifact(
            f"the artifact asks PyTorch for the {value.kind} {value.value!r}, which only a trusted "
            f"file may: {HOW_TO_TRUST}"
        )
