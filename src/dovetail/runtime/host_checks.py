"""What some of PyTorch's operators take on trust, checked before an untrusted file's call.

These operators are on the list of ``ir.host_operators`` because models cannot do without them,
although their kernels leave some arguments unchecked. The attack of ``tests/attack`` calls them
with these checks in front. A call that fails one never reaches PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dovetail.errors import RunFailed

_LARGEST = 2**29  # of sizes, paddings and windows, two of which are multiplied
Check = Callable[..., bool]  # with the arguments of a call: whether they are as they must be


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *_rest: Any,
    attn_mask: torch.Tensor | None = None,
    **_named: Any,
) -> bool:
    """Batches, heads and lengths of the three agree; the mask broadcasts to the scores."""
    given = (query, key, value)
    if any(t.dim() != 4 or t.dtype != query.dtype or 0 in t.shape for t in given):
        return False
    if query.shape[:2] != key.shape[:2] or key.shape != value.shape:
        return False
    if query.shape[3] != key.shape[3] or any(t.stride(3) != 1 for t in given):
        return False
    return attn_mask is None or _broadcasts(attn_mask, (*query.shape[:3], key.shape[2]))


def _broadcasts(mask: torch.Tensor, scores: tuple[int, ...]) -> bool:
    wanted = scores if mask.dim() == 4 else scores[2:]
    return mask.dim() in (2, 4) and all(
        size in (1, most) for size, most in zip(mask.shape, wanted, strict=True)
    )


def _group_norm(
    _input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, *_rest: Any
) -> bool:
    """Weights lie without gaps: the kernel reads them as flat memory."""
    return all(t is None or t.is_contiguous() for t in (weight, bias))


def _grid_sampler(
    _input: torch.Tensor, _grid: torch.Tensor, interpolation: int, padding: int, _corners: bool
) -> bool:
    """Modes that exist: for others nothing is written."""
    return interpolation in (0, 1, 2) and padding in (0, 1, 2)


def _grid_sampler_3d(
    _input: torch.Tensor, _grid: torch.Tensor, interpolation: int, padding: int, _corners: bool
) -> bool:
    return interpolation in (0, 1) and padding in (0, 1, 2)


def _replication_pad(_input: torch.Tensor, padding: Sequence[int]) -> bool:
    """Paddings whose sum with a size cannot overflow."""
    return all(abs(amount) < 2**31 for amount in padding)


def _reflection_pad3d(_input: torch.Tensor, padding: Sequence[int]) -> bool:
    """Two amounts for each of three dimensions: PyTorch 2.11 reads six, however many there are."""
    return len(padding) == 6


def _im2col(input: torch.Tensor, *windows: Any, **named: Any) -> bool:  # noqa: A002  # the schema's
    """Sizes and windows whose products cannot overflow: the kernel computes with them unchecked."""
    given = [*input.shape, *_numbers((*windows, *named.values()))]
    return all(0 <= number < _LARGEST for number in given)


def _numbers(lists: Sequence[int | Sequence[int]]) -> list[int]:
    return [n for each in lists for n in ([each] if isinstance(each, int) else each)]


def _upsample(
    _input: torch.Tensor, _output_size: Any, *given: float | None, **named: float | None
) -> bool:
    """Scales by which every position becomes an integer; others may be far from the sizes' ratio.

    Among them is ``align_corners``, which is one in any case.
    """
    scales = [s for s in (*given, *named.values()) if s is not None and not isinstance(s, bool)]
    return all(2.0**-20 <= scale <= 2.0**20 for scale in scales)


def _batch_norm(input: torch.Tensor, *rest: Any) -> bool:  # noqa: A002  # the schema's name
    """Weights and statistics hold one number a channel."""
    if input.dim() < 2 or any(t is None for t in rest[2:4]):
        return False
    return all(t is None or t.shape == input.shape[1:2] for t in rest[:4])


def _division(dividend: torch.Tensor, divisor: Any, *, rounding_mode: str | None = None) -> bool:
    """No least integer is divided by -1, which ends the process."""
    divisor = torch.as_tensor(divisor)
    dtype = torch.result_type(dividend, divisor)
    if rounding_mode != "trunc" or dtype.is_floating_point or dtype == torch.bool:
        return True
    if dtype.is_complex:
        return False
    least = dividend == torch.iinfo(dtype).min
    return not bool((least & (divisor == -1)).any())


CHECKS: dict[str, Check] = {
    "aten._native_batch_norm_legit_no_training.default": _batch_norm,
    "aten.div.Scalar_mode": _division,
    "aten.div.Tensor_mode": _division,
    "aten._scaled_dot_product_flash_attention_for_cpu.default": _attention,
    "aten.native_group_norm.default": _group_norm,
    "aten.grid_sampler_2d.default": _grid_sampler,
    "aten.grid_sampler_3d.default": _grid_sampler_3d,
    "aten.im2col.default": _im2col,
    "aten.col2im.default": _im2col,
    "aten.reflection_pad3d.default": _reflection_pad3d,
    "aten.replication_pad1d.default": _replication_pad,
    "aten.replication_pad2d.default": _replication_pad,
    "aten.replication_pad3d.default": _replication_pad,
    "aten._upsample_nearest_exact1d.default": _upsample,
    "aten._upsample_nearest_exact2d.default": _upsample,
    "aten.upsample_bicubic2d.default": _upsample,
    "aten.upsample_bilinear2d.default": _upsample,
    "aten.upsample_linear1d.default": _upsample,
    "aten.upsample_nearest1d.default": _upsample,
    "aten.upsample_nearest2d.default": _upsample,
    "aten.upsample_nearest3d.default": _upsample,
    "aten.upsample_trilinear3d.default": _upsample,
}


def checked(op: str, target: Callable[..., Any]) -> Callable[..., Any]:
    """An operator with its checks in front.

    None may lock pages: there are few to lock, and PyTorch asks a GPU's driver for them.
    """
    check = CHECKS.get(op)

    def call(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("pin_memory") or (check is not None and not check(*args, **kwargs)):
            raise RunFailed(
                f"{op} is called with arguments that it does not check itself, and that only a "
                "trusted file may give it"
            )
        return target(*args, **kwargs)

    return call
