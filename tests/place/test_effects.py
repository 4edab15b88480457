"""Effects keep their order, once each, whoever runs what is between them."""

import pytest
import torch
from torch.library import custom_op

import dovetail

LOG = []


@custom_op("dovetail_effects::note", mutates_args=())
def note(x: torch.Tensor, number: int) -> torch.Tensor:
    """An effect that its schema says nothing of."""
    LOG.append(number)
    return x + 1


@note.register_fake
def _(x, number):
    return torch.empty_like(x)


@custom_op("dovetail_effects::write", mutates_args={"x"})
def write(x: torch.Tensor, number: int) -> None:
    LOG.append(number)
    x.add_(number)


@custom_op("dovetail_effects::say", mutates_args=())
def say(number: int) -> None:
    """An effect that PyTorch knows: its calls become ``with_effects``."""
    LOG.append(number)


@say.register_fake
def _(number):
    return None


@pytest.fixture(scope="module", autouse=True)
def _declared():
    from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

    _register_effectful_op(torch.ops.dovetail_effects.say.default, _EffectType.ORDERED)


class Chip(dovetail.KernelBackend):
    """Takes some calls, among them one with an effect, and leaves others between them."""

    name = "effects_chip"

    @dovetail.kernel("aten.relu.default")
    def relu(x):
        return torch.relu(x)

    @dovetail.kernel("aten.mm.default")
    def mm(a, b):
        return a @ b

    @dovetail.kernel("aten.rand.default")
    def rand(*args, **kwargs):
        return torch.rand(*args, **kwargs)

    @dovetail.kernel("dovetail_effects.note.default")
    def note(x, number):
        return torch.ops.dovetail_effects.note(x, number)


def undeclared(x):
    """In an order that nothing but the program gives."""
    a = note(x.exp(), 1)
    b = note(x, 2).relu()
    c = note((x @ x).sin(), 3)
    d = note(x.relu(), 4)
    return a + b + c + d + note(x.cos(), 5)


def declared(x):
    say(1)
    y = x.relu()
    z = note(y.sin(), 2)
    say(3)
    w = (z @ z).relu()
    drawn = torch.rand(4, 4)
    say(4)
    other = note(torch.randn(4, 4), 5)
    say(6)
    return w + drawn + other


def written(x):
    y = x.clone()
    write(y, 1)
    z = y.relu()
    write(y, 2)
    w = (y @ y).sin()
    write(w, 3)
    say(4)
    write(y, 5)
    return y, z, w


def drawn(x):
    a = torch.rand(4, 4)
    b = x.relu() + a
    c = torch.randn(4, 4).relu()
    d = torch.bernoulli(x.sigmoid())
    e = torch.nn.functional.dropout(x @ b, 0.3)
    return a, b, c, d, e, torch.randperm(4), torch.rand(2).relu()


def into_the_input(x):
    x.mul_(2)
    a = x.relu()
    x.add_(1)
    b = (x @ x).sin()
    x.relu_()
    return a + b


def observed(fn):
    """Results, the input after it, the effects, and where the generator stands."""
    LOG.clear()
    torch.manual_seed(7)
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    results = fn(x)
    results = results if isinstance(results, tuple) else (results,)
    return list(LOG), (*results, x, torch.rand(1))


LISTS = {
    "aten": {"backends": ["aten"]},
    "cpu": {"backends": ["cpu"]},
    "chip": {"backends": [Chip]},
    "chip, cpu": {"backends": [Chip, "cpu"]},
    "chip, cpu, compared": {"backends": [Chip, "cpu"], "check": True},
}


@pytest.mark.parametrize("backends", LISTS)
@pytest.mark.parametrize("fn", [undeclared, declared, written, drawn, into_the_input])
def test_effects_keep_their_order(fn, backends):
    log, expected = observed(fn)
    compiled = torch.compile(fn, backend="dovetail", options=LISTS[backends])
    for _ in range(2):
        found_log, found = observed(compiled)
        assert found_log == log
        torch.testing.assert_close(found, expected)


def test_what_was_drawn_for_backward_is_what_forward_drew():
    def step(fn):
        torch.manual_seed(3)
        x = torch.randn(4, 4).requires_grad_()
        sum(each.float().sum() for each in fn(x)).backward()
        return x.grad, torch.rand(1)

    expected = step(drawn)
    compiled = torch.compile(drawn, backend="dovetail", options=LISTS["chip, cpu"])
    torch.testing.assert_close(step(compiled), expected)


def test_uninitialised_results_are_not_compared():
    """What ``empty`` leaves differs from run to run, and is nobody's mistake."""

    def fill(x):
        room = torch.empty_like(x)
        return room, room * 2, x.relu()

    compiled = torch.compile(fill, backend="dovetail", options=LISTS["chip, cpu, compared"])
    torch.full((64, 64), torch.nan)  # for the next of that size to find
    x = torch.randn(64, 64)
    assert torch.equal(compiled(x)[2], x.relu())
