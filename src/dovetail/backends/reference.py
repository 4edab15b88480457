"""``reference``: core ATen, call by call, every result held against its descriptor.

It is the oracle that other backends are tested against: slow, simple, and unforgiving.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.backend import Availability, Backend, Blob, Executable, Support, torch_available
from dovetail.errors import WrongOutputs
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.size import evaluate, symbols_of
from dovetail.ir.tensor import Desc, ScalarDesc, TensorDesc

if TYPE_CHECKING:
    from dovetail.ir import OpCall, Segment


class ReferenceBackend(Backend):
    """An interpreter over the functional graph, decomposed to core ATen."""

    name = "reference"
    tags = frozenset({"debug"})

    def available(self) -> Availability:
        """Wherever PyTorch is."""
        return torch_available()

    def supports(self, call: OpCall) -> Support:  # noqa: ARG002
        """Whatever core ATen or a custom library defines."""
        return Support.yes()

    def keeps_whole(self, call: OpCall) -> bool:  # noqa: ARG002
        """Nothing: an oracle should stand on few operators."""
        return False

    def compile(self, segment: Segment) -> Blob:
        """The segment itself is the code."""
        return Blob(segment_to_bytes(segment))

    def load(self, blob: Blob) -> Executable:
        """An interpreter that checks every result."""
        from dovetail.backends.interpreter import Interpreter

        return Interpreter(segment_from_bytes(blob.data), check=check_result)


def check_result(call: OpCall, result: Any, symbols: Mapping[str, int]) -> None:
    """Raise WrongOutputs unless ``result`` is what the call's descriptor promises."""
    problem = _mismatch(call.output, result, symbols)
    if problem:
        raise WrongOutputs("reference", f"{problem} for {call}")


def _mismatch(desc: Desc, value: Any, symbols: Mapping[str, int]) -> str:
    if isinstance(desc, tuple):
        if not isinstance(value, tuple | list) or len(value) != len(desc):
            return f"{type(value).__name__} instead of {len(desc)} values"
        # ATen leaves some of several results undefined where its meta function describes them.
        pairs = [(d, v) for d, v in zip(desc, value, strict=True) if v is not None]
        problems = (_mismatch(d, v, symbols) for d, v in pairs)
        return next(filter(None, problems), "")
    if isinstance(desc, TensorDesc):
        return _tensor_mismatch(desc, value, symbols)
    if isinstance(desc, ScalarDesc) and desc.size is not None and _is_known(desc.size, symbols):
        expected = evaluate(desc.size, symbols)
        return "" if value == expected else f"{value} instead of {expected}"
    return ""


def _tensor_mismatch(desc: TensorDesc, value: Any, symbols: Mapping[str, int]) -> str:
    dtype = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    if dtype != desc.dtype:
        return f"{dtype} instead of {desc.dtype}"
    if str(value.device) != desc.device:
        return f"a tensor on {value.device} instead of {desc.device}"
    known = all(_is_known(d, symbols) for d in desc.shape)
    expected = [evaluate(d, symbols) for d in desc.shape] if known else list(value.shape)
    return "" if list(value.shape) == expected else f"shape {list(value.shape)} for {expected}"


def _is_known(dim: Any, symbols: Mapping[str, int]) -> bool:
    return symbols_of(dim) <= symbols.keys()
