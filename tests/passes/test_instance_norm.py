"""Instance norms as group norms: where they are, and that nobody notices."""

import pytest
import torch
from torch import nn

from dovetail.passes.instance_norm import use_group_norm
from tests.differential import assert_same, needs_code

F = nn.functional
SHAPES = {1: (2, 6, 11), 2: (2, 6, 5, 7), 3: (2, 6, 3, 4, 5)}


def targets(fn, *args, grad=False):
    """What a graph calls when the pass has seen it."""
    found = []

    def backend(gm, _):
        use_group_norm(gm)
        gm.recompile()
        found.extend(n.target for n in gm.graph.nodes if n.op == "call_function")
        return gm

    torch._dynamo.reset()
    with torch.set_grad_enabled(grad):
        torch.compile(fn, backend=backend, dynamic=False)(*args)
    return found


def data(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


@needs_code
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("rank", SHAPES)
def test_the_same_as_eager(rank, affine, grad):
    kind = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)[rank - 1]
    x = (data(*SHAPES[rank]) * 3 + 1).requires_grad_(grad)
    model = kind(6, affine=affine)
    assert (F.group_norm in targets(model, x, grad=grad)) is not grad
    assert_same(model, x, backend="cpu", grad=grad, dynamic=False)


@needs_code
def test_channels_last_gives_eagers_strides():
    x = data(2, 6, 5, 7).to(memory_format=torch.channels_last)
    assert_same(nn.InstanceNorm2d(6, affine=True), x, backend="cpu", dynamic=False)


@needs_code
@pytest.mark.parametrize("shape", [(3, 1, 5, 4), (2, 1, 3, 4, 5), (2, 3, 1, 5)])
def test_strides_of_single_elements_are_eagers(shape):
    last = torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    x = torch.empty(shape, memory_format=last).copy_(data(*shape))
    weight = data(7, shape[1], *(1 for _ in shape[2:]))
    convolution = F.conv2d if len(shape) == 4 else F.conv3d

    def fn(x):
        y = F.instance_norm(x)
        z = convolution(y, weight)
        return y, z, z.view(len(x), -1) * 2

    assert_same(fn, x, backend="cpu", dynamic=False)


@needs_code
@pytest.mark.parametrize("training", [False, True])
def test_statistics_that_are_kept_stay_as_they_are(training):
    model = nn.InstanceNorm2d(6, track_running_stats=True).train(training)
    assert F.group_norm not in targets(model, data(2, 6, 5, 7))
    assert_same(model, data(2, 6, 5, 7), backend="cpu", dynamic=False)


def test_types_that_differ_and_autocast_stay_as_they_are():
    weight = data(6)
    assert F.group_norm not in targets(
        lambda x: F.instance_norm(x, weight=weight), data(2, 6, 5, 7).bfloat16()
    )

    def fn(x):
        with torch.autocast("cpu", torch.bfloat16):
            return F.instance_norm(x)

    assert F.group_norm not in targets(fn, data(2, 6, 5, 7))


def test_batches_that_vary():
    model = nn.InstanceNorm2d(6)
    compiled = torch.compile(model, backend="cpu", dynamic=True)
    for batch in (2, 3, 5):
        x = data(batch, 6, 5, 7)
        torch.testing.assert_close(compiled(x), model(x))
