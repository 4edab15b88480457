"""Convolutional nets trained as on a GPU: right gradients, and images that lie as cuDNN wants."""

import copy

import pytest
import torch
from torch import nn

from dovetail.backends.cuda.program import BlockLaunch
from dovetail.ir.kernel import Reduce
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


def far():
    """Sums whose means are a thousand times as large as their deviations."""
    net = stem(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
    nn.init.constant_(net[4].bias, 1000.0)
    return net


NETS = {
    "far": far,
    "residual": lambda: stem(Residual(8, 8, 1), Residual(8, 16, 2)),
    "joined": lambda: stem(Joined(), nn.Conv2d(4, 8, 3)),
    "weighted": lambda: stem(Weighted(), nn.BatchNorm2d(8)),
    "flat": lambda: nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GELU(), nn.MaxPool2d(2, ceil_mode=True),
        nn.Conv2d(8, 8, 3), nn.MaxPool2d(3, 1), nn.Flatten(), nn.Linear(8 * 9 * 9, 10),
    ),
}  # fmt: skip
SIZES = {"far": 70, "residual": 37, "joined": 32, "weighted": 29, "flat": 27}


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


def copied(graph):
    """The images that a graph copies to another layout; weights are no images of the net's."""
    clones = graph.graph.find_nodes(op="call_function", target=aten.clone.default)
    return [node.args[0] for node in clones if node.meta["val"].shape[0] == 4]


def test_no_layout_changes_between_convolutions(monkeypatch):
    """Copied are what comes in, its gradient, and that of a mean, which is the same everywhere."""
    training, *_ = train("residual", monkeypatch)
    forward, backward = training.graphs["forward"], training.graphs["backward"]
    assert [node.op for node in copied(forward)] == ["placeholder"]
    shapes = [tuple(node.meta["val"].shape) for node in copied(backward)]
    assert shapes == [(4, 16, 5, 5), (4, 3, 37, 37)]
    saved = [n.meta["val"] for n in backward.graph.find_nodes(op="placeholder") if "val" in n.meta]
    images = [v for v in saved if v.dim() == 4 and v.shape[0] == 4 and v.shape[2] > 1]
    assert all(v.is_contiguous(memory_format=torch.channels_last) for v in images)
    assert {v.dtype for v in saved if not v.dtype.is_floating_point} <= {torch.uint8, torch.bool}


def test_sums_of_channels_are_one_pass_over_the_image(monkeypatch):
    """A batch norm's mean and variance read what the convolution made once."""
    training, *_ = train("far", monkeypatch)
    found = training.programs["forward"]
    kernels = [found.kernels[s.name][0] for s in found.steps if isinstance(s, BlockLaunch)]
    sums = [k for k in kernels if sum(isinstance(i, Reduce) for i in k.instructions()) == 2]
    first = [k for k in sums if sum(bool(loop.axes) for loop in k.loops) == 1]
    assert len(first) == 2
    assert all(len([b for b in k.buffers if b.role == "in"]) == 1 for k in first)


@pytest.mark.parametrize("name", NETS)
def test_gradients(name, monkeypatch):
    _, found, exact, eager = train(name, monkeypatch)
    for ours, true, theirs in zip(found, exact, eager, strict=True):
        assert ours.stride() == theirs.stride()
        scale = true.norm() + 1e-12
        allowed = 4 * (theirs - true).norm() / scale + 1e-5
        assert (ours - true).norm() / scale <= allowed
