"""Channels-last convolutions: where they pay, what follows them, and what must not notice."""

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx

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
    assert count(gm, aten.clone.default) == 1
    (output,) = gm.graph.output_node().all_input_nodes
    assert output.meta["val"].is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(gm(X, W), wide(wide(wide(X, W), W), W))


def test_what_needs_the_old_strides_gets_them():
    def fn(x, w):
        return wide(x, w).view(8, -1) + 1

    gm = laid_out(fn, X, W)
    assert count(gm, aten.clone.default) == 2
    torch.testing.assert_close(gm(X, W), fn(X, W))


def test_heavy_weights_that_vary_are_not_copied_at_each_call():
    x, w = torch.randn(1, 64, 4, 4), torch.randn(64, 64, 3, 3)
    assert count(laid_out(wide, x, w), aten.clone.default) == 0


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
