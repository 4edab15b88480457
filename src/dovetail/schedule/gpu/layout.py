"""What layouts cost on a GPU, in seconds: library convolutions, and changing a layout.

Matrix instructions take channels-last images. cuDNN lays row-major ones out so before it
multiplies, and its results back, which moves each of their elements twice more.
"""

from __future__ import annotations

import math

from dovetail.ir.call import OpCall, Ref
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.gpu.cost import REACHED

# The type by which matrix instructions multiply float32, where PyTorch is allowed to.
_ROUNDED = {"float32": "tfloat32"}


def reformat_seconds(desc: TensorDesc, target: Target) -> float:
    """What a tensor takes to be read, and written in another layout."""
    moved = 2 * (desc.numel or 0) * item_bytes(desc.dtype)
    return target.thread_seconds + moved / (target.bytes_per_second * REACHED)


def library_seconds(call: OpCall, target: Target, *, constant: bool) -> tuple[float, float] | None:
    """What the choice adds to a library convolution, row-major and channels-last; None: it is none.

    ``constant``: its weights are laid out once.
    """
    if call.op != "aten.convolution.default" or not isinstance(call.output, TensorDesc):
        return None
    descs = [arg.desc if isinstance(arg, Ref) else None for arg in call.args[:2]]
    known = [d for d in (*descs, call.output) if isinstance(d, TensorDesc) and d.rank == 4]
    if len(known) < 3 or not all(d.is_static for d in known):
        return None
    image, weights, made = known
    dtype = _ROUNDED.get(made.dtype, made.dtype)
    if dtype not in target.tensor_cores or _is_depthwise(call, weights):
        return None
    copied = [image, made] if constant else [image, made, weights]
    return math.fsum(reformat_seconds(d, target) for d in copied), 0.0


def _is_depthwise(call: OpCall, weights: TensorDesc) -> bool:
    """Whether each channel is a sum of its own, which has nothing for matrix instructions."""
    return call.args[8] != 1 and weights.shape[1] == 1
