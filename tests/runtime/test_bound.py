"""Frozen models on code of our own: the values computed once are held by the C runtime."""

import gc

import pytest
import torch
from torch import nn

from dovetail import _native, errors
from dovetail.runtime import writes
from dovetail.runtime.executable import NativeExecutable

pytest.importorskip("llvmlite")


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    """Debug mode and the comparison of contents run values through Python."""
    for name in ("STRICT", "DEBUG", "CHECK_WEIGHTS"):
        monkeypatch.delenv(f"DOVETAIL_{name}", raising=False)


@pytest.fixture
def bound(monkeypatch):
    """The functions that were made for values that stay the same."""
    made, bind = [], NativeExecutable.binding

    def binding(self, positions, values):
        made.append(bind(self, positions, values))
        return made[-1]

    monkeypatch.setattr(NativeExecutable, "binding", binding)
    return made


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()


def frozen(model):
    return torch.compile(model, backend="cpu", options={"freeze": True})


def new_data(model):
    model[0].weight.data = torch.randn(16, 8)


def other_layout(model):
    model[0].weight.data = torch.randn(8, 16).t()


def other_parameter(model):
    model[2].weight = nn.Parameter(torch.randn(4, 16))


WAYS = {
    "in place": lambda model: model[0].weight.mul_(2),
    "uncounted": lambda model: model[0].bias.data.add_(1),
    "new data": new_data,
    "other layout": other_layout,
    "another parameter": other_parameter,
}


@pytest.mark.parametrize("way", WAYS)
@torch.no_grad()
def test_a_changed_weight_is_held_anew(way, bound):
    model, x = mlp(), torch.randn(3, 8)
    run = frozen(model)
    torch.testing.assert_close(run(x), model(x))
    assert bound
    assert bound[0] is not None
    WAYS[way](model)
    gc.collect()
    torch.empty(16, 8).fill_(7)  # where memory that was given back may have been
    torch.testing.assert_close(run(x), model(x))
    torch.testing.assert_close(run(-x), model(-x))


@torch.no_grad()
def test_what_is_held_outlives_its_tensor():
    tensor = torch.arange(6.0).view(2, 3)
    held = _native.hold(tensor)
    tensor.mul_(2)
    del tensor
    gc.collect()
    assert memoryview(held).tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("given", [1, "text", torch.eye(2).to_sparse()], ids=str)
def test_what_is_no_strided_tensor_cannot_be_held(given):
    with pytest.raises((TypeError, BufferError, RuntimeError)):
        _native.hold(given)


@torch.no_grad()
def test_values_with_lazy_signs(bound):
    weight = nn.Parameter(torch.randn(8, dtype=torch.complex64))

    def model(x):
        return x * weight.conj().imag.sum() + weight.conj().imag

    x = torch.randn(8)
    torch.testing.assert_close(frozen(model)(x), model(x))


@torch.no_grad()
def test_inputs_that_are_not_as_described_run_call_by_call(bound):
    model, x = mlp(), torch.randn(3, 8)
    run = frozen(model)
    run(x)
    double = nn.Sequential(*(layer.double() for layer in mlp()))
    with pytest.raises(RuntimeError, match="dtype"):  # eager's own words
        bound[0]([x.double()])
    with pytest.warns(errors.FallbackWarning, match="call by call"):
        (result,) = bound[0]([torch.cat([x, x])])
    torch.testing.assert_close(result, double(torch.cat([x, x]).double()).float())


def test_unchanged_answers_as_states_do():
    tensors = (torch.randn(64, 64), nn.Parameter(torch.randn(3)), torch.randn(5, 4).t())
    how = writes.how_to_read(tensors)
    kept = writes.state(tensors, how)
    assert writes.is_unchanged(tensors, how, kept)
    for n, tensor in enumerate(tensors):
        kept = writes.state(tensors, how)
        tensor.data[-1:] += 1
        assert not writes.is_unchanged(tensors, how, kept), n
    kept = writes.state(tensors, how)
    assert not writes.is_unchanged(tensors[:2], how[:2], kept)
    assert not writes.is_unchanged((*tensors[:2], torch.eye(2).to_sparse()), how, kept)
    with pytest.raises(TypeError, match="a tuple of tensors"):
        _native.unchanged(list(tensors), how, kept)
