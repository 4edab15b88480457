"""Gradients kept as one call each, against eager: layer norms, GELU, selections."""

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated, plan_of, plans_made
from tests.differential import assert_same

F = nn.functional
aten = torch.ops.aten
TYPES = [torch.float32, torch.float64, torch.bfloat16]


def normal_gradients(grad, x, mean, rstd, weight, bias):
    shape = weight.shape
    return aten.native_layer_norm_backward(grad, x, shape, mean, rstd, weight, bias, [True] * 3)


def normal_arguments(shape, inner, dtype=torch.float32, spread=1.0):
    g = torch.Generator().manual_seed(len(shape))
    grad, x = ((torch.randn(shape, generator=g) * spread).to(dtype) for _ in range(2))
    weight, bias = (torch.randn(shape[-inner:], generator=g).to(dtype) for _ in range(2))
    _, mean, rstd = aten.native_layer_norm(x, weight.shape, weight, bias, 1e-5)
    return grad, x, mean, rstd, weight, bias


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("shape", "inner"), [((3, 5, 37), 1), ((2, 4, 3, 16), 2), ((1, 1), 1)])
def test_layer_norm(shape, inner, dtype):
    assert_generated(normal_gradients, *normal_arguments(shape, inner, dtype), dynamic=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_layer_norm_is_as_exact_as_eager(dtype):
    args = normal_arguments((64, 333), 1, dtype, spread=30.0)
    wanted = normal_gradients(*(a.double() for a in args))
    ours = torch.compile(normal_gradients, backend="cpu", dynamic=False)(*args)
    assert [a.dtype for a in ours] == [dtype] * 3
    for a, b, exact in zip(ours, normal_gradients(*args), wanted, strict=True):
        assert (a - exact).abs().max() <= 2 * (b - exact).abs().max()


def test_layer_norm_of_other_layouts_and_special_values():
    grad, x, mean, rstd, weight, bias = normal_arguments((4, 6, 10), 1)
    grad = grad.transpose(0, 1).contiguous().transpose(0, 1)
    x[0, 0, 0], x[1, 2, 3], grad[3, 3, 3] = torch.inf, torch.nan, -torch.inf
    _, mean, rstd = aten.native_layer_norm(x, weight.shape, weight, bias, 1e-5)
    assert_generated(normal_gradients, grad, x, mean, rstd, weight, bias, dynamic=False)


class Norms(nn.Module):
    """Layer norms of every kind: with all parameters, with some, with none, and of one row."""

    def __init__(self):
        super().__init__()
        kinds = ({}, {"bias": False}, {"elementwise_affine": False})
        self.norms = nn.ModuleList(nn.LayerNorm(12, **kind) for kind in kinds)
        self.whole = nn.LayerNorm((5, 12))
        self.fixed = nn.LayerNorm(12).requires_grad_(False)

    def forward(self, x):
        for norm in (*self.norms, self.whole, self.fixed):
            x = norm(x * 2)
        return x


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_layer_norms_train(backend):
    x = torch.randn(5, 12, generator=torch.Generator().manual_seed(0))
    assert_same(Norms(), x, backend=backend, grad=True)
    assert_same(Norms(), x.requires_grad_(), backend=backend, grad=True, dynamic=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_gelu(approximate, dtype):
    special = torch.tensor([0.0, -0.0, 1e-30, -1e-30, 9.0, -9.0, torch.inf, -torch.inf, torch.nan])
    x = torch.cat([special, torch.linspace(-6, 6, 120)]).to(dtype)
    grad = torch.linspace(-2, 3, len(x)).to(dtype)

    def fn(grad, x):
        return aten.gelu_backward(grad, x, approximate=approximate)

    assert_generated(fn, grad, x, dynamic=False)
    assert_generated(fn, grad, x[:1].expand(len(x)), dynamic=False)
    assert_generated(fn, grad[::2], x[::2], dynamic=False)


@pytest.mark.parametrize("dtype", [*TYPES, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize(("dim", "index"), [(0, 0), (1, 2), (-1, -1)])
def test_selection(dim, index, dtype):
    shape = (3, 4, 5)
    g = torch.Generator().manual_seed(0)
    kept = torch.empty(shape).select(dim, index).shape
    grad = torch.randint(0, 2, kept, generator=g).to(dtype)

    def fn(grad):
        return aten.select_backward(grad, shape, dim, index)

    assert_generated(fn, grad, dynamic=False)
    assert_generated(fn, grad.t().contiguous().t(), dynamic=False)


def test_selections_train_where_sizes_vary():
    def fn(x):
        q, k = x.view(-1, 2, 3).unbind(1)
        return q.sin() * k + x[0, 0]

    x = torch.randn(4, 6, requires_grad=True)
    assert_same(fn, x, backend="cpu", grad=True, dynamic=True)


def test_a_training_step_leaves_none_of_them_to_a_library():
    block = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))

    def fn(x):
        halves = block(x).view(-1, 2, 8)
        return halves[:, 0] * halves[:, 1]

    x = torch.randn(3, 16, requires_grad=True)
    with plans_made() as plans:
        torch.compile(fn, backend="cpu", options={"cache": False})(x).sum().backward()
    calls = {call.op for plan in plans for call in plan.segment.calls}
    left = {step.call.op for plan in plans for step in plan.steps if hasattr(step, "call")}
    for name in ("native_layer_norm_backward", "gelu_backward", "select_backward"):
        assert f"aten.{name}.default" in calls - left


def test_what_is_no_plain_layer_norm_is_taken_apart():
    grad, x, mean, rstd, weight, bias = normal_arguments((3, 5, 8), 1)

    def fn(grad, x, mean, rstd, weight, bias):
        mask = [True, False, True]
        return aten.native_layer_norm_backward(grad, x, [8], mean, rstd, weight, bias, mask)[::2]

    ops = {call.op for call in plan_of(fn, grad, x, mean, rstd, weight, bias).segment.calls}
    assert "aten.native_layer_norm_backward.default" not in ops
    assert_same(fn, grad, x, mean, rstd, weight, bias, backend="cpu")
