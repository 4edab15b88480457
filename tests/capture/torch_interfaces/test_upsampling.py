"""Upsampling that AOTAutograd keeps whole, so that its gradient is one operator."""

from threading import Barrier, Thread

import pytest
import torch
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch.nn import functional as F

import dovetail
from dovetail.capture._torch.upsampling import whole_upsampling

aten = torch.ops.aten


UPSAMPLING = {
    "interpolate": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
    "positional": lambda x: F.interpolate(x, None, 2, "bilinear"),
    "nearest": lambda x: F.interpolate(x, scale_factor=2),
    "module": nn.Upsample(scale_factor=2, mode="nearest-exact"),
    "overload": lambda x: aten.upsample_bilinear2d.vec(x, [8, 8], False, None),
    "packet": lambda x: aten.upsample_nearest2d(x, [8, 8]),
    "function": lambda x: torch._C._nn.upsample_bilinear2d(x, [8, 8], False),
}


def gradient_of(upsample):
    """What autograd calls the gradient of an upsampling, in the way AOTAutograd traces."""
    with enable_python_dispatcher():
        return upsample(torch.randn(1, 2, 4, 4, requires_grad=True)).grad_fn.name()


@pytest.mark.parametrize("upsample", UPSAMPLING.values(), ids=UPSAMPLING)
def test_upsampling_is_whole_to_autograd_within_the_context(upsample):
    assert "Upsample" not in gradient_of(upsample)
    with whole_upsampling():
        assert "Upsample" in gradient_of(upsample)
    assert "Upsample" not in gradient_of(upsample)


def test_upsampling_in_another_thread_is_as_it_was():
    found = []
    with whole_upsampling():
        thread = Thread(target=lambda: found.append(gradient_of(UPSAMPLING["interpolate"])))
        thread.start()
        thread.join()
    assert len(found) == 1
    assert "Upsample" not in found[0]


def test_bicubic_upsampling_is_taken_apart_within_the_context_too():
    with whole_upsampling():
        found = gradient_of(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"))
    assert "Upsample" not in found


def test_a_graph_keeps_the_gradient_of_upsampling_whole():
    graphs = []

    def keep(gm):
        graphs.append(gm)
        return gm

    passes = dovetail.passes.default().add("joint", keep)
    fn = torch.compile(
        lambda x: F.interpolate(x.sin(), scale_factor=2, mode="bilinear").sum(),
        backend="dovetail",
        options={"passes": passes},
    )
    fn(torch.randn(1, 2, 4, 4, requires_grad=True))
    targets = [node.target for gm in graphs for node in gm.graph.nodes]
    assert aten.upsample_bilinear2d_backward.default in targets


def test_two_threads_compile_upsampling_at_once():
    start, found = Barrier(2), []

    def train(factor):
        def fn(x):
            return F.interpolate(x, scale_factor=factor, mode="bilinear").square().sum()

        x = torch.randn(1, 2, 3 + factor, 4, requires_grad=True)
        (expected,) = torch.autograd.grad(fn(x), x)
        start.wait(10)
        (actual,) = torch.autograd.grad(torch.compile(fn, backend="dovetail")(x), x)
        torch.testing.assert_close(actual, expected)
        found.append(factor)

    threads = [Thread(target=train, args=(factor,)) for factor in (2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [2, 3]
