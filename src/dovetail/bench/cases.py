"""Kernels and models: each a function of no arguments that gives a callable and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

F = nn.functional
Case = tuple[Callable[..., Any], tuple[Any, ...]]
SIZES = ((2048, 1024), (64, 256))
TRAINING_IMAGES = 4  # batch norm's statistics need more than one


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
    """A transformer block, with its norms before or after the parts."""

    def __init__(self, width: int, heads: int, *, causal: bool = False, post: bool = False) -> None:
        super().__init__()
        self.heads, self.causal, self.post = heads, causal, post
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Any, mask: Any) -> Any:
        """Attention of several heads."""
        b, n, d = x.shape
        qkv = self.qkv(x).view(b, n, 3, self.heads, d // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=self.causal)
        return self.out(y.transpose(1, 2).reshape(b, n, d))

    def feed(self, x: Any) -> Any:
        """The feed-forward part."""
        return self.down(F.gelu(self.up(x)))

    def forward(self, x: Any, mask: Any = None) -> Any:
        """Attention, then a feed-forward part."""
        if self.post:
            x = self.norm1(x + self.attend(x, mask))
            return self.norm2(x + self.feed(x))
        x = x + self.attend(self.norm1(x), mask)
        return x + self.feed(self.norm2(x))


class Language(nn.Module):  # type: ignore[misc]
    """Embeddings, blocks, a head: GPT with ``causal``, else BERT with a mask for padding."""

    def __init__(self, *, causal: bool, layers: int = 4, width: int = 256) -> None:
        super().__init__()
        self.causal = causal
        self.tokens, self.places = nn.Embedding(1000, width), nn.Embedding(128, width)
        blocks = [Block(width, 8, causal=causal, post=not causal) for _ in range(layers)]
        self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
        self.head = nn.Linear(width, 1000)

    def forward(self, tokens: Any, padding: Any = None) -> Any:
        """Scores of each token."""
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        mask = None if padding is None else padding[:, None, None, :]
        for block in self.blocks:
            x = block(x, mask)
        return self.head(self.norm(x))


def gpt() -> Case:
    """Four blocks at batch 2, 128 tokens."""
    return Language(causal=True).eval(), (torch.randint(0, 1000, (2, 128)),)


def bert() -> Case:
    """Four blocks with norms after the parts, and a mask."""
    padding = torch.arange(128)[None, :] < torch.tensor([[128], [100]])
    return Language(causal=False).eval(), (torch.randint(0, 1000, (2, 128)), padding)


class Vision(nn.Module):  # type: ignore[misc]
    """ViT-small: patches of 16, width 384, six heads."""

    def __init__(self, layers: int = 12, width: int = 384) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(torch.randn(1, 197, width) * 0.02)
        self.blocks = nn.Sequential(*(Block(width, 6) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, image: Any) -> Any:
        """Scores of an image."""
        x = self.patches(image).flatten(2).transpose(1, 2)
        x = torch.cat((self.first.expand(x.shape[0], -1, -1), x), 1) + self.places
        return self.head(self.norm(self.blocks(x))[:, 0])


class LlamaBlock(nn.Module):  # type: ignore[misc]
    """RMS norms, rotary embedding, heads that share keys, a gated feed-forward part."""

    def __init__(self, width: int, heads: int, shared: int, hidden: int) -> None:
        super().__init__()
        self.heads, self.shared, self.size = heads, shared, width // heads
        self.norm1, self.norm2 = nn.RMSNorm(width), nn.RMSNorm(width)
        self.qkv = nn.Linear(width, (heads + 2 * shared) * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, hidden, bias=False) for _ in range(2))
        self.down = nn.Linear(hidden, width, bias=False)

    def rotate(self, x: Any, cos: Any, sin: Any) -> Any:
        """A rotary embedding of every head."""
        one, two = x.chunk(2, -1)
        return torch.cat((one * cos - two * sin, two * cos + one * sin), -1)

    def forward(self, x: Any, cos: Any, sin: Any) -> Any:
        """Attention, then a feed-forward part."""
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).view(b, n, -1, self.size).transpose(1, 2)
        q, k, v = qkv.split((self.heads, self.shared, self.shared), 1)
        q, k = self.rotate(q, cos, sin), self.rotate(k, cos, sin)
        grouped = self.heads != self.shared
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=grouped)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        h = self.norm2(x)
        return x + self.down(F.silu(self.gate(h)) * self.up(h))


class Llama(nn.Module):  # type: ignore[misc]
    """Embeddings, blocks, a norm, a head."""

    def __init__(self, layers: int = 4, width: int = 384, tokens: int = 128) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(1000, width), nn.RMSNorm(width)
        blocks = (LlamaBlock(width, 6, 2, 1024) for _ in range(layers))
        self.blocks, self.head = nn.ModuleList(blocks), nn.Linear(width, 1000, bias=False)
        frequencies = 10000 ** (-torch.arange(0, 1, 2 * 6 / width))
        angles = torch.arange(tokens)[:, None] * frequencies
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, tokens: Any) -> Any:
        """Scores of each token."""
        x = self.tokens(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return self.head(self.norm(x))


def llama() -> Case:
    """Four blocks of 128 tokens."""
    return Llama().eval(), (torch.randint(0, 1000, (1, 128)),)


def vit() -> Case:
    """One image."""
    return Vision().eval(), (torch.randn(1, 3, 224, 224),)


class Residual(nn.Module):  # type: ignore[misc]
    """Two convolutions and a way around them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(outputs), nn.BatchNorm2d(outputs)
        shorter = nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        self.skip = nn.Sequential(*shorter) if stride > 1 else nn.Identity()

    def forward(self, x: Any) -> Any:
        """ReLU of the sum of both ways."""
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + self.skip(x))


def resnet() -> Case:
    """ResNet-18's shape at batch 1."""
    widths = [64, 64, 128, 128, 256, 256, 512, 512]
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64)]
    layers += [nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    before = 64
    for width in widths:
        layers.append(Residual(before, width, 1 if before == width else 2))
        before = width
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)


class Inverted(nn.Module):  # type: ignore[misc]
    """MobileNet's block: widen, filter each channel, narrow, with a way around."""

    def __init__(self, inputs: int, outputs: int, stride: int, factor: int = 4) -> None:
        super().__init__()
        hidden = inputs * factor
        self.around = inputs == outputs and stride == 1
        self.body = nn.Sequential(
            nn.Conv2d(inputs, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
            nn.Conv2d(hidden, hidden, 3, stride, 1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.Hardswish(),
            nn.Conv2d(hidden, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Any) -> Any:
        """The block, and the way around it where shapes allow."""
        return x + self.body(x) if self.around else self.body(x)


def mobilenet() -> Case:
    """Depthwise and pointwise convolutions at batch 1."""
    layers: list[nn.Module] = [nn.Conv2d(3, 16, 3, 2, 1, bias=False), nn.BatchNorm2d(16)]
    layers.append(nn.Hardswish())
    before = 16
    for outputs, stride in [(24, 2), (24, 1), (40, 2), (40, 1), (80, 2), (80, 1), (112, 1)]:
        layers.append(Inverted(before, outputs, stride))
        before = outputs
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)


class Next(nn.Module):  # type: ignore[misc]
    """ConvNeXt's block: each channel filtered by 7 by 7, a norm, a wide feed-forward part."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.filter = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: Any) -> Any:
        """The block, and the way around it."""
        y = self.norm(self.filter(x).permute(0, 2, 3, 1))
        y = self.scale * self.down(F.gelu(self.up(y)))
        return x + y.permute(0, 3, 1, 2)


class ChannelNorm(nn.LayerNorm):  # type: ignore[misc]
    """A layer norm of an image's channels."""

    def forward(self, x: Any) -> Any:
        """The same shape."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


def convnext() -> Case:
    """Four stages of two blocks, half as wide as the smallest that was published, at batch 1."""
    widths = (48, 96, 192, 384)
    layers: list[nn.Module] = [nn.Conv2d(3, widths[0], 4, 4), ChannelNorm(widths[0])]
    for n, width in enumerate(widths):
        if n:
            layers += [ChannelNorm(widths[n - 1]), nn.Conv2d(widths[n - 1], width, 2, 2)]
        layers += [Next(width), Next(width)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(384), nn.Linear(384, 1000)]
    return nn.Sequential(*layers).eval(), (torch.randn(1, 3, 224, 224),)


class UNet(nn.Module):  # type: ignore[misc]
    """Three times down by pooling, up by transposed convolutions, with ways across."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        widths = [width * 2**n for n in range(4)]
        self.down = nn.ModuleList(
            self.pair(i, o) for i, o in zip([3, *widths[:-1]], widths, strict=True)
        )
        around = list(zip(widths[:0:-1], widths[-2::-1], strict=True))
        self.widen = nn.ModuleList(nn.ConvTranspose2d(i, o, 2, 2) for i, o in around)
        self.up = nn.ModuleList(self.pair(i, o) for i, o in around)
        self.head = nn.Conv2d(width, 2, 1)

    @staticmethod
    def pair(inputs: int, outputs: int) -> nn.Module:
        """Two convolutions, each with its norm."""
        parts: list[nn.Module] = []
        for each in (inputs, outputs):
            parts += [nn.Conv2d(each, outputs, 3, padding=1, bias=False)]
            parts += [nn.BatchNorm2d(outputs), nn.ReLU()]
        return nn.Sequential(*parts)

    def forward(self, x: Any) -> Any:
        """Scores of each point."""
        kept: list[Any] = []
        for down in self.down:
            x = down(F.max_pool2d(x, 2) if kept else x)
            kept.append(x)
        kept.pop()
        for widen, up in zip(self.widen, self.up, strict=True):
            x = up(torch.cat((kept.pop(), widen(x)), 1))
        return self.head(x)


def unet() -> Case:
    """One image of 128 by 128."""
    return UNet().eval(), (torch.randn(1, 3, 128, 128),)


class FeedForward(nn.Module):  # type: ignore[misc]
    """A norm, two layers with a GELU between them, and the way around."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Any) -> Any:
        """The same shape."""
        return x + self.down(F.gelu(self.up(self.norm(x))))


def mlp_block() -> Case:
    """The feed-forward part of a transformer of width 768, 64 tokens."""
    return FeedForward(768).eval(), (torch.randn(64, 768),)


def mlp() -> Case:
    """Three layers at batch 1."""
    layers = (nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 16))
    return nn.Sequential(*layers).eval(), (torch.randn(1, 64),)


class Tagger(nn.Module):  # type: ignore[misc]
    """An embedding, a recurrent layer written out, a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(1000, 64), nn.LSTMCell(64, 128)
        self.head = nn.Linear(128, 10)

    def forward(self, words: Any) -> Any:
        """Scores of each word: time first."""
        x = self.words(words)
        h = c = x.new_zeros(x.shape[1], 128)
        states = []
        for step in x:
            h, c = self.cell(step, (h, c))
            states.append(h)
        return self.head(torch.stack(states))


def lstm() -> Case:
    """Sixteen words of four sentences."""
    return Tagger().eval(), (torch.randint(0, 1000, (16, 4)),)


class RecurrentTagger(nn.Module):  # type: ignore[misc]
    """An embedding, a recurrent layer in both directions, a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(1000, 128)
        self.layer = nn.LSTM(128, 192, batch_first=True, bidirectional=True)
        self.head = nn.Linear(384, 16)

    def forward(self, words: Any) -> Any:
        """Scores of each word."""
        states, _ = self.layer(self.words(words))
        return self.head(states)


def tagger() -> Case:
    """Thirty-two words of four sentences."""
    return RecurrentTagger().eval(), (torch.randint(0, 1000, (4, 32)),)


MODELS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "mlp_block": mlp_block,
    "gpt": gpt,
    "bert": bert,
    "llama": llama,
    "vit": vit,
    "resnet18": resnet,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "unet": unet,
    "lstm": lstm,
    "tagger": tagger,
}


def _several(given: Any) -> Any:
    return torch.randn(TRAINING_IMAGES, *given.shape[1:]) if given.dim() == 4 else given


def names(which: str) -> list[str]:
    """The cases of a group: "kernels", "models" or "all"."""
    kernels = [f"{name}-{n}x{m}" for n, m in SIZES for name in KERNELS]
    return {"kernels": kernels, "models": [*MODELS], "all": [*kernels, *MODELS]}[which]


def make(name: str, *, trains: bool = False) -> Case:
    """A case by name; a model that trains takes TRAINING_IMAGES where it takes one."""
    torch.manual_seed(0)
    if name in MODELS:
        model, inputs = MODELS[name]()
        if not trains or not isinstance(model, nn.Module):
            return model, inputs
        return model.train(), tuple(map(_several, inputs))
    kernel, _, size = name.rpartition("-")
    n, m = map(int, size.split("x"))
    return KERNELS[kernel](n, m)
