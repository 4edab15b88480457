"""Programs of single host calls, made from an operator and its arguments."""

from __future__ import annotations

from typing import Any

import torch

from dovetail.capture.ops import resolve_op
from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.call import Attr, Ref
from dovetail.ir.program import Buffer, HostCall, Program
from dovetail.ir.program_verify import verify_program
from dovetail.ir.tensor import TensorDesc
from dovetail.runtime.loaded import TRUST, open_native


def desc_of(tensor: torch.Tensor) -> TensorDesc:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorDesc(dtype, tuple(tensor.shape), tuple(tensor.stride()))


class HostFile:
    """One call of ``op`` as an artifact; ``kind`` is that of the buffers it fills."""

    def __init__(self, op: str, args: tuple[Any, ...], kwargs: dict[str, Any], kind: str = "host"):
        self.tensors: list[torch.Tensor] = []
        self.op, self.args, self.kwargs = op, args, kwargs
        plain = tuple(self._arg(a) for a in args)
        named = {key: self._arg(value) for key, value in kwargs.items()}
        made = self.eager()
        buffers = [Buffer(f"x{i}", "input", desc_of(t)) for i, t in enumerate(self.tensors)]
        names = []
        for i, tensor in enumerate(made):
            names.append(f"y{i}" if tensor is not None else "")
            if tensor is not None:
                buffers.append(Buffer(f"y{i}", kind, desc_of(tensor)))
        outputs = tuple(filter(None, names))
        call = HostCall(op, tuple(names), plain, named)
        self.program = Program("p", tuple(buffers), (call,), outputs)
        verify_program(self.program)

    def _arg(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            self.tensors.append(value)
            return Ref(f"x{len(self.tensors) - 1}")
        if isinstance(value, list | tuple):
            return tuple(self._arg(v) for v in value)
        for kind in ("dtype", "layout", "memory_format"):
            if isinstance(value, getattr(torch, kind)):
                return Attr(kind, str(value).removeprefix("torch."))
        return Attr("device", str(value)) if isinstance(value, torch.device) else value

    def eager(self) -> list[Any]:
        """What PyTorch gives; results that are undefined are None."""
        result = resolve_op(self.op)(*self.args, **self.kwargs)
        return list(result) if isinstance(result, tuple | list) else [result]

    def open(self) -> Any:
        sections, features = encode_program(self.program, {}, {}, debug=False)
        data = b"".join(container.chunks(*container.lay_out(sections, features)))
        return open_native(data, flags=TRUST)
