"""The device of device.cpp, as ``torch.vault``, and a backend whose kernels run on its tensors.

make PYTHON=python OUTPUT=libvault.so
>>> import vault
>>> vault.load("./libvault.so")
>>> torch.compile(model.to("vault"), backend="vault_accel")(torch.ones(2, 4, device="vault"))
"""

from __future__ import annotations

import types
from pathlib import Path

import torch

import dovetail

Tensor = torch.Tensor
NAME = "vault"
DEVICES = 2
# What the device counts: copies from and to the host, their bytes, calls of its own kernels, and
# calls of PyTorch's operators.
COUNTERS = ("to_device", "to_host", "bytes_in", "bytes_out", "kernels", "operators")


def load(library: str | Path) -> None:
    """Load the extension, tell PyTorch the device's name, and make the backend its default."""
    torch.ops.load_library(str(library))
    torch.utils.rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, _module())  # noqa: SLF001  # PyTorch has no other way
    torch.utils.generate_methods_for_privateuse1_backend()
    dovetail.set_default_backend("vault_accel", device=NAME)


def counters() -> dict[str, int]:
    """What the device counted so far."""
    return dict(zip(COUNTERS, torch.ops.vault.counters(), strict=True))


def _module() -> types.ModuleType:
    """What PyTorch asks ``torch.vault`` for."""
    module = types.ModuleType(f"torch.{NAME}")
    answers = {
        "is_available": True,
        "is_initialized": True,
        "_is_in_bad_fork": False,
        "device_count": DEVICES,
        "current_device": 0,
        "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
        "synchronize": None,
        "manual_seed_all": None,
    }
    for name, answer in answers.items():
        setattr(module, name, lambda *_, answer=answer: answer)
    return module


@dovetail.register_backend
class VaultAccel(dovetail.KernelBackend):
    """Kernels in C++ for what a small network takes; PyTorch runs the rest, on the same device."""

    name = "vault_accel"
    device = NAME

    @dovetail.kernel("aten.mm.default", dtypes={"float32"})
    def mm(a: Tensor, b: Tensor) -> Tensor:  # noqa: N805
        """A product of matrices."""
        return torch.ops.vault.mm(a, b)

    @dovetail.kernel(
        "aten.addmm.default", dtypes={"float32"}, attributes={"alpha": {1}, "beta": {1}}
    )
    def addmm(bias: Tensor, a: Tensor, b: Tensor) -> Tensor:  # noqa: N805
        """A linear layer."""
        return torch.ops.vault.pointwise("+", torch.ops.vault.mm(a, b), bias)

    @dovetail.kernel("aten.relu.default", dtypes={"float32"})
    def relu(x: Tensor) -> Tensor:  # noqa: N805
        """The positive part."""
        return torch.ops.vault.pointwise("r", x, x)

    @dovetail.kernel(
        "aten.threshold_backward.default", dtypes={"float32"}, attributes={"threshold": {0}}
    )
    def relu_backward(gradient: Tensor, x: Tensor, threshold: float) -> Tensor:  # noqa: N805
        """The gradient of ``relu``."""
        return torch.ops.vault.pointwise("b", gradient, x)
