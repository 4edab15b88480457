"""Programs of many kinds for ``codegen_time.py --wide``: what makes kernels large, and op_db."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional

Case = tuple[str, Any, tuple[Any, ...], bool]  # name, function, inputs, whether backward as well

DTYPES = ("float32", "float64", "bfloat16")
SHAPES = ((61, 250), (64, 1024), (3, 7))
IMAGES = ((2, 4, 40, 40), (2, 4, 64, 64))
FUNCTIONS = ("sin", "cos", "tan", "erf", "tanh", "sigmoid", "exp", "log1p", "atan", "erfc", "sinh")


def chain(x: Any) -> Any:
    """Every function after the other."""
    for name in FUNCTIONS:
        x = getattr(torch, name)(x)
    return x


def long_chain(x: Any) -> Any:
    """The same, three times over."""
    for _ in range(3):
        x = chain(x * 0.5)
    return x


def cheap_chain(x: Any) -> Any:
    """Many small steps."""
    for _ in range(60):
        x = (x * 1.01 + 0.1).relu() - x.sigmoid()
    return x


PROGRAMS = {
    "sin_cos": lambda x: x.sin() * x.cos(),
    "chain": chain,
    "long_chain": long_chain,
    "cheap_chain": cheap_chain,
    "many_results": lambda x: tuple(getattr(torch, name)(x) for name in FUNCTIONS),
    "softmax_of_sin": lambda x: (x.sin().softmax(-1) * x.cos()).sum(-1),
    "norm_of_sin": lambda x: functional.layer_norm(x.sin().exp(), x.shape[-1:]).tanh(),
    "logsumexp": lambda x: x.logsumexp(-1),
    "powers": lambda x: x.abs() ** 1.7 + x.abs() ** x,
    "mish": functional.mish,
    "columns": lambda x: ((x.sin() * x.exp()).sum(0), x.cos().std(0), x.erf().amax(0)),
}
POOLS = {
    "avg_pool5": lambda x: functional.avg_pool2d(x, 5, 1, 2),
    "avg_pool3": lambda x: functional.avg_pool2d(x, 3, 2, 1),
    "max_pool5": lambda x: functional.max_pool2d(x, 5, 1, 2),
    "max_pool3": lambda x: functional.max_pool2d(x, 3, 2, 1),
    "adaptive": lambda x: functional.adaptive_avg_pool2d(x, 7),
    "bilinear": lambda x: functional.interpolate(x, scale_factor=2.0, mode="bilinear"),
    "bicubic": lambda x: functional.interpolate(x, scale_factor=2.0, mode="bicubic"),
    "nearest": lambda x: functional.interpolate(x, size=(50, 61)),
    "reflected": lambda x: functional.pad(x, (3, 3, 3, 3), mode="reflect").sin(),
    "response_norm": lambda x: functional.local_response_norm(x, 5),
    "group_norm": lambda x: functional.silu(functional.group_norm(x, 2)),
    "batch_norm": lambda x: functional.batch_norm(x, None, None, training=True),
}


def programs() -> Iterator[Case]:
    """The tables above, in each type and size; forward and backward."""
    for table, shapes in ((PROGRAMS, SHAPES), (POOLS, IMAGES)):
        for name, fn in table.items():
            for dtype in DTYPES:
                for shape in shapes:
                    x = torch.rand(shape, dtype=getattr(torch, dtype))
                    yield f"{name} {dtype} {shape}", fn, (x,), dtype != "bfloat16"


def op_db() -> Iterator[Case]:
    """The first sample of every operator that PyTorch tests itself with."""
    from torch.testing._internal.common_methods_invocations import op_db as operators

    for op in operators:
        for dtype in DTYPES:
            kind = getattr(torch, dtype)
            if kind in op.supported_dtypes("cpu") and "jiterator" not in op.name:
                sample = next(iter(op.sample_inputs("cpu", kind)), None)
                if sample is not None:
                    given = (sample.input, *sample.args)
                    fn = _with(op.op, sample.kwargs)
                    yield f"{op.formatted_name} {dtype}", fn, given, False


def _with(fn: Any, keywords: dict[str, Any]) -> Any:
    return lambda *args: fn(*args, **keywords)
