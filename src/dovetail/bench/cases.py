"""Kernels and models: each a function of no arguments that gives a callable and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

F = nn.functional
Case = tuple[Callable[..., Any], tuple[Any, ...]]
SIZES = ((2048, 1024), (64, 256))


def _affine(fn: Callable[[Any], Any]) -> Callable[[int, int], Case]:
    def make(n: int, m: int) -> Case:
        return lambda x, w, b: fn(x * w + b), (torch.randn(n, m), torch.randn(m), torch.randn(m))

    return make


def softmax(n: int, m: int) -> Case:
    """Rows of a matrix."""
    return lambda x: F.softmax(x * 2, -1), (torch.randn(n, m),)


def layer_norm_residual(n: int, m: int) -> Case:
    """A transformer's residual sum and norm."""

    def fn(x: Any, r: Any, w: Any, b: Any) -> Any:
        return F.layer_norm(x + r, (m,), w, b)

    return fn, (torch.randn(n, m), torch.randn(n, m), torch.randn(m), torch.randn(m))


def rms_norm_rotary(n: int, m: int) -> Case:
    """RMS norm, then a rotary embedding."""

    def fn(x: Any, w: Any, cos: Any, sin: Any) -> Any:
        y = x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * w
        a, b = y.chunk(2, -1)
        return y * cos + torch.cat((-b, a), -1) * sin

    return fn, (torch.randn(n, m), torch.randn(m), torch.randn(n, m), torch.randn(n, m))


def cross_entropy(n: int, m: int) -> Case:
    """A mean over rows."""
    return lambda x, t: F.cross_entropy(x, t), (torch.randn(n, m), torch.randint(0, m, (n,)))


def group_norm_silu(n: int, m: int) -> Case:
    """As in a diffusion model."""
    x = torch.randn(max(n // 64, 1), 64, m)
    return lambda x, w, b: F.silu(F.group_norm(x, 8, w, b)), (x, torch.randn(64), torch.randn(64))


def chain(n: int, m: int) -> Case:
    """Twelve elementwise operations."""

    def fn(x: Any, y: Any) -> Any:
        z = (x * 1.1 + y).sigmoid() * x
        z = (z - 0.1).abs() + y * 0.3
        return torch.where(z > 0.5, z.tanh(), z * z).clamp(-1, 1) - x

    return fn, (torch.randn(n, m), torch.randn(n, m))


KERNELS: dict[str, Callable[[int, int], Case]] = {
    "gelu": _affine(F.gelu),
    "gelu_tanh": _affine(lambda x: F.gelu(x, approximate="tanh")),
    "silu": _affine(F.silu),
    "softmax": softmax,
    "layer_norm_residual": layer_norm_residual,
    "rms_norm_rotary": rms_norm_rotary,
    "cross_entropy": cross_entropy,
    "group_norm_silu": group_norm_silu,
    "chain": chain,
}


class Block(nn.Module):  # type: ignore[misc]
    """A transformer block with pre-norms."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """Attention, then a feed-forward part."""
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


def _transformer(causal: bool, layers: int = 4, width: int = 256) -> Case:
    blocks = nn.Sequential(*(Block(width, 8, causal) for _ in range(layers)), nn.LayerNorm(width))
    return blocks.eval(), (torch.randn(2, 128, width),)


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        """ReLU of the sum of both ways."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def resnet() -> Case:
    """ResNet-18's shape at batch 1."""
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width in widths:
        layers.append(Residual(before, width, 1 if before == width else 2))
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)


def mobilenet() -> Case:
    """Depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for inputs, outputs, stride in [(32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)]:
        layers += [nn.Conv2d(inputs, inputs, 3, stride, 1, groups=inputs), nn.BatchNorm2d(inputs)]
        layers += [nn.ReLU6(), nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs), nn.ReLU6()]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 100)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 128, 128),)


def mlp() -> Case:
    """Three layers at batch 1."""
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    return nn.Sequential(*layers).eval(), (torch.randn(1, 64),)


def lstm() -> Case:
    """A tagger: one recurrent layer and a linear one."""

    class Tagger(nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = nn.LSTMCell(64, 128), nn.Linear(128, 10)

        def forward(self, x: Any) -> Any:
            h = c = x.new_zeros(x.shape[1], 128)
            tags = []
            for step in x:
                h, c = self.cell(step, (h, c))
                tags.append(self.head(h))
            return torch.stack(tags)

    return Tagger().eval(), (torch.randn(16, 4, 64),)


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "gpt": lambda: _transformer(causal=True),
    "bert": lambda: _transformer(causal=False),
    "vit": lambda: _transformer(causal=False, layers=6, width=384),
    "resnet18": resnet,
    "mobilenet": mobilenet,
    "lstm": lstm,
}


def names(which: str) -> list[str]:
    """The cases of a group: "kernels", "models" or "all"."""
    kernels = [f"{name}-{n}x{m}" for n, m in SIZES for name in KERNELS]
    return {"kernels": kernels, "models": [*MODELS], "all": [*kernels, *MODELS]}[which]


def make(name: str) -> Case:
    """A case by name."""
    torch.manual_seed(0)
    if name in MODELS:
        return MODELS[name]()
    kernel, _, size = name.rpartition("-")
    n, m = map(int, size.split("x"))
    return KERNELS[kernel](n, m)
