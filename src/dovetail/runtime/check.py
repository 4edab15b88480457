"""Is a value what its descriptor promises?"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import WrongOutputs
from dovetail.ir import OpCall
from dovetail.ir.size import Dim, evaluate, symbols_of
from dovetail.ir.tensor import Desc, ScalarDesc, TensorDesc


def check_result(call: OpCall, result: Any, symbols: Mapping[str, int]) -> None:
    """Raise WrongOutputs unless ``result`` is what the call's descriptor promises."""
    problem = mismatch(call.output, result, symbols)
    if problem:
        raise WrongOutputs("reference", f"{problem} for {call}")


def mismatch(desc: Desc, value: Any, symbols: Mapping[str, int]) -> str:
    """How a value differs from its descriptor in dtype, device or shape, or an empty string."""
    if isinstance(desc, tuple):
        return _tuple_mismatch(desc, value, symbols)
    if isinstance(desc, TensorDesc):
        return _tensor_mismatch(desc, value, symbols)
    if isinstance(desc, ScalarDesc) and desc.size is not None and _is_known(desc.size, symbols):
        expected = evaluate(desc.size, symbols)
        return "" if value == expected else f"{value} instead of {expected}"
    return ""


def _tuple_mismatch(desc: tuple[Desc, ...], value: Any, symbols: Mapping[str, int]) -> str:
    if not isinstance(value, tuple | list) or len(value) != len(desc):
        return f"{type(value).__name__} instead of {len(desc)} values"
    # PyTorch's metadata of auxiliary results is not always right: their dtype may be another
    # (saved statistics), and some are left undefined. The first result is held to all of it.
    pairs = [(d, v) for d, v in zip(desc[1:], value[1:], strict=True) if v is not None]
    shapes = (_shape_mismatch(d, v, symbols) for d, v in pairs if isinstance(d, TensorDesc))
    first = mismatch(desc[0], value[0], symbols) if desc and value[0] is not None else ""
    return first or next(filter(None, shapes), "")


def _tensor_mismatch(desc: TensorDesc, value: Any, symbols: Mapping[str, int]) -> str:
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype != desc.dtype:
        return f"{dtype} instead of {desc.dtype}"
    if str(value.device) != desc.device:
        return f"a tensor on {value.device} instead of {desc.device}"
    return _shape_mismatch(desc, value, symbols)


def _shape_mismatch(desc: TensorDesc, value: Any, symbols: Mapping[str, int]) -> str:
    known = all(_is_known(d, symbols) for d in desc.shape)
    expected = [evaluate(d, symbols) for d in desc.shape] if known else list(value.shape)
    return "" if list(value.shape) == expected else f"shape {list(value.shape)} for {expected}"


def _is_known(dim: Dim, symbols: Mapping[str, int]) -> bool:
    return symbols_of(dim) <= symbols.keys()
