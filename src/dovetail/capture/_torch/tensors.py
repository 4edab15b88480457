"""Tensors: versions, storages, classes and flags; and containers of them."""

from __future__ import annotations

from typing import Any


def tensor_version(tensor: Any) -> int:
    """How often a tensor was written in place."""
    return int(tensor._version)


def own_tensors(module: Any) -> dict[str, Any]:
    """A module's own parameters and buffers by name, without those of its submodules."""
    held = {**module._parameters, **module._buffers}
    return {name: tensor for name, tensor in held.items() if tensor is not None}


def storage_id(tensor: Any) -> int:
    """A number that tensors share as long as they share memory."""
    return int(tensor.untyped_storage()._cdata)


def is_plain_tensor(value: Any) -> bool:
    """Whether a tensor, real or fake, is of no class of its own."""
    import torch
    from torch._subclasses.fake_tensor import FakeTensor

    return type(value) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer, FakeTensor)


def is_fake(value: Any) -> bool:
    """Whether a tensor has no contents."""
    from torch._subclasses.fake_tensor import FakeTensor

    return isinstance(value, FakeTensor) or bool(value.is_meta)


def is_view(tensor: Any) -> bool:
    """Whether autograd knows a tensor as a view of another."""
    return bool(tensor._is_view())


def tensor_flags(tensor: Any) -> str:
    """What else AOTAutograd looks at in an input, a word each."""
    flags = (
        ("requires_grad", tensor.requires_grad),
        ("leaf", tensor.requires_grad and tensor.is_leaf),
        ("view", tensor.requires_grad and tensor._is_view()),
        ("conj", tensor.is_conj()),
        ("neg", tensor.is_neg()),
        ("inference", tensor.is_inference()),
    )
    return " ".join(name for name, holds in flags if holds)


def pytree() -> Any:
    """Flattening and unflattening of nested containers."""
    from torch.utils import _pytree

    return _pytree
