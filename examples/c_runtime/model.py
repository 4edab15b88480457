"""The model that the C program runs: ``dovetail compile model:mlp -o mlp.dvt``."""

from __future__ import annotations

import torch
from torch import nn


def mlp() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return model.eval(), (torch.randn(2, 8),)


def accelerated() -> tuple[nn.Module, tuple[torch.Tensor, ...]]:
    """One whose operations are all kernels of examples/accel_c."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4))
    return model.eval(), (torch.randn(2, 8),)
