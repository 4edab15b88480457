"""The memory plan over some models: the arena, what it would be without sharing, and the bound.

The bound is the largest set of temporaries alive at one time; no plan can be smaller.
"""

from __future__ import annotations

import torch
from torch import nn

import dovetail
from dovetail.artifact.save import pack
from dovetail.ir.memory import plan_memory


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(y.transpose(1, 2).reshape(b, n, d))


class Block(nn.Module):
    """A transformer block."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        x = x + self.attention(self.one(x))
        return x + self.mlp(self.two(x))


class Mixer(nn.Module):
    """Branches of unlike sizes that live side by side."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width // n) for n in (1, 2, 3, 4, 6))
        self.back = nn.ModuleList(nn.Linear(width // n, width) for n in (1, 2, 3, 4, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # noqa: D102
        parts = [torch.relu(layer(x)) for layer in self.layers]
        for part, layer in zip(parts, self.back, strict=True):
            x = x + torch.tanh(layer(part))
        return x


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    return {
        "transformer, 4 blocks, d=256": (
            nn.Sequential(*[Block(256, 8) for _ in range(4)]),
            torch.randn(2, 64, 256),
        ),
        "mlp, 8 layers": (
            nn.Sequential(*[m for _ in range(8) for m in (nn.Linear(512, 512), nn.SiLU())]),
            torch.randn(32, 512),
        ),
        "mixer, 6 blocks": (nn.Sequential(*[Mixer(240) for _ in range(6)]), torch.randn(16, 240)),
    }


def main() -> None:
    print(f"{'model':<32}{'arena':>12}{'sum':>14}{'bound':>12}{'over bound':>12}")
    for name, (model, x) in models().items():
        artifact = dovetail.export(model.eval(), (x,), backend="portable")
        plan = plan_memory(pack(artifact).program)
        over = plan.peak / plan.bound - 1
        print(f"{name:<32}{plan.peak:>12,}{plan.total:>14,}{plan.bound:>12,}{over:>11.1%}")


if __name__ == "__main__":
    main()
