"""Kernels and models at the sizes of a GPU, each in a type that its name ends with.

A case gives a callable and its inputs; one that trains is called with gradients on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from dovetail.bench import cases

F = nn.functional
Case = tuple[Callable[..., Any], tuple[Any, ...]]
DTYPES = ("bfloat16", "float32")
COUNT = 128 << 20  # elements of a matrix of rows
ROWS = (257, 1000, 4096, 8192, 32768, 131072)


def _rows(length: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(COUNT // length, length, device="cuda", dtype=dtype)


def _softmax(length: int) -> Callable[[torch.dtype], Case]:
    return lambda dtype: (lambda x: x.softmax(-1), (_rows(length, dtype),))


def chain(dtype: torch.dtype) -> Case:
    """Functions of 64 M elements."""
    x = torch.randn(64 << 20, device="cuda", dtype=dtype)
    return lambda x, y: F.gelu(x * 2 + y) * torch.sigmoid(x) + y.tanh(), (x, x.flip(0))


def gelu(dtype: torch.dtype) -> Case:
    """One function of 128 M elements."""
    return F.gelu, (_rows(4096, dtype),)


def layer_norm(dtype: torch.dtype) -> Case:
    """A transformer's residual sum and norm, both of which are wanted."""
    x = torch.randn(16384, 4096, device="cuda", dtype=dtype)
    w = torch.randn(4096, device="cuda", dtype=dtype)

    def fn(x: Any, r: Any, w: Any, b: Any) -> Any:
        h = x + r
        return F.layer_norm(h, (4096,), w, b), h

    return fn, (x, x.flip(0), w, w.flip(0))


def rms_norm_rotary(dtype: torch.dtype) -> Case:
    """RMS norm, then a rotary embedding."""
    x = torch.randn(32768, 2048, device="cuda", dtype=dtype)
    angles = torch.randn(32768, 1024, device="cuda", dtype=dtype)

    def fn(x: Any, w: Any, a: Any) -> Any:
        h = x.float()
        h = (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w
        one, two = h.chunk(2, -1)
        c, s = a.cos(), a.sin()
        return torch.cat((one * c - two * s, two * c + one * s), -1)

    return fn, (x, torch.randn(2048, device="cuda", dtype=dtype), angles)


def cross_entropy(dtype: torch.dtype) -> Case:
    """A mean over rows of 32,768."""
    x = torch.randn(8192, 32768, device="cuda", dtype=dtype)
    return F.cross_entropy, (x, torch.randint(32768, (8192,), device="cuda"))


def group_norm(dtype: torch.dtype) -> Case:
    """As in a diffusion model."""
    x = torch.randn(64, 320, 64, 64, device="cuda", dtype=dtype)
    w = torch.randn(320, device="cuda", dtype=dtype)
    return lambda x, w, b: F.silu(F.group_norm(x, 32, w, b)), (x, w, w.flip(0))


def softmax_backward(dtype: torch.dtype) -> Case:
    """The gradient of a softmax."""
    y = _rows(4096, dtype).softmax(-1)
    backward = torch.ops.aten._softmax_backward_data  # noqa: SLF001
    return lambda g, y: backward(g, y, -1, y.dtype), (_rows(4096, dtype), y)


def layer_norm_backward(dtype: torch.dtype) -> Case:
    """The gradients of a layer norm."""
    x = torch.randn(16384, 4096, device="cuda", dtype=dtype)
    w = torch.randn(4096, device="cuda", dtype=dtype)
    _, mean, rstd = torch.ops.aten.native_layer_norm(x, [4096], w, w, 1e-5)
    backward = torch.ops.aten.native_layer_norm_backward

    def fn(g: Any, x: Any, mean: Any, rstd: Any, w: Any) -> Any:
        return backward(g, x, [4096], mean, rstd, w, w, [True, True, True])

    return fn, (x.flip(0), x, mean, rstd, w)


def rms_norm_backward(dtype: torch.dtype) -> Case:
    """The gradients of an RMS norm, as formulas."""
    x = torch.randn(16384, 4096, device="cuda", dtype=dtype)
    w = torch.randn(4096, device="cuda", dtype=dtype)

    def fn(g: Any, x: Any, w: Any) -> Any:
        h, given = x.float(), g.float()
        scale = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        normal, inner = h * scale, given * w.float()
        mean = (inner * normal).mean(-1, keepdim=True)
        return ((inner - normal * mean) * scale).to(x.dtype), (given * normal).sum(0).to(w.dtype)

    return fn, (x.flip(0), x, w)


def column_sum(dtype: torch.dtype) -> Case:
    """The gradient of a bias."""
    return lambda x: x.sum(0), (_rows(4096, dtype),)


KERNELS: dict[str, Callable[[torch.dtype], Case]] = {
    "chain": chain,
    "gelu": gelu,
    **{f"softmax_{n}": _softmax(n) for n in ROWS},
    "layer_norm_residual": layer_norm,
    "rms_norm_rotary": rms_norm_rotary,
    "cross_entropy": cross_entropy,
    "group_norm_silu": group_norm,
    "softmax_backward": softmax_backward,
    "layer_norm_backward": layer_norm_backward,
    "rms_norm_backward": rms_norm_backward,
    "column_sum": column_sum,
}


def perceptron(dtype: torch.dtype) -> Case:
    """Three layers of width 32."""
    layers = [nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)]
    return _on_gpu(nn.Sequential(*layers), dtype), (_like(64, 32, dtype=dtype),)


def gpt(dtype: torch.dtype) -> Case:
    """Twelve blocks of width 768, 4 times 128 tokens."""
    model = cases.Language(causal=True, layers=12, width=768)
    return _on_gpu(model, dtype), (torch.randint(0, 1000, (32, 128), device="cuda"),)


def bert(dtype: torch.dtype) -> Case:
    """The same with norms after the parts, and a mask."""
    model = cases.Language(causal=False, layers=12, width=768)
    lengths = torch.randint(64, 129, (32, 1), device="cuda")
    padding = torch.arange(128, device="cuda")[None, :] < lengths
    return _on_gpu(model, dtype), (torch.randint(0, 1000, (32, 128), device="cuda"), padding)


def vit(dtype: torch.dtype) -> Case:
    """ViT-small at batch 64."""
    return _on_gpu(cases.Vision(), dtype), (_like(64, 3, 224, 224, dtype=dtype),)


def resnet(dtype: torch.dtype) -> Case:
    """ResNet-18's shape at batch 128."""
    model, _ = cases.resnet()
    return _on_gpu(model, dtype), (_like(128, 3, 224, 224, dtype=dtype),)


def llama(dtype: torch.dtype) -> Case:
    """One block of width 2,048, 8 times 1,024 tokens."""
    angles = torch.randn(1024, 64, device="cuda")
    given = (_like(8, 1024, 2048, dtype=dtype), angles.cos().to(dtype), angles.sin().to(dtype))
    return _on_gpu(cases.LlamaBlock(2048, 16, 16, 5504), dtype), given


class Recommender(nn.Module):  # type: ignore[misc]
    """Like DLRM: embeddings and dense features, their products, a perceptron."""

    def __init__(self, tables: int = 8, width: int = 64) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(10000, width) for _ in range(tables))
        self.dense = nn.Sequential(nn.Linear(13, 256), nn.ReLU(), nn.Linear(256, width), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        layers = nn.Linear(width + pairs, 256), nn.ReLU(), nn.Linear(256, 1), nn.Sigmoid()
        self.top = nn.Sequential(*layers)
        below = torch.tril_indices(tables + 1, tables + 1, -1)
        self.register_buffer("below", below)

    def forward(self, features: Any, words: Any) -> Any:
        """A score for each row."""
        dense = self.dense(features)
        found = [table(words[:, n]) for n, table in enumerate(self.tables)]
        x = torch.stack([dense, *found], 1)
        products = torch.bmm(x, x.transpose(1, 2))[:, self.below[0], self.below[1]]
        return self.top(torch.cat((dense, products), 1))


def dlrm(dtype: torch.dtype) -> Case:
    """A batch of 8,192."""
    words = torch.randint(0, 10000, (8192, 8), device="cuda")
    return _on_gpu(Recommender(), dtype), (_like(8192, 13, dtype=dtype), words)


def _on_gpu(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    return model.eval().to("cuda", dtype)


def _like(*sizes: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*sizes, device="cuda", dtype=dtype)


MODELS: dict[str, Callable[[torch.dtype], Case]] = {
    "mlp": perceptron,
    "gpt": gpt,
    "bert": bert,
    "vit": vit,
    "resnet18": resnet,
    "llama_block": llama,
    "dlrm": dlrm,
}
TRAINED = ("gpt", "resnet18")  # steps of these are measured too
TRAINING = "_training"


def names(which: str) -> list[str]:
    """The cases of a group: "kernels", "models" or "all"."""
    models = [*MODELS, *(f"{name}{TRAINING}" for name in TRAINED)]
    found = {"kernels": [*KERNELS], "models": models, "all": [*KERNELS, *models]}[which]
    return [f"{name}-{dtype}" for dtype in DTYPES for name in found]


def is_kernel(name: str) -> bool:
    """Whether a case is one of few launches, whose time on the host says nothing."""
    return name.rpartition("-")[0] in KERNELS


def make(name: str) -> Case:
    """A case by name."""
    torch.manual_seed(0)
    name, _, dtype = name.rpartition("-")
    kind = getattr(torch, dtype)
    if name in KERNELS:
        return KERNELS[name](kind)
    fn, inputs = MODELS[name.removesuffix(TRAINING)](kind)
    if name.endswith(TRAINING):
        assert isinstance(fn, nn.Module)
        fn.train()
    return fn, inputs
