"""What the golden files show: thirty-six kernels and five models, small enough to read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Case = tuple[Any, tuple[torch.Tensor, ...]]


def _of(fn: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> Case:
    class Kernel(nn.Module):
        def forward(self, *inputs: torch.Tensor) -> Any:
            return fn(*inputs)

    return Kernel(), tuple(torch.zeros(shape, dtype=dtype) for shape in shapes)


def _gathered(fn: Callable[..., Any], shape: tuple[int, ...], places: tuple[int, ...]) -> Case:
    module, (x,) = _of(fn, shape)
    return module, (x, torch.zeros(places, dtype=torch.int64))


ROWS = (64, 512)
KERNELS: dict[str, Callable[[], Case]] = {
    "add": lambda: _of(torch.add, ROWS, ROWS),
    "add_bfloat16": lambda: _of(torch.add, ROWS, ROWS, dtype=torch.bfloat16),
    "bias_relu": lambda: _of(lambda x, b: (x + b).relu(), ROWS, (512,)),
    "gelu": lambda: _of(F.gelu, ROWS),
    "silu_gate": lambda: _of(lambda x, y: F.silu(x) * y, ROWS, ROWS),
    "sin_float64": lambda: _of(torch.sin, ROWS, dtype=torch.float64),
    "compare_and_choose": lambda: _of(lambda x, y: torch.where(x > y, x, -y), ROWS, ROWS),
    "integers": lambda: _of(lambda x, y: x * 3 + y // 7, ROWS, ROWS, dtype=torch.int64),
    "odd_length": lambda: _of(lambda x: x.exp() - 1, (7, 1001)),
    "transpose": lambda: _of(lambda x: x.t().contiguous(), (256, 384)),
    "channels_last": lambda: _of(
        lambda x: x.contiguous(memory_format=torch.channels_last) * 2, (2, 32, 28, 28)
    ),
    "interleaved": lambda: _of(
        lambda x: torch.stack((x[..., 0::2] * 2, x[..., 1::2] + 1), -1).flatten(-2), (8, 16, 64)
    ),
    "cat": lambda: _of(lambda x, y: torch.cat((x, y), 1) + 1, (32, 100), (32, 156)),
    "pad": lambda: _of(lambda x: F.pad(x, (3, 5)) * 2, (32, 200)),
    "roll": lambda: _of(lambda x: x.roll(17, -1), ROWS),
    "sum_rows": lambda: _of(lambda x: x.sum(-1), ROWS),
    "sum_columns": lambda: _of(lambda x: x.sum(0), (300, 512)),
    "sum_all": lambda: _of(torch.sum, (1024, 512)),
    "mean_var": lambda: _of(lambda x: torch.var_mean(x, -1), ROWS),
    "argmax": lambda: _of(lambda x: x.argmax(-1), ROWS),
    "any_nan": lambda: _of(lambda x: x.isnan().any(-1), ROWS),
    "softmax": lambda: _of(lambda x: x.softmax(-1), ROWS),
    "log_softmax_dim0": lambda: _of(lambda x: x.log_softmax(0), (64, 128)),
    "layer_norm": lambda: _of(lambda x, w, b: F.layer_norm(x, (512,), w, b), ROWS, (512,), (512,)),
    "layer_norm_backward": lambda: _of(
        lambda g, x, mean, rstd, w: torch.ops.aten.native_layer_norm_backward(
            g, x, [48], mean, rstd, w, w, [True, True, True]
        ),
        *((1024, 48), (1024, 48), (1024, 1), (1024, 1), (48,)),
    ),
    "rms_norm": lambda: _of(
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w, ROWS, (512,)
    ),
    "group_norm": lambda: _of(lambda x: F.silu(F.group_norm(x, 8)), (2, 32, 14, 14)),
    "max_pool": lambda: _of(lambda x: F.max_pool2d(x, 3, 2, 1), (1, 16, 28, 28)),
    "cumsum": lambda: _of(lambda x: x.cumsum(-1), ROWS),
    "embedding": lambda: _gathered(lambda w, i: F.embedding(i, w) * 2, (1000, 64), (8, 16)),
    "product": lambda: _of(torch.mm, (64, 512), (512, 200)),
    "product_odd": lambda: _of(lambda x, w: x @ w.t(), (37, 100), (301, 100)),
    "product_deep": lambda: _of(torch.mm, (24, 5000), (5000, 96)),
    "linear_gelu": lambda: _of(
        lambda x, w, b, r: F.gelu(F.linear(x, w, b)) + r,
        (2, 64, 256),
        (512, 256),
        (512,),
        (2, 64, 512),
    ),
    "products_float64": lambda: _of(torch.bmm, (8, 20, 64), (8, 64, 20), dtype=torch.float64),
    "one_row_product": lambda: _of(lambda x, w: (x @ w).relu(), (1, 256), (256, 512)),
}


class Attention(nn.Module):
    """A block of a transformer with its attention written out."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(64), nn.LayerNorm(64)
        self.qkv, self.out = nn.Linear(64, 192), nn.Linear(64, 64)
        self.up, self.down = nn.Linear(64, 128), nn.Linear(128, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Attention of four heads, then a perceptron, each added to what it read."""
        q, k, v = (t.unflatten(-1, (4, 16)).mT for t in self.qkv(self.before(x)).chunk(3, -1))
        weights = (q.mT @ k / 4).softmax(-1)
        x = x + self.out((weights @ v.mT).mT.flatten(-2))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Residual(nn.Module):
    """Convolutions with batch norm, added to what they read."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.second = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.norms = nn.ModuleList([nn.BatchNorm2d(16), nn.BatchNorm2d(16)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """As in a residual network, with a pooled head."""
        y = self.norms[0](self.first(x)).relu()
        y = self.norms[1](self.second(y))
        return F.adaptive_avg_pool2d((x + y).relu(), 1).flatten(1)


class Recurrent(nn.Module):
    """Two steps of a gated recurrent cell."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(32, 48)

    def forward(self, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
        """The state after both."""
        return self.cell(x, self.cell(x, h))


class Recommender(nn.Module):
    """Embeddings, their products by pairs, a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(100, 16) for _ in range(3)])
        self.top = nn.Linear(9, 1)

    def forward(self, places: torch.Tensor) -> torch.Tensor:
        """A score a row."""
        found = torch.stack([t(places[:, n]) for n, t in enumerate(self.tables)], 1)
        return torch.sigmoid(self.top((found @ found.mT).flatten(1)))


def _perceptron() -> nn.Module:
    return nn.Sequential(
        nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)
    )


MODELS: dict[str, Callable[[], Case]] = {
    "perceptron": lambda: (_perceptron(), (torch.zeros(16, 32),)),
    "attention": lambda: (Attention(), (torch.zeros(2, 24, 64),)),
    "residual": lambda: (Residual().eval(), (torch.zeros(1, 16, 28, 28),)),
    "recurrent": lambda: (Recurrent(), (torch.zeros(4, 32), torch.zeros(4, 48))),
    "recommender": lambda: (Recommender(), (torch.zeros(8, 3, dtype=torch.int64),)),
}
