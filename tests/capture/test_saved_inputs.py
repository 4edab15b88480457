"""Inputs that a graph writes to, and that its backward pass needs as they were before."""

import pytest
import torch

from dovetail import history


def before_and_after(x, y):
    result = x * y.clone()
    y.add_(1)
    return result + y * x


def through_views(x, y):
    result = x * y.t().clone() * y.reshape(-1)[:1].clone()
    y[0].mul_(3)
    return result + y * x


def twice(x, y):
    first = x * y.exp()
    y.mul_(2)
    second = x * y.exp()
    y.sub_(1)
    return first * second


def and_returned(x, y):
    result = x * y.clone()
    y.add_(1)
    return result * y, y, y[1]


GAPS = torch.arange(18.0).reshape(3, 6)


@pytest.fixture(autouse=True)
def _from_nothing():
    torch.compiler.reset()
    history.clear()


@pytest.mark.parametrize("backend", ["aten", "cpu", "reference"])
@pytest.mark.parametrize("layout", ["dense", "transposed", "gaps"])
@pytest.mark.parametrize("fn", [before_and_after, through_views, twice, and_returned])
def test_an_input_written_within_the_graph(fn, layout, backend):
    def step(call):
        x = torch.linspace(0.1, 2, 9).double().reshape(3, 3).requires_grad_()
        y = (GAPS / 7).double()
        y = y[:, ::2] if layout == "gaps" else y[:, :3].clone()
        y = y.t() if layout == "transposed" else y
        found = []
        for _ in range(2):
            results = call(x, y)
            results = results if isinstance(results, tuple) else (results,)
            sum(r.sum() for r in results).backward()
            found += [*(r.detach().clone() for r in results), x.grad.clone(), y.clone()]
        return found

    compiled = torch.compile(fn, backend=backend, options={"cache": False})
    for mine, expected in zip(step(compiled), step(fn), strict=True):
        torch.testing.assert_close(mine, expected)


@pytest.mark.parametrize("backend", ["aten", "cpu"])
def test_an_input_that_trains_written_after_the_graph(backend):
    def fn(x, y):
        x.mul_(y)
        return x.sin()

    def step(call):
        base = torch.linspace(0.1, 2, 6).double().requires_grad_()
        y = torch.linspace(-1, 1, 6).double().requires_grad_()
        x = base * 1
        result = call(x, y)
        (result.sum() + x.sum()).backward()
        return [result.detach(), x.detach(), base.grad, y.grad]

    compiled = torch.compile(fn, backend=backend, options={"cache": False})
    for mine, expected in zip(step(compiled), step(fn), strict=True):
        torch.testing.assert_close(mine, expected)


def test_a_buffer_of_a_module_that_follows_what_it_sees():
    class Running(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.linspace(-1, 1, 4).double())
            self.register_buffer("mean", torch.zeros(4).double())

        def forward(self, x):
            result = (x - self.mean.clone()) * self.weight.exp()
            self.mean.lerp_(x.detach().mean(0), 0.5)
            return result - self.mean * self.weight

    def step(compiled):
        model = Running()
        call = torch.compile(model, backend="cpu") if compiled else model
        found = []
        for n in range(3):
            x = torch.linspace(0, n + 1, 8).double().reshape(2, 4).requires_grad_()
            call(x).square().sum().backward()
            found += [x.grad, model.weight.grad.clone(), model.mean.clone()]
        return found

    for mine, expected in zip(step(True), step(False), strict=True):
        torch.testing.assert_close(mine, expected)
