"""Upsampling that autograd sees whole."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any


def whole_upsampling() -> Any:
    """Within the context, autograd sees upsampling as operators with gradients of their own.

    Otherwise PyTorch's Python dispatcher takes them apart before autograd, and the gradients add up
    at indices, one by one. The context is the thread's own, as that dispatcher is.
    """
    import torch
    from torch._dispatch.python import no_python_dispatcher
    from torch.overrides import TorchFunctionMode

    aten, interpolate = torch.ops.aten, torch.nn.functional.interpolate
    packets = [getattr(aten, name) for name in _UPSAMPLING]
    operators = {getattr(torch._C._nn, name, None) for name in _UPSAMPLING} - {None}
    operators |= {*packets, *(op for packet in packets for op in (packet.default, packet.vec))}

    class WholeUpsampling(TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            whole = func in operators or (func is interpolate and _stays_whole(kwargs))
            with no_python_dispatcher() if whole else contextlib.nullcontext():
                return func(*args, **kwargs)

    return WholeUpsampling()


_UPSAMPLING = (
    *(f"upsample_nearest{n}d" for n in (1, 2, 3)),
    *(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)),
    *("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"),
)
_WHOLE_MODES = frozenset({"nearest", "nearest-exact", "linear", "bilinear", "trilinear"})


def _stays_whole(options: Mapping[str, Any]) -> bool:
    """Whether ``interpolate`` calls an operator of ``_UPSAMPLING``; PyTorch passes on keywords."""
    return options.get("mode", "nearest") in _WHOLE_MODES and not options.get("antialias")
