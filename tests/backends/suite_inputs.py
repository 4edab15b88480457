"""Inputs and weights for the differential suite, the same each time."""

from __future__ import annotations

import math

import torch

INF, NAN = math.inf, math.nan


def t(*shape, dtype=torch.float32, seed=0):
    """Normally distributed numbers, small integers, or coin tosses."""
    made = torch.Generator().manual_seed(1000 * seed + sum(shape) + len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, generator=made, dtype=dtype)
    if dtype == torch.bool:
        return torch.rand(*shape, generator=made) > 0.5
    return torch.randint(-5, 6, shape, generator=made, dtype=dtype)


def seeded(make, seed=0):
    """A module with weights that are the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make()
