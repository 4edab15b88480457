"""Channels-last convolutions: where they pay, what follows them, and what must not notice."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.passes.constants import CONSTANT
from dovetail.passes.layout import use_channels_last
from tests.differential import BACKENDS, assert_same

aten = torch.ops.aten


def laid_out(fn, *args, kind="inference"):
    gm = make_fx(fn, tracing_mode="fake")(*args)
    gm.meta["kind"] = kind
    return use_channels_last(gm)


def count(gm, target):
    return sum(node.target is target for node in gm.graph.nodes)


def wide(x, w):
    return torch.relu(aten.convolution(x, w, None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1))


X, W = torch.randn(1, 8, 32, 32), torch.randn(8, 8, 3, 3)


def test_one_copy_leads_into_a_chain_of_convolutions():
    gm = laid_out(lambda x, w: wide(wide(wide(x, w), w), w), X, W)
    assert count(gm, aten.clone.default) == 2  # of the input, and of the weights
    (output,) = gm.graph.output_node().all_input_nodes
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(gm(X, W), wide(wide(wide(X, W), W), W))


def test_what_needs_the_old_strides_gets_them():
    def fn(x, w):
        return wide(x, w).view(8, -1) + 1

    gm = laid_out(fn, X, W)
    assert count(gm, aten.clone.default) == 3
    torch.testing.assert_close(gm(X, W), fn(X, W))


def test_heavy_weights_that_vary_are_not_copied_at_each_call():
    x, w = torch.randn(1, 256, 4, 4), torch.randn(256, 256, 3, 3)
    assert count(laid_out(wide, x, w), aten.clone.default) == 0


def test_constant_weights_are_laid_out_unless_they_are_heavy():
    def copies(channels):
        x, w = torch.randn(1, channels, 7, 7), torch.randn(channels, channels, 3, 3)
        gm = make_fx(wide, tracing_mode="fake")(x, w)
        gm.meta["kind"] = "inference"
        gm.graph.find_nodes(op="placeholder")[1].meta[CONSTANT] = True
        return count(use_channels_last(gm), aten.clone.default)

    assert copies(256) == 2
    assert copies(384) == 0


def test_heavy_weights_are_copied_where_the_input_lies_channels_last_already():
    x, w = torch.randn(1, 128, 30, 30), torch.randn(256, 128, 3, 3)
    assert count(laid_out(wide, x, w), aten.clone.default) == 0
    light = torch.randn(128, 128, 1, 1)

    def fn(x, light, w):
        first = aten.convolution(x, light, None, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        return wide(first, w)

    gm = laid_out(fn, x, light, w)
    assert count(gm, aten.clone.default) == 2
    (output,) = gm.graph.output_node().all_input_nodes
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)


def test_group_norm_follows():
    def fn(x, w):
        y = torch.native_group_norm(wide(x, w), None, None, 1, 8, 1024, 2, 1e-5)[0]
        return wide(y, w)

    gm = laid_out(fn, X, W)
    assert count(gm, aten.clone.default) == 2
    torch.testing.assert_close(gm(X, W), fn(X, W))


def test_transposed_convolutions_are_laid_out():
    def fn(x, w):
        up = aten.convolution(x, w, None, [2, 2], [1, 1], [1, 1], True, [1, 1], 1)
        return torch.relu(up)

    gm = laid_out(fn, X, W)
    (output,) = gm.graph.output_node().all_input_nodes
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(gm(X, W), fn(X, W))


def test_parts_of_the_channels_follow():
    def fn(x, w):
        left, right = aten.split_with_sizes(wide(x, w), [3, 5], 1)
        return torch.cat((wide(x, w)[:, 2:4], right * 2, left + 1), 1)

    gm = laid_out(fn, X, W)
    assert count(gm, aten.clone.default) == 2
    (output,) = gm.graph.output_node().all_input_nodes
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(gm(X, W), fn(X, W))


def test_parts_of_the_channels_have_the_old_strides_where_those_are_needed():
    def fn(x, w):
        left, right = aten.split_with_sizes(wide(x, w), [4, 4], 1)
        return left.view(4, -1) + 1, right.view(2, 2, -1)

    gm = laid_out(fn, X, W)
    for ours, eager in zip(gm(X, W), fn(X, W), strict=True):
        torch.testing.assert_close(ours, eager)


def resampled(x, w):
    """Every row and column twice, between two convolutions."""
    y, twice = wide(x, w), torch.arange(64) // 2
    return wide(aten.index.Tensor(y, [None, None, twice.unsqueeze(1), twice]) + 1, w)


def test_points_taken_of_an_image_are_laid_out_like_it():
    gm = laid_out(resampled, X, W)
    assert count(gm, aten.clone.default) == 3
    for node in gm.graph.nodes:
        if node.target in (aten.add.Tensor, aten.convolution.default):
            assert node.meta["val"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(gm(X, W), resampled(X, W))


def test_points_taken_keep_eagers_strides_where_those_are_needed():
    def fn(x, w):
        y, twice = wide(x, w), torch.arange(64) // 2
        y = aten.index.Tensor(y, [None, None, twice.unsqueeze(1), twice])
        return y.view(8, -1) + 1, wide(y, w), y

    gm = laid_out(fn, X, W)
    assert count(gm, aten.clone.default) == 3
    for ours, eager in zip(gm(X, W), fn(X, W), strict=True):
        torch.testing.assert_close(ours, eager)
    assert gm(X, W)[2].is_contiguous()


@pytest.mark.parametrize("kind", ["forward", "backward"])
def test_training_graphs_stay_as_they_are(kind):
    assert count(laid_out(wide, X, W, kind=kind), aten.clone.default) == 0


def test_sizes_that_vary_stay_as_they_are():
    gm = make_fx(wide, tracing_mode="symbolic")(X, W)
    gm.meta["kind"] = "inference"
    assert count(use_channels_last(gm), aten.clone.default) == 0


def model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding=1),
        nn.Hardswish(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(8 * 16, 4),
    ).eval()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_network_gives_what_eager_gives(backend):
    assert_same(model(), torch.randn(2, 3, 16, 16), backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_have_eagers_strides(backend):
    convolution = nn.Conv2d(3, 8, 3)
    assert_same(lambda x: (convolution(x), convolution(x).relu()), X[:, :3], backend=backend)


class Unet(nn.Module):
    """Down, up by both ways of interpolating, with ways around."""

    def __init__(self):
        super().__init__()
        self.down, self.middle = self.block(3, 8), self.block(8, 16)
        self.up, self.out = self.block(24, 8), self.block(16, 4)

    @staticmethod
    def block(inner, outer):
        conv = nn.Conv2d(inner, outer, 3, padding=1)
        return nn.Sequential(conv, nn.GroupNorm(4, outer), nn.SiLU())

    def forward(self, x):
        a = self.down(x)
        b = self.middle(nn.functional.max_pool2d(a, 2))
        b = self.up(torch.cat((nn.functional.interpolate(b, scale_factor=2), a), 1))
        c = nn.functional.interpolate(b, scale_factor=0.75, mode="bilinear")
        a = nn.functional.interpolate(a, scale_factor=0.75)
        return self.out(torch.cat((c, a), 1))


class Decoder(nn.Module):
    """Transposed convolutions, channels in parts, weights as large as what they meet."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 32, 3), nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.ConvTranspose2d(32, 8, 4, 2, 1)
        self.out = nn.ConvTranspose2d(8, 4, 3, 2, output_padding=1, groups=2)

    def forward(self, x):
        left, right = self.first(x).chunk(2, 1)
        x = torch.cat((self.second(left), right.sigmoid()), 1)
        return self.out(nn.functional.leaky_relu(self.up(x))).tanh()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_decoder_gives_what_eager_gives(batch, dtype):
    torch.manual_seed(0)
    model, x = Decoder().eval().to(dtype), torch.randn(batch, 8, 14, 14).to(dtype)
    if dtype == torch.float32:
        assert_same(model, x, backend="cpu", dynamic=False)
        return
    with torch.no_grad():  # bfloat16 is not rounded between fused operations
        found = torch.compile(model, backend="cpu", dynamic=False)(x)
        torch.testing.assert_close(found, model(x), atol=2e-2, rtol=2e-2)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_unet_gives_what_eager_gives(batch):
    torch.manual_seed(0)
    assert_same(Unet().eval(), torch.randn(batch, 3, 32, 40), backend="cpu", dynamic=False)
