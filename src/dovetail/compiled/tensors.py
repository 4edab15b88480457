"""Tensors that a graph holds, as bytes and back.

PyTorch compiles with its fake mode on, in which no tensor would have contents.
"""

from __future__ import annotations

from typing import Any

from dovetail.capture._torch.state import no_dispatch_modes
from dovetail.errors import InvalidCompiledGraph


def tensor_to_bytes(name: str, tensor: Any) -> tuple[dict[str, Any], bytes]:
    """What is known of a dense or expanded tensor, and its elements in row-major order."""
    import torch

    if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
        raise InvalidCompiledGraph(f"the graph holds {name}, which is no plain tensor")
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.is_quantized:
        raise InvalidCompiledGraph(f"the graph holds {name}, a {type(tensor).__name__}")
    with no_dispatch_modes():
        return _to_bytes(name, tensor)


def _to_bytes(name: str, tensor: Any) -> tuple[dict[str, Any], bytes]:
    import torch

    shape, strides = tuple(tensor.shape), tuple(tensor.stride())
    value = tensor.detach()
    for dim, stride in enumerate(strides):
        if stride == 0 and shape[dim] > 1:  # expanded: one element stands for all
            value = value.narrow(dim, 0, 1)
    if not _fills_memory(value.shape, value.stride()):
        raise InvalidCompiledGraph(f"the graph holds {name}, whose elements overlap in memory")
    dense = value.resolve_conj().resolve_neg().cpu().contiguous()
    contents = dense.reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
    desc = {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(shape),
        "strides": list(strides),
        "stored": list(value.shape),
        "device": str(tensor.device),
    }
    return desc, contents


def tensor_from_bytes(desc: dict[str, Any], contents: memoryview) -> Any:
    """The tensor that ``tensor_to_bytes`` wrote; ValueError where that cannot be."""
    import torch

    dtype = getattr(torch, str(desc["dtype"]), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype {desc['dtype']!r}")
    shape, strides, stored = (tuple(map(int, desc[k])) for k in ("shape", "strides", "stored"))
    count = 1
    for size in stored:
        if size < 0:
            raise ValueError(f"a size of {size}")
        count *= size
    if count * dtype.itemsize != len(contents):
        raise ValueError(f"{len(contents)} bytes for {stored} elements of {dtype}")
    same = [
        s == n or (n == 1 and step == 0) for s, n, step in zip(shape, stored, strides, strict=True)
    ]
    if not all(same) or not _fills_memory(stored, strides):
        raise ValueError(f"strides {strides} for a tensor of {shape}")
    with no_dispatch_modes():
        elements = torch.empty(count, dtype=dtype)
        if count:
            elements.view(torch.uint8).numpy()[:] = memoryview(contents)
        made = torch.empty_strided(stored, strides, dtype=dtype).copy_(elements.reshape(stored))
        return made.expand(shape).to(str(desc["device"]))


def _fills_memory(shape: Any, strides: Any) -> bool:
    """Whether each element has a place of its own, none of them further off than it must be."""
    expected = 1
    for stride, size in sorted((t, s) for t, s in zip(strides, shape, strict=True) if s != 1):
        if stride < expected:
            return False
        expected = stride * size
    count = 1
    for size in shape:
        count *= size
    return count == 0 or expected <= 2 * count
