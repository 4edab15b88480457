"""Models that the artifact tests export, each with its inputs; small, and of every kind."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.models import GPT, ResNet


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(16, 32), nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, x):
        return torch.softmax(self.last(F.gelu(self.norm(self.first(x)))), -1)


class Block(nn.Module):
    """A transformer block with its attention written out, causal."""

    def __init__(self, width=32, heads=4):
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(self.one(x)).split(c, dim=2)
        q, k, v = (z.view(b, t, self.heads, c // self.heads).transpose(1, 2) for z in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, t, c))
        return x + self.down(F.silu(self.up(self.two(x))))


class Language(nn.Module):
    def __init__(self, vocabulary=64, width=32, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(128, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.norm, self.two = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.one(x))), 2)
        return self.head(F.relu(self.two(x)).mean((2, 3)))


class Counter(nn.Module):
    """Keeps state from call to call."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(4))
        self.register_buffer("scale", torch.full((4,), 2.0))

    def forward(self, x):
        self.total.add_(x.sum(0))
        return self.total * self.scale


class Writes(nn.Module):
    """Writes to its input."""

    def forward(self, x, y):
        x.mul_(2.0)
        return x + y


class Trees(nn.Module):
    def forward(self, pair, *, more):
        first, second = pair
        return {"sum": first + second, "list": [first * more["factor"], second - 1]}, first.t()


class Zoo(nn.Module):
    """One of nearly every kernel."""

    def forward(self, x, n):
        y = torch.exp(-x.abs()) + torch.tanh(x) * torch.sigmoid(x) - torch.erf(x) / 3
        y = torch.where(x > 0.5, y, x.clamp(-1, 1)) + torch.maximum(x, y).sqrt().nan_to_num(1.0)
        z = torch.cat([y, x[:, 1:], x.flip(1)], dim=1)
        stats = torch.stack([z.sum(1), z.mean(1), z.amax(1), z.amin(1), z.var(1)], 1)
        chosen = torch.index_select(z, 0, n)
        mask = (n > 0) & ~(n == 2) | (n.float() < 1.5)
        return stats.log_softmax(0), chosen.to(torch.float64), mask, (n * 3 - 1).to(torch.int32)


class Views(nn.Module):
    def forward(self, x):
        parts = x.split(2, dim=1)
        y = parts[0].permute(2, 0, 1)[1:, :, ::2].unsqueeze(0).expand(3, -1, -1, -1)
        return y, x.transpose(0, 2)[0], x.reshape(-1)[3:], x.select(1, 2).contiguous(), x


class Empty(nn.Module):
    """Tensors of no elements, and of no dimensions."""

    def forward(self, x):
        return x.sum(), x[:, :0] + 1, x[:0].sum(0), x.mean() * torch.ones(())


class Doubles(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8).double()

    def forward(self, x):
        return F.gelu(self.layer(x), approximate="tanh").softmax(1) @ x.t()


class Halves(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8).bfloat16()

    def forward(self, x):
        return self.layer(x.bfloat16()).float() + x.half().float()

    def exact(self, x):
        """The same with a product that is not rounded, which is our kernel's or PyTorch's."""
        weight, bias = self.layer.weight.double(), self.layer.bias.double()
        return nn.functional.linear(x.bfloat16().double(), weight, bias) + x.half()


@dataclass
class Case:
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = field(default_factory=dict)
    dynamic: Any = None
    others: list[tuple[Any, ...]] = field(default_factory=list)  # further inputs to call with


def cases() -> dict[str, Case]:
    """Every model, by name; the same numbers in every process."""
    torch.manual_seed(0)
    batch = {0: torch.export.Dim("batch", min=1, max=64)}
    x = torch.randn(4, 6)
    return {
        "mlp": Case(MLP().eval(), (torch.randn(3, 16),)),
        "mlp_dynamic": Case(
            MLP().eval(), (torch.randn(3, 16),), dynamic=(batch,),
            others=[(torch.randn(n, 16),) for n in (1, 2, 7, 64, 3)],
        ),
        "block": Case(Block().eval(), (torch.randn(2, 5, 32),)),
        "language": Case(Language().eval(), (torch.randint(0, 64, (2, 9)),)),
        "language_dynamic": Case(
            Language().eval(), (torch.randint(0, 64, (2, 9)),),
            dynamic=({0: torch.export.Dim("b", max=16), 1: torch.export.Dim("t", min=2, max=100)},),
            others=[(torch.randint(0, 64, shape),) for shape in ((1, 2), (5, 33), (16, 7))],
        ),
        "convolutions": Case(Convolutions().eval(), (torch.randn(2, 3, 16, 16),)),
        "counter": Case(Counter(), (torch.randn(3, 4),), others=[(torch.ones(3, 4),)] * 2),
        "writes": Case(Writes(), (torch.randn(3, 4), torch.randn(3, 4))),
        "trees": Case(Trees(), ((x, x + 1),), {"more": {"factor": torch.randn(4, 6)}}),
        "zoo": Case(Zoo(), (x, torch.tensor([0, 3, 2, 1]))),
        "views": Case(Views(), (torch.randn(4, 6, 5),)),
        "empty": Case(Empty(), (x,)),
        "doubles": Case(Doubles().eval(), (torch.randn(8, 8, dtype=torch.float64),)),
        "gpt": Case(GPT().eval(), (torch.randint(0, 50, (2, 8)),)),
        "resnet": Case(ResNet().eval(), (torch.randn(2, 3, 16, 16),)),
        "halves": Case(Halves().eval(), (torch.randn(3, 8),)),
    }  # fmt: skip


@functools.cache
def artifact_of(name: str, backend: str) -> Any:
    """A model compiled, once a process. Tests that call it do so after ``package_of``."""
    import dovetail

    case = cases()[name]
    return dovetail.export(
        case.model,
        copy.deepcopy(case.args),
        case.kwargs,
        dynamic_shapes=case.dynamic,
        backend=backend,
        options={"debug": False},
    )


@functools.cache
def package_of(name: str, backend: str) -> Any:
    """A model as a package; its contents are its own, whatever state the model is in later."""
    from dovetail.artifact.save import Package, pack

    artifact = artifact_of(name, backend)
    made = pack(artifact.interface, artifact.linked)
    contents = {key: bytes(data) for key, data in made.contents.items()}
    return Package(made.program, contents, made.manifest)
