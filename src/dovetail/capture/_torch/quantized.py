"""PyTorch's quantizing operators, which its module defines when it is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch

NAMESPACE = "quantized_decomposed"
_MODULE = "torch.ao.quantization.fx._decomposed"


def define_quantized() -> None:
    """Define the operators in this process."""
    import torch.ao.quantization.fx._decomposed  # noqa: F401  # for its effect


def quantized_rules() -> Mapping[Any, Callable[..., Any]]:
    """What the operators are in terms of ATen's, where this process has them."""
    if _MODULE not in sys.modules:
        return {}
    defined, ops = sys.modules[_MODULE], getattr(torch.ops, NAMESPACE)
    names = ["quantize_per_tensor", "dequantize_per_tensor"]
    names += ["quantize_per_channel", "dequantize_per_channel"]
    rules = {getattr(ops, name).default: getattr(defined, name) for name in names}
    # The other looks at its input's values before it quantises them, which no graph can.
    rules[ops.dequantize_per_channel_group.default] = defined.dequantize_per_channel_group
    return rules
