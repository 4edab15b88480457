"""Convolutional nets trained as on a GPU: right gradients, and images that lie as cuDNN wants."""

import copy

import pytest
import torch
from torch import nn

from tests.backends.gpu_simulation import Training, use_gpu

F = nn.functional
aten = torch.ops.aten


class Residual(nn.Module):
    def __init__(self, before, after, step):
        super().__init__()
        self.one, self.two = nn.Conv2d(before, after, 3, step, 1), nn.Conv2d(after, after, 3, 1, 1)
        self.first, self.second = nn.BatchNorm2d(after), nn.BatchNorm2d(after)
        self.around = nn.Conv2d(before, after, 1, step) if before != after else nn.Identity()

    def forward(self, x):
        y = self.second(self.two(F.relu(self.first(self.one(x)))))
        return F.relu(y + self.around(x))


class Joined(nn.Module):
    """Down and up again, what was there before joined to it, channels taken apart."""

    def __init__(self):
        super().__init__()
        self.down, self.up = nn.Conv2d(8, 16, 3, 2, 1), nn.ConvTranspose2d(16, 8, 2, 2)
        self.norm, self.last = nn.GroupNorm(4, 16), nn.Conv2d(16, 8, 3, padding=1)

    def forward(self, x):
        y = self.up(F.silu(self.norm(self.down(x))))
        a, b = self.last(torch.cat([x, y], 1)).chunk(2, 1)
        return a * torch.sigmoid(b)


class Weighted(nn.Module):
    """Channels by themselves, and weighted by what is in them all."""

    def __init__(self):
        super().__init__()
        self.wide, self.each = nn.Conv2d(8, 16, 1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.weigh, self.last = nn.Linear(16, 16), nn.Conv2d(16, 8, 1)

    def forward(self, x):
        y = F.hardswish(self.each(self.wide(x)))
        weights = torch.sigmoid(self.weigh(y.mean((2, 3))))
        return x + self.last(y * weights[:, :, None, None])


def stem(*rest):
    first = nn.Conv2d(3, 8, 7, 2, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU()
    return nn.Sequential(
        *first, nn.MaxPool2d(3, 2, 1), *rest, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )


NETS = {
    "residual": lambda: stem(Residual(8, 8, 1), Residual(8, 16, 2)),
    "joined": lambda: stem(Joined(), nn.Conv2d(4, 8, 3)),
    "weighted": lambda: stem(Weighted(), nn.BatchNorm2d(8)),
    "flat": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GELU(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(8, 8, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(8 * 9 * 9, 10),
    ),
}  # fmt: skip
SIZES = {"residual": 37, "joined": 32, "weighted": 29, "flat": 27}


def step(call, model, x):
    """The result, and the gradients of the input and of all weights; what a step has written."""
    x = x.clone().requires_grad_()
    y = call(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view_as(y)
    (y * weights).sum().backward()
    grads = [parameter.grad for parameter in model.parameters()]
    return [y.detach(), x.grad, *grads, *(b for b in model.buffers() if b.dim())]


def train(name, monkeypatch):
    use_gpu(monkeypatch)
    torch.manual_seed(0)
    model = NETS[name]().train()
    x = torch.randn(4, 3, SIZES[name], SIZES[name])
    exact = copy.deepcopy(model).double()
    eager = copy.deepcopy(model)
    wanted = step(exact, exact, x.double()), step(eager, eager, x)
    training = Training(model)
    return training, step(training, model, x), *wanted


@pytest.mark.parametrize("name", NETS)
def test_gradients(name, monkeypatch):
    _, found, exact, eager = train(name, monkeypatch)
    for ours, true, theirs in zip(found, exact, eager, strict=True):
        assert ours.stride() == theirs.stride()
        scale = true.norm() + 1e-12
        allowed = 4 * (theirs - true).norm() / scale + 1e-5
        assert (ours - true).norm() / scale <= allowed
