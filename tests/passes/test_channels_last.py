"""Images of training steps channels-last: chosen by cost, and nobody outside sees it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn

import dovetail
from dovetail.passes import channels_last

F = nn.functional
aten = torch.ops.aten


def joint_graphs(
    model: Callable[..., Any], x: Any, monkeypatch: pytest.MonkeyPatch
) -> list[fx.GraphModule]:
    """The joint graph of a training step, after the pass."""
    found: list[fx.GraphModule] = []
    original = channels_last.lay_out_images

    def seen(gm: fx.GraphModule) -> fx.GraphModule:
        found.append(original(gm))
        return found[-1]

    monkeypatch.setattr(channels_last, "CHANNELS_LAST", dovetail.passes.Pass("channels_last", seen))
    options = {"cache": False, "debug": True}
    run = torch.compile(model, backend="dovetail", options=options, fullgraph=True)
    run(x).square().sum().backward()
    return found


def images(gm: fx.GraphModule, target: Any) -> list[torch.Tensor]:
    return [n.args[0].meta["val"] for n in gm.graph.nodes if n.target == target]


def is_last(value: torch.Tensor) -> bool:
    return value.is_contiguous(memory_format=torch.channels_last)


def check_step(model: nn.Module, x: torch.Tensor) -> None:
    """Results and gradients have eager's strides, and errors against float64 near eager's."""

    def step(run: Callable[..., Any], x: torch.Tensor) -> list[torch.Tensor]:
        for p in model.parameters():
            p.grad = None
        x = x.detach().requires_grad_()
        y = run(x)
        y.square().sum().backward()
        return [y.detach(), x.grad, *(p.grad for p in model.parameters())]

    torch._dynamo.reset()
    options = {"cache": False, "debug": True}
    found = step(torch.compile(model, backend="dovetail", options=options), x)
    eager = step(model, x)
    exact = step(model.double(), x.double())
    for a, b, c in zip(found, eager, exact, strict=True):
        assert a.stride() == b.stride()
        error = (b.double() - c).abs().max()
        assert (a.double() - c).abs().max() <= 2 * error + 1e-5 * c.abs().max()


def test_convolutions_share_a_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.Softplus(), nn.Conv2d(16, 16, 3)
    )
    (gm,) = joint_graphs(model, torch.randn(2, 3, 32, 32), monkeypatch)
    for target in (aten.convolution.default, aten.convolution_backward.default):
        assert all(map(is_last, images(gm, target)))
    copies = [n for n in gm.graph.nodes if n.target == aten.clone.default]
    # Of the image and of the last result's gradient there and back; of two weights' gradients.
    assert len([n for n in copies if n.kwargs["memory_format"] == torch.channels_last]) <= 2


def test_many_weights_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Conv2d(512, 512, 3, padding=1)
    (gm,) = joint_graphs(model, torch.randn(1, 512, 7, 7), monkeypatch)
    assert not any(map(is_last, images(gm, aten.convolution.default)))


def test_random_draws_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers are drawn in the order of memory, which is to be eager's."""
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.Dropout(0.5), nn.Conv2d(16, 16, 3, padding=1)
    )
    x = torch.randn(2, 3, 32, 32)
    (gm,) = joint_graphs(model, x, monkeypatch)
    assert any(map(is_last, images(gm, aten.convolution.default)))
    torch._dynamo.reset()
    torch.manual_seed(3)
    wanted = model(x)
    torch.manual_seed(3)
    found = torch.compile(model, backend="dovetail", options={"cache": False})(x)
    torch.testing.assert_close(found, wanted)
    assert torch.equal(found == 0, wanted == 0)


def test_sizes_that_vary_stay() -> None:
    model = nn.Conv2d(3, 16, 3)
    run = torch.compile(model, backend="dovetail", options={"cache": False}, dynamic=True)
    for size in (16, 24):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(run(x), model(x))


class Across(nn.Module):
    """Pools, halves of channels, a way across, views: calls of every kind around convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.up, self.norm = nn.ConvTranspose2d(16, 8, 2, 2), nn.GroupNorm(2, 16)
        self.alone, self.last = nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.Conv2d(24, 12, 1)

    def forward(self, x: Any) -> Any:
        """Pixels rearranged from a mixture of two resolutions."""
        x = F.softplus(self.first(x))
        y = F.max_pool2d(F.silu(self.norm(self.second(x))), 2)
        one, two = self.alone(y).chunk(2, 1)
        y = self.up(torch.cat((one * two, F.avg_pool2d(x, 2)[:, 4:12]), 1))
        y = F.interpolate(F.avg_pool2d(y, 2), scale_factor=2, mode="nearest")
        return F.pixel_shuffle(self.last(torch.cat((x, y), 1)), 2)


@pytest.mark.parametrize("last", [False, True])
def test_steps_equal_eager(*, last: bool) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if last else torch.contiguous_format
    check_step(Across(), torch.randn(2, 3, 24, 24).to(memory_format=layout))


def test_one_channel_and_one_image() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 16, 3, bias=False), nn.BatchNorm2d(16), nn.Conv2d(16, 1, 3))
    check_step(model, torch.randn(1, 1, 24, 24))
