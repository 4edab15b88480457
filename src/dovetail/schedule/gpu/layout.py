"""What layouts cost on a GPU, in seconds: library convolutions, and changing a layout.

Matrix instructions take channels-last images. cuDNN lays row-major ones out so before it
multiplies, and its results back, which moves each of their elements twice more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dovetail.ir.call import OpCall, Ref, tensors
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.target import Target
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.gpu.cost import REACHED

FORWARD, BACKWARD = "aten.convolution.default", "aten.convolution_backward.default"
CONVOLUTIONS = {FORWARD: 1, BACKWARD: 2}  # with their weights' positions among their arguments
# Seconds that each tap of each element of a depthwise convolution takes longer row-major, forward
# and backward, at least: 64 images of 96 x 56 x 56 by 3 x 3 in bfloat16 took an H200 183 and 729
# us, for 40 and 113 us channels-last. In float32 large windows have no kernel that is faster.
DEPTHWISE, DEPTHWISE_BACKWARD = 0.5e-12, 2e-12
_MOST_TAPS = {"bfloat16": 1 << 10, "float16": 1 << 10, "float32": 25}
# The type by which matrix instructions multiply float32, where PyTorch is allowed to.
_ROUNDED = {"float32": "tfloat32"}


def reformat_seconds(desc: TensorDesc, target: Target) -> float:
    """What a tensor takes to be read, and written in another layout."""
    moved = 2 * (desc.numel or 0) * item_bytes(desc.dtype)
    return target.thread_seconds + moved / (target.bytes_per_second * REACHED)


def library_seconds(call: OpCall, target: Target, *, constant: bool) -> tuple[float, float] | None:
    """What the choice adds to a library convolution, row-major and channels-last; None: it is none.

    ``constant``: its weights are laid out once. Its gradients are taken with what it read itself.
    """
    if call.op not in CONVOLUTIONS:
        return None
    descs = [arg.desc for arg in call.args[:3] if isinstance(arg, Ref)]
    made = [desc for _, desc in tensors(call.output)]
    known = [d for d in (*descs, *made) if isinstance(d, TensorDesc) and d.rank == 4]
    if len(known) < 3 or not all(d.is_static for d in known):
        return None
    dtype = _ROUNDED.get(known[0].dtype, known[0].dtype)
    weights = call.args[CONVOLUTIONS[call.op]].desc
    if _is_depthwise(call, weights):
        return _depthwise_seconds(call, weights, known)
    if dtype not in target.tensor_cores:
        return None
    copied = [d for d in known if not constant or d is not weights]
    return math.fsum(reformat_seconds(d, target) for d in copied), 0.0


def _is_depthwise(call: OpCall, weights: TensorDesc) -> bool:
    """Whether each channel is a sum of its own, which has nothing for matrix instructions."""
    groups = call.args[8 if call.op == FORWARD else 9]
    return groups != 1 and weights.shape[1] == 1


def _depthwise_seconds(
    call: OpCall, weights: TensorDesc, known: Sequence[TensorDesc]
) -> tuple[float, float] | None:
    """What PyTorch's kernel of row-major images takes more than cuDNN's of others."""
    taps = math.prod(weights.shape[2:])  # type: ignore[arg-type]
    if taps > _MOST_TAPS.get(weights.dtype, 0):
        return None
    forward = call.op == FORWARD
    made = known[-1] if forward else known[0]  # or its gradient
    each = DEPTHWISE if forward else DEPTHWISE_BACKWARD
    return each * taps * (made.numel or 0), 0.0
