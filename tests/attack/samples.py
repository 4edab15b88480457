"""Calls of ATen operators as JSON: what op_db makes eager call, once for each way of calling.

A tensor is ``{"t": [dtype, shape, strides, values]}``, its values only where they are few and
whole (an index must be in range for a call to be a good one); others are made from a seed. One
number as values fills the tensor, ``{"last": number}`` sets the last element of a tensor of zeros.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

Call = tuple[str, list[Any], dict[str, Any]]  # operator, arguments, keyword arguments; encoded
FILE = Path(__file__).with_name("samples.json")
_FEW, _LARGEST = 64, 4096
_NAMED = (torch.dtype, torch.layout, torch.memory_format, torch.device)


def encode(value: Any) -> Any:
    """A value of a call as JSON; ValueError for what no file can hold."""
    if isinstance(value, torch.Tensor):
        return {"t": _encode_tensor(value)}
    if isinstance(value, list | tuple):
        return [encode(v) for v in value]
    if isinstance(value, _NAMED):
        kind = type(value).__name__
        return {"a": [kind, str(value).removeprefix("torch.")]}
    if isinstance(value, complex):
        return {"c": [value.real, value.imag]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{type(value).__name__} in a call")


def _encode_tensor(value: torch.Tensor) -> list[Any]:
    plain = value.layout == torch.strided and not value.is_quantized and value.device.type == "cpu"
    if not plain or value.numel() > _LARGEST or value.is_conj() or value.is_neg():
        raise ValueError("a tensor of another kind")
    whole = not (value.dtype.is_floating_point or value.dtype.is_complex)
    few = whole and value.numel() <= _FEW
    dtype = str(value.dtype).removeprefix("torch.")
    strides = None if value.is_contiguous() else list(value.stride())
    return [dtype, list(value.shape), strides, value.tolist() if few else None]


def decode(value: Any) -> Any:
    """What ``encode`` wrote, with tensors of their own."""
    if isinstance(value, list):
        return [decode(v) for v in value]
    if not isinstance(value, dict):
        return value
    ((tag, body),) = value.items()
    if tag == "t":
        return _decode_tensor(*body)
    if tag == "c":
        return complex(*body)
    return torch.device(body[1]) if body[0] == "device" else getattr(torch, body[1])


def _decode_tensor(dtype: str, shape: list[int], strides: Any, values: Any) -> torch.Tensor:
    kind = getattr(torch, dtype)
    if isinstance(values, dict):
        made = torch.zeros(shape, dtype=kind)
        made.view(-1)[-1:] = values["last"]
    elif isinstance(values, int | float):
        made = torch.full(shape, values, dtype=kind)
    elif values is not None:
        made = torch.tensor(values, dtype=kind).reshape(shape)
    elif kind.is_floating_point or kind.is_complex:
        made = torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape))).to(kind)
    else:
        made = torch.arange(made_of(shape)).remainder(2).to(kind).reshape(shape)
    if strides is None:
        return made
    laid = torch.empty_strided(shape, strides, dtype=kind)
    once = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in strides)
    laid[once] = made[once]
    return laid


def made_of(shape: Sequence[int]) -> int:
    """How many elements a shape has."""
    return torch.Size(shape).numel()


class _Recorder(TorchDispatchMode):
    """Keeps each functional call that reaches ATen, a few of each form."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.found: dict[str, dict[str, Call]] = {}

    def __torch_dispatch__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and not func._schema.is_mutable:
            self.keep(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def keep(self, func: Any, args: Any, kwargs: Any) -> None:
        """Keep a call, if it is of a new form and can be written down."""
        known = self.found.setdefault(str(func), {})
        if len(known) >= self.limit:
            return
        try:
            call = (
                str(func),
                [encode(a) for a in args],
                {k: encode(v) for k, v in kwargs.items()},
            )
        except (ValueError, RuntimeError):
            return
        known.setdefault(_form(args, kwargs), call)


def _form(args: Any, kwargs: Any) -> str:
    """What tells one way of calling from another: dtypes, ranks, plain values' types, words."""
    return " ".join(
        f"{v.dtype}{v.dim()}" if isinstance(v, torch.Tensor) else _kind(v)
        for v in tree_iter((args, kwargs))
    )


def _kind(value: Any) -> str:
    return value if isinstance(value, str) else type(value).__name__


def collect(limit: int) -> list[Call]:
    """Calls of every operator that op_db's samples and their gradients reach, ``limit`` each."""
    from torch.testing._internal.common_methods_invocations import op_db

    recorder = _Recorder(limit)
    further(recorder)
    for entry in op_db:
        for dtype in (torch.float32, torch.int64, torch.bool, torch.complex64):
            if dtype in entry.dtypes:
                _record(recorder, entry, dtype, limit)
    return [call for known in recorder.found.values() for call in known.values()]


def _rand(*shape: int) -> torch.Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _ints(size: int) -> torch.Tensor:
    return torch.arange(1, size + 1, dtype=torch.int32)


# What graphs of models hold and op_db's samples do not reach: operator and arguments.
_FURTHER: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("_native_batch_norm_legit_no_training.default",
     (_rand(2, 3, 4, 4), _rand(3), _rand(3), _rand(3), _rand(3), 0.1, 1e-5), {}),
    ("_native_batch_norm_legit_no_training.default",
     (_rand(2, 3), None, None, _rand(3), _rand(3), 0.1, 1e-5), {}),
    ("upsample_bilinear2d.vec", (_rand(1, 2, 4, 4), None, False, [2.0, 1.5]), {}),
    ("upsample_bilinear2d.vec", (_rand(1, 2, 4, 4), [6, 3], True, None), {}),
    ("upsample_bicubic2d.vec", (_rand(1, 2, 4, 4), [6, 3], True, None), {}),
    ("upsample_nearest1d.vec", (_rand(1, 2, 4), None, [2.0]), {}),
    ("upsample_nearest2d.vec", (_rand(1, 2, 4, 4), None, [2.0, 1.5]), {}),
    ("upsample_nearest3d.vec", (_rand(1, 2, 2, 3, 3), None, [2.0, 2.0, 2.0]), {}),
    ("upsample_linear1d.vec", (_rand(1, 2, 4), None, False, [2.0]), {}),
    ("upsample_trilinear3d.vec", (_rand(1, 2, 2, 3, 3), None, False, [2.0, 2.0, 2.0]), {}),
    ("_upsample_nearest_exact2d.vec", (_rand(1, 2, 4, 4), None, [2.0, 1.5]), {}),
    ("_scaled_dot_product_flash_attention_for_cpu.default",
     (_rand(1, 2, 3, 8), _rand(1, 2, 5, 8), _rand(1, 2, 5, 8)),
     {"attn_mask": _rand(1, 1, 3, 5), "scale": 0.3}),
    ("_scaled_dot_product_flash_attention_for_cpu.default",
     (_rand(1, 2, 3, 8), _rand(1, 2, 5, 8), _rand(1, 2, 5, 8)), {"attn_mask": _rand(3, 5)}),
    ("add.Scalar", (_rand(3, 4), 2, 1), {}),
    ("sub.Scalar", (_rand(3, 4), 2, 1), {}),
    ("mul.Scalar", (_rand(3, 4), 2.5), {}),
    ("div.Scalar_mode", (torch.arange(6), 4), {"rounding_mode": "floor"}),
    ("div.Scalar_mode", (torch.arange(6), 4), {"rounding_mode": "trunc"}),
    ("div.Tensor_mode", (torch.arange(6), torch.arange(6) + 1), {"rounding_mode": "trunc"}),
    ("div.Tensor_mode", (_ints(6), _ints(6)), {"rounding_mode": "trunc"}),
    ("div.Tensor_mode", (_ints(6), _ints(6)), {"rounding_mode": "floor"}),
    ("floor_divide.default", (_ints(6), _ints(6)), {}),
    ("remainder.Tensor", (_ints(6), _ints(6)), {}),
    ("fmod.Tensor", (_ints(6), _ints(6)), {}),
    ("gcd.default", (_ints(6), _ints(6)), {}),
    ("fmod.Scalar", (torch.arange(6), 4), {}),
    ("remainder.Scalar", (torch.arange(6), 4), {}),
    ("remainder.Scalar_Tensor", (4, torch.arange(6) + 1), {}),
    ("floor_divide.Scalar", (torch.arange(6), 4), {}),
    ("pow.Scalar", (2, torch.arange(6)), {}),
    ("pow.Tensor_Scalar", (torch.arange(6), 3), {}),
    ("rsub.Tensor", (_rand(3), _rand(3)), {}),
    ("bitwise_and.Scalar", (torch.arange(6), 4), {}),
    ("bitwise_or.Scalar", (torch.arange(6), 4), {}),
    ("bitwise_xor.Scalar", (torch.arange(6), 4), {}),
    ("bitwise_left_shift.Tensor_Scalar", (torch.arange(6), 4), {}),
    ("bitwise_right_shift.Tensor_Scalar", (torch.arange(6), 4), {}),
    ("clamp.default", (_rand(3, 4), -0.5, 0.5), {}),
    ("clamp_max.default", (_rand(3, 4), 0.5), {}),
    ("where.ScalarOther", (_rand(3, 4) > 0.5, _rand(3, 4), 0.0), {}),
    ("where.ScalarSelf", (_rand(3, 4) > 0.5, 0.0, _rand(3, 4)), {}),
    ("where.Scalar", (_rand(3, 4) > 0.5, 0.0, 1.0), {}),
    ("masked_fill.Scalar", (_rand(3, 4), _rand(4) > 0.5, 0.0), {}),
    ("masked_fill.Tensor", (_rand(3, 4), _rand(4) > 0.5, torch.tensor(0.0)), {}),
    ("index.Tensor", (_rand(4, 5), [None, torch.tensor([1, 0, 3])]), {}),
    ("_unsafe_index.Tensor", (_rand(4, 5), [torch.tensor([1, 0, 3])]), {}),
    ("index_put.default", (_rand(4, 5), [torch.tensor([1, 0, 3])], _rand(5), True), {}),
    ("scatter.value", (_rand(4, 5), 1, torch.tensor([[1], [0], [3]]), 2.0), {}),
    ("scatter_reduce.two", (_rand(5), 0, torch.tensor([1, 0, 3]), _rand(3), "amax"), {}),
    ("feature_dropout.default", (_rand(3, 4), 0.5, False), {}),
    ("native_dropout.default", (_rand(3, 4), 0.5, True), {}),
    ("nonzero_static.default", (torch.tensor([0, 1, 2]),), {"size": 4}),
    ("sort.stable", (torch.arange(6),), {"stable": True, "dim": 0, "descending": True}),
    ("reshape.default", (_rand(3, 4), [2, 6]), {}),
    ("t.default", (_rand(3, 4),), {}),
    ("view.dtype", (_rand(3, 4), torch.int32), {}),
    ("split.sizes", (_rand(6, 2), [1, 2, 3]), {}),
    ("ones_like.default", (_rand(3, 4),), {}),
    ("rand.default", ([5],), {}),
    ("randn.default", ([5],), {}),
    ("rand_like.default", (_rand(3),), {}),
    ("randn_like.default", (_rand(3),), {}),
    ("randint.default", (9, [5]), {}),
    ("randint.low", (2, 9, [5]), {}),
    ("randperm.default", (9,), {}),
    ("linear.default", (_rand(3, 4), _rand(5, 4), _rand(5)), {}),
    ("matmul.default", (_rand(2, 3, 4), _rand(4, 5)), {}),
    ("layer_norm.default", (_rand(3, 4), [4], _rand(4), _rand(4)), {}),
    ("rms_norm.default", (_rand(3, 4), [4], _rand(4)), {}),
    ("_fused_rms_norm.default", (_rand(3, 4), [4], _rand(4), 1e-5), {}),
    ("softmax.int", (_rand(3, 4), 1), {}),
    ("conv2d.default", (_rand(1, 2, 5, 5), _rand(3, 2, 3, 3), _rand(3)), {}),
    ("adaptive_avg_pool1d.default", (_rand(1, 2, 6), [3]), {}),
    ("adaptive_avg_pool2d.default", (_rand(1, 2, 6, 6), [3, 2]), {}),
    ("avg_pool1d.default", (_rand(1, 2, 6), [3]), {}),
    ("max_pool2d_with_indices.default", (_rand(1, 2, 8, 8), [2, 2], [1, 1], [1, 1], [1, 1]), {}),
    ("topk.default", (_rand(3, 8), 2, 1, False), {}),
    ("convolution.default",
     (_rand(1, 4, 8, 8), _rand(6, 2, 3, 3), _rand(6), [1, 2], [1, 1], [1, 1], False, [0, 0], 2),
     {}),
    ("convolution.default",
     (_rand(1, 4, 5, 5), _rand(4, 6, 3, 3), None, [2, 2], [0, 0], [1, 1], True, [1, 1], 1), {}),
    ("convolution.default",
     (_rand(1, 16, 12, 12), _rand(16, 16, 3, 3), None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1),
     {}),
    ("native_group_norm.default", (_rand(2, 6, 4, 4), _rand(6), None, 2, 6, 16, 3, 1e-5), {}),
    ("mm.default", (_rand(40, 40), _rand(40, 40)), {}),
    ("bmm.default", (_rand(4, 20, 30), _rand(4, 30, 20)), {}),
]  # fmt: skip


def further(recorder: _Recorder) -> None:
    """Record the calls above, those that this PyTorch has."""
    for name, args, kwargs in _FURTHER:
        base, overload = name.split(".")
        target = getattr(getattr(torch.ops.aten, base, None), overload, None)
        if target is not None:
            recorder.keep(target, args, kwargs)


def _record(recorder: _Recorder, entry: Any, dtype: torch.dtype, limit: int) -> None:
    grad = entry.supports_autograd and dtype == torch.float32
    try:
        samples = entry.sample_inputs("cpu", dtype, requires_grad=grad)
        for _, sample in zip(range(limit * 4), samples, strict=False):
            with recorder:
                made = entry(sample.input, *sample.args, **sample.kwargs)
                leaf = next(
                    (v for v in tree_iter(made) if getattr(v, "requires_grad", False)), None
                )
                if leaf is not None:
                    leaf.sum().backward()
    except Exception:
        pass


def read() -> list[Call]:
    """The calls that the repository keeps, one of each operator: the short form."""
    return [tuple(call) for call in json.loads(FILE.read_text())]
