"""What backends of kernels and PyTorch's calls between them take, and why not the rest."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from dovetail.capture.ops import resolve_op
from dovetail.errors import UnsupportedGraph
from dovetail.ir.size import UNKNOWN
from dovetail.ir.target import Target
from dovetail.ir.tensor import ScalarDesc, TensorDesc
from dovetail.schedule.plan import verdict

if TYPE_CHECKING:
    from dovetail.ir import OpCall

# Results of these are not always what their metadata says (a bfloat16 tensor is described as a
# float32 one); ATen's segments do not rely on it.
_MISDESCRIBED = "_batch_norm_with_update"
# These count from where a tensor's memory begins, not from the tensor, and the position among their
# arguments of the number that they count.
_COUNT_FROM_MEMORY = {
    "aten.as_strided.default": 3,
    "aten.as_strided_copy.default": 3,
    "aten.as_strided_scatter.default": 4,
}
# Attention by PyTorch's fused kernels: behind their first two results come numbers and states of
# random numbers, which may lie on the processor, whatever is said of them.
FUSED_ATTENTION = frozenset(
    f"aten._scaled_dot_product_{name}_attention.default" for name in ("flash", "efficient", "cudnn")
)


def results_of(call: OpCall) -> tuple[TensorDesc, ...]:
    """The results of a call that are on its device."""
    return call.outputs[:2] if call.op in FUSED_ATTENTION else call.outputs


def refusal(call: OpCall, target: Target, device: str) -> str:
    """Why a call is not taken for a target, which works on memory of a type of device."""
    if call.binds:
        return "it defines a size that depends on data"
    if any(name.startswith(_MISDESCRIBED) for name in (call.name, *(r.name for r in call.refs()))):
        return "PyTorch describes its operands or results wrongly"
    if any(isinstance(r.desc, ScalarDesc) and r.desc.size is None for r in call.refs()):
        return "it takes a number of Python's that no expression of sizes says"
    if _counts_from_memory(call):
        return "it counts from where a tensor's memory begins, of which code sees the tensor alone"
    reason = verdict(call, target, device)
    if not reason:
        return ""
    return "" if _callable(call, device) else reason


def _counts_from_memory(call: OpCall) -> bool:
    position = _COUNT_FROM_MEMORY.get(call.op)
    if position is None:
        return False
    given = call.kwargs.get("storage_offset", (*call.args[position:], None)[0])
    return given is not None


def _callable(call: OpCall, device: str) -> bool:
    """Whether PyTorch may run it between kernels: on one device, tensors in and out.

    Calls keep their order, so that those that draw random numbers draw eager's.
    """
    if not call.op.startswith("aten.") or any(True for _ in call.subgraphs()):
        return False
    descs = (*call.inputs, *results_of(call))
    if len({desc.device for desc in descs}) > 1:
        return False
    for desc in descs:
        if desc.device.partition(":")[0] != device:
            return False
        if len(desc.strides) != len(desc.shape):  # sparse has no strides
            return False
        if UNKNOWN in (*desc.shape, *desc.strides):  # two of them need not be equal
            return False
    if call.op not in FUSED_ATTENTION and not _only_tensors(call.output):
        return False
    return _is_known(call.op)


def _only_tensors(desc: object) -> bool:
    if isinstance(desc, tuple):
        return all(map(_only_tensors, desc))
    return desc is None or isinstance(desc, TensorDesc)


@functools.cache
def _is_known(name: str) -> bool:
    try:
        resolve_op(name)
    except UnsupportedGraph:
        return False
    return True
