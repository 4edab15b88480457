"""Fused attention that the C runtime calls between launches, through libtorch's C functions."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from dovetail.ir import OpCall, Ref
from dovetail.ir.dtypes import DTYPES
from dovetail.lower.values import Host, LibraryCall, Value
from dovetail.runtime.sized import TensorLayout

# The functions' names, and the parameters behind the query, the keys and the values.
_PARAMETERS = {
    "flash": ("dropout_p", "is_causal", "return_debug_mask"),
    "efficient": ("attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
    "cudnn": (
        *("attn_bias", "compute_log_sumexp", "dropout_p", "is_causal"),
        "return_debug_mask",
    ),
}
_NAMES = {f"aten._scaled_dot_product_{name}_attention.default": name for name in _PARAMETERS}
_TYPES = {name for name in ("float16", "bfloat16", "float32") if name in DTYPES}


@functools.cache
def attention_functions() -> Mapping[str, int]:
    """Where the functions of this process's PyTorch are, by their names; those that it has."""
    try:
        library = ctypes.CDLL("libtorch_cuda.so", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except OSError:
        return MappingProxyType({})
    found = {}
    for name in _PARAMETERS:
        symbol = f"aoti_torch_cuda__scaled_dot_product_{name}_attention"
        if hasattr(library, symbol):
            found[name] = ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value or 0
    return MappingProxyType(found)


@dataclass(frozen=True, eq=False)
class AttentionStep:
    """Attention without dropout of which the result alone is read."""

    name: str
    operands: tuple[Value, ...]
    layouts: tuple[TensorLayout, ...]
    result: Host
    causal: bool
    scale: float | None

    def native(
        self, function: int, on_gpu: bool, places: Collection[tuple[int, int]], result: Any
    ) -> tuple[Any, ...]:
        """As the C runtime takes it; ``places`` and ``result`` are places and offsets."""
        *operands, made = (
            (*place, layout.shape, layout.strides)
            for place, layout in zip((*places, result), self.layouts, strict=True)
        )
        kind = (f"dtype_{self.result.dtype}", self.layouts[0].item, on_gpu)
        return function, self.name, *kind, tuple(operands), made, self.causal, self.scale


def attention_of(
    step: LibraryCall,
    results: Collection[Host],
    find: Callable[[Ref], Value | None],
    layout: Callable[[Value], TensorLayout],
    functions: Collection[str],
) -> AttentionStep | None:
    """A call as attention, of whose results these are read; None where it is left to Python."""
    call, name = step.call, _NAMES.get(step.call.op, "")
    if name not in functions or [value.path for value in results] != [(0,)]:
        return None
    given = _given(call, name)
    if given is None:
        return None
    bias, scale = given.get("attn_bias"), given.get("scale")
    refs = [*call.args[:3], *([bias] if bias is not None else [])]
    operands = tuple(find(ref) if isinstance(ref, Ref) else None for ref in refs)
    known = tuple(value for value in operands if value is not None)
    (result,) = results
    if len(known) < len(operands) or {v.dtype for v in (*known, result)} - {result.dtype}:
        return None
    layouts = tuple(map(layout, (*known, result)))
    if result.dtype not in _TYPES or any(len(x.shape) != 4 or 0 in x.shape for x in layouts):
        return None
    return AttentionStep(name, known, layouts, result, bool(given.get("is_causal")), scale)


def _given(call: OpCall, name: str) -> dict[str, Any] | None:
    """The arguments behind the first three by name; None where some are not served."""
    found = dict(zip(_PARAMETERS[name], call.args[3:], strict=False)) | dict(call.kwargs)
    scale = found.get("scale")
    known = len(call.args) >= 3 and found.keys() <= {*_PARAMETERS[name], "scale"}
    plain = not found.get("return_debug_mask") and found.get("is_causal", False) in (False, True)
    if not known or not plain or not isinstance(scale, float | None):
        return None
    return found if found.get("dropout_p", 0.0) == 0.0 else None
