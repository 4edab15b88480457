"""What calls and copies cost, roughly: enough to tell whether a segment pays for its copies.

Where a backend gives costs they are taken. Otherwise a call is estimated from its operations and
the bytes it touches, with the backend's ``speed``. A backend with memory of its own that declares
neither is taken to run in no time, so that it loses a segment only where nothing could save it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import cache

from dovetail.backend import Backend, Speed, Support
from dovetail.capture.ops import is_view_op
from dovetail.errors import SizeError
from dovetail.ir import Desc, Dim, OpCall, TensorDesc
from dovetail.ir.dtypes import item_bytes
from dovetail.ir.size import evaluate

# The host, where a backend does not say. Orders of magnitude: an operator call costs
# microseconds, two cores do some 50 GFLOP/s and read some 10 GB/s.
HOST = Speed(call_seconds=5e-6, flops_per_second=5e10, bytes_per_second=1e10)
# A size that only the data tells, and whatever has no expression.
UNKNOWN_SIZE = 64
_PRODUCTS = frozenset(
    f"aten.{op}.default"
    for op in ["mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "matmul", "linear", "dot"]
)
_ATTENTION = "scaled_dot_product"


class Costs:
    """Sizes and times, given what each symbol was in the example call."""

    def __init__(self, hints: Mapping[str, int] | None = None) -> None:
        self.hints = dict(hints or {})

    def number(self, dim: Dim) -> int:
        """A size, in the example call."""
        if isinstance(dim, int):
            return dim
        known = {symbol: self.hints.get(symbol, UNKNOWN_SIZE) for symbol in dim.symbols()}
        try:
            return max(evaluate(dim, known), 0)
        except SizeError:  # the guess for an unknown symbol may make no sense
            return UNKNOWN_SIZE

    def bytes_of(self, desc: Desc) -> int:
        """The memory of a value, each element counted once; numbers take none."""
        if isinstance(desc, tuple):
            return sum(map(self.bytes_of, desc))
        return self.elements(desc) * item_bytes(desc.dtype) if isinstance(desc, TensorDesc) else 0

    def span(self, desc: Desc) -> int:
        """Bytes from a tensor's first element to the end of its last: what a copy of it moves."""
        if not isinstance(desc, TensorDesc) or not desc.strides:
            return self.bytes_of(desc)
        shape, strides = (tuple(map(self.number, dims)) for dims in (desc.shape, desc.strides))
        if 0 in shape:
            return 0
        last = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
        return (last + 1) * item_bytes(desc.dtype)

    def elements(self, desc: TensorDesc) -> int:
        """How many elements are stored: a dimension with stride 0 holds one."""
        strides = desc.strides or (1,) * desc.rank
        stored = zip(desc.shape, strides, strict=True)
        return math.prod(self.number(size) for size, stride in stored if stride != 0)

    def seconds(self, call: OpCall, backend: Backend, answer: Support | None) -> float | None:
        """How long a call takes on a backend that gave this answer; None: nobody knows."""
        if answer is not None and answer.cost > 0:
            return answer.cost
        speed = speed_of(backend)
        if speed is None:
            return None
        if is_free(call.op):
            return 0.0
        return speed.seconds(self.flops(call), self.traffic(call))

    def traffic(self, call: OpCall) -> int:
        """Bytes a call reads and writes."""
        return sum(map(self.bytes_of, call.inputs)) + self.bytes_of(call.output)

    def flops(self, call: OpCall) -> int:
        """Operations: exact for products, one for each element that is written otherwise."""
        made = sum(self._shape_product(out) for out in call.outputs[:1])
        if call.op in _PRODUCTS and call.inputs:
            matrix = call.inputs[-2] if len(call.inputs) > 1 else call.inputs[0]
            if call.op == "aten.linear.default":
                matrix = call.inputs[0]
            return 2 * made * (self.number(matrix.shape[-1]) if matrix.shape else 1)
        if call.op.startswith("aten.convolution") and len(call.inputs) > 1 and call.outputs:
            return self._convolution(call)
        if _ATTENTION in call.op and len(call.inputs) > 1 and call.inputs[1].rank > 1:
            return 4 * made * self.number(call.inputs[1].shape[-2])
        return made

    def _convolution(self, call: OpCall) -> int:
        """Of a convolution, or of both gradients of one."""
        backward = call.op.startswith("aten.convolution_backward")
        image, weight = call.inputs[0], call.inputs[-1 if backward else 1]
        made = image if backward else call.outputs[0]
        window = (
            self._shape_product(weight) // max(self.number(weight.shape[0]), 1)
            if weight.rank
            else 1
        )
        return (4 if backward else 2) * self._shape_product(made) * window

    def _shape_product(self, desc: TensorDesc) -> int:
        return math.prod(map(self.number, desc.shape))


def speed_of(backend: Backend) -> Speed | None:
    """A backend's declared speed, or the host's where it works on the host's memory."""
    if backend.speed is not None:
        return backend.speed
    return HOST if backend.device == "cpu" and backend.transfer is None else None


def total(parts: Iterable[float | None]) -> float | None:
    """A sum, or None where a part is not known."""
    known = list(parts)
    return None if None in known else sum(p for p in known if p is not None)


@cache
def is_free(op: str) -> bool:
    """Whether a call of this operator moves no data."""
    return op.startswith("python.") or is_view_op(op)
