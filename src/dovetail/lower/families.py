"""Every family of rules: importing this fills ``RULES``, so whoever plans a segment has all."""

from __future__ import annotations

from dovetail.lower import (  # noqa: F401  # each registers its rules
    binary,
    functions,
    group_norm,
    indexing,
    norms,
    pointwise,
    pooling,
    pooling_adaptive,
    pooling_backward,
    products,
    reductions,
    reindex,
    scans,
    scatters,
    softmax,
)
