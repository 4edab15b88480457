"""Symbolic sizes: one compilation for many sizes, sizes computed by us, data-dependent sizes."""

import itertools
import math

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from tests.differential import BACKENDS, assert_same
from tests.models import GPT

both = pytest.mark.parametrize("backend", BACKENDS)


def t(*shape, grad=False):
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=g).requires_grad_(grad)


def reshape_and_pool(x):
    b, n, d = x.shape
    y = x.reshape(b * n, d // 2, 2).sum(-1).view(b, -1)
    half = y[:, : y.shape[1] // 2 + 1]
    return half, y.new_zeros(n * 2 + 1, max(b, n)), torch.arange(n) % (b + 1)


def size_outputs(x):
    return x.shape[0] * 2 + 1, x.numel(), x.sum(), x.shape[1] // 2


PROGRAMS = {
    "through_a_float": (lambda x: x[: int(x.shape[0] * 0.7)] * 2, [(8, 2), (13, 2), (20, 2)]),
    "reshape_and_pool": (reshape_and_pool, [(2, 3, 4), (5, 3, 4), (4, 7, 4), (6, 2, 8)]),
    "size_outputs": (size_outputs, [(3, 4), (5, 6), (7, 9)]),
    "cat_with_itself": (lambda x: torch.cat([x, x * 2]), [(3, 2), (4, 2), (9, 2)]),
    "padding": (lambda x: nn.functional.pad(x, (1, x.shape[0])), [(3, 2), (4, 3), (6, 5)]),
    "broadcast": (lambda x: x.unsqueeze(0) - x.unsqueeze(1), [(3, 2), (4, 2), (5, 2)]),
    "mean_of_shape": (lambda x: x.sum() / x.shape[0] + x.shape[1] / 2, [(3, 2), (4, 5), (6, 7)]),
    "scaled_by_a_quotient": (
        lambda x: x.relu() * (1 / x.shape[0]) + x.sub(x, alpha=x.shape[1] / 3),
        [(3, 2), (4, 5), (6, 7)],
    ),
    "powers_and_roots": (
        lambda x: x / math.sqrt(x.shape[1]) + x * x.shape[0] ** -0.5 - x.shape[1] ** 0.3,
        [(3, 2), (4, 5), (6, 7)],
    ),
    "extremes_of_floats": (
        lambda x: x * max(x.shape[0] / 4, 1.25) - min(x.shape[1] / 3, 2.0) + float(x.shape[0]),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "rounded": (
        lambda x: x * round(x.shape[0] / 3) + math.floor(x.shape[1] / 2.5) + int(x.shape[1] * 1.5),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "clamped_and_filled": (
        lambda x: (
            x.clamp(-x.shape[0] / 9, 1 / x.shape[1])
            + torch.where(x > 0, x, x.shape[0] / 7)
            + x.new_full((x.shape[1],), x.shape[0] / 3)
        ),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "momentum": (
        lambda x: x.var(0, correction=0) * (x.shape[0] / (x.shape[0] - 1)),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "range_of_floats": (
        lambda x: x + torch.arange(x.shape[1], dtype=torch.float32) / x.shape[1],
        [(3, 2), (4, 5), (6, 7)],
    ),
    "rolled": (lambda x: x.roll(x.shape[1] // 2, 1) - x, [(3, 6), (4, 5), (6, 9)]),
    "interpolated": (
        lambda x: nn.functional.interpolate(x[None, None], scale_factor=1.5, mode="nearest"),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "around": (
        lambda x: nn.functional.pad(x[None, None], (1, 1, 1, 1), mode="circular"),
        [(3, 2), (4, 5), (6, 9)],
    ),
    "float_output": (lambda x: (x * 2, x.shape[0] / x.shape[1]), [(3, 2), (4, 5), (6, 7)]),
    "padded_to_a_multiple": (
        lambda x: nn.functional.pad(x, (0, -x.shape[1] % 8)) * 2,
        [(3, 2), (4, 8), (6, 13)],
    ),
    "strided": (lambda x: x[::2, 1:].contiguous().t(), [(4, 5), (6, 7), (9, 9)]),
    "last_as_many": (lambda x: x[:, -x.shape[0] :] * 2, [(3, 7), (5, 8), (4, 9)]),
    "last_as_many_seen": (lambda x: (x * 2)[:, -x.shape[0] :], [(3, 7), (5, 8), (4, 9)]),
}


def test_numbers_computed_from_sizes_cost_no_kernel():
    """They are scalars of the kernels that read them, in both passes."""
    model = nn.BatchNorm2d(4)
    x = t(3, 4, 5, 6, grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    found = dovetail.explain(model, x).to_dict()
    for graph in found["compilations"][0]["graphs"]:
        counts = graph["counts"]
        assert counts["kernel"] > 0
        assert counts["host"] == counts["library"] == counts["elsewhere"] == 0


def test_a_number_without_a_rule_costs_its_readers_alone():
    def f(x):
        y = x.sigmoid() + 1
        return (y * ((x.shape[1] / 3) % 2)).exp() * 2, y.log()

    x = t(3, 4)
    torch._dynamo.mark_dynamic(x, 1)
    counts = dovetail.explain(f, x).to_dict()["compilations"][0]["graphs"][0]["counts"]
    assert counts["kernel"] >= 2
    assert counts["library"] == 0
    assert counts["host"] + counts["elsewhere"] == 2  # the remainder and the product


def test_numbers_that_pytorch_writes_as_tensors_are_no_kernels():
    x = t(3, 4)
    torch._dynamo.mark_dynamic(x, 1)
    found = dovetail.explain(lambda x: (x * x.shape[1] ** 0.5 + float(x.shape[1])).tanh(), x)
    assert found.to_dict()["compilations"][0]["graphs"][0]["counts"]["kernel"] == 1


@both
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_one_compilation_serves_many_sizes(name, grad, backend):
    fn, shapes = PROGRAMS[name]
    compiled = torch.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for shape in shapes:
        x, y = t(*shape, grad=grad), t(*shape, grad=grad)
        with torch.set_grad_enabled(grad):
            expected, actual = fn(x), compiled(y)
        torch.testing.assert_close(actual, expected)
        if grad:
            for result in (expected, actual):
                parts = result if isinstance(result, tuple) else (result,)
                sum(p.sum() for p in parts if torch.is_tensor(p) and p.requires_grad).backward()
            torch.testing.assert_close(y.grad, x.grad)
    assert len(history.recent()) == 1


@both
def test_views_of_returned_products_share_their_memory(backend):
    def product_and_view(x, weight):
        y = nn.functional.linear(x, weight)
        return y, y.reshape(-1, y.shape[0])

    with torch.no_grad():
        assert_same(product_and_view, t(3, 2, 3, 5), t(7, 5), backend=backend, dynamic=True)


@both
def test_starts_of_either_sign(backend):
    compiled = torch.compile(lambda x, n: x[:, n:] * 2, backend=backend, dynamic=True)
    x = t(2, 9)
    for start in (3, -4, 12, -12, -1):
        torch.testing.assert_close(compiled(x, start), x[:, start:] * 2)


@both
@pytest.mark.parametrize("dynamic", [None, True], ids=["automatic", "dynamic"])
def test_transformer_compiles_at_most_twice_for_25_shapes(dynamic, backend):
    model = GPT(layers=1).eval()
    compiled = torch.compile(model, backend=backend, dynamic=dynamic)
    lengths = (8, 12, 20, 24, 32)
    # Dynamo makes a dimension dynamic once it has seen it change: the second shape changes both.
    shapes = [(2, 8), (3, 12), *itertools.product((2, 3, 4, 5, 6), lengths)]
    with torch.no_grad():
        for batch, length in shapes:
            tokens = torch.randint(0, model.vocabulary, (batch, length))
            torch.testing.assert_close(compiled(tokens), model(tokens), rtol=1e-4, atol=1e-5)
    assert len(history.recent()) == (1 if dynamic else 2)


# ---- data-dependent sizes ----------------------------------------------------------------------


def nonzero_sum(x):
    found = x.nonzero()
    return found.shape[0], found.sum(), found * 2


def item_size(x, n):
    k = n.item()
    torch._check(k >= 0)
    torch._check(k <= 8)
    return torch.zeros(k, 2) + x.sum(), torch.arange(k * 2)


def split_at(x, at):
    return torch.tensor_split(x, at)


def masked(x):
    return x[x > 0] * 2


@both
@pytest.mark.parametrize("values", [[0.0, 1.0, 2.0, 0.0], [0.0, 0.0], [1.0, 2.0, 3.0]])
def test_data_dependent_sizes(values, backend):
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        assert_same(nonzero_sum, torch.tensor(values), backend=backend)
        assert_same(masked, torch.tensor(values), backend=backend)


@both
def test_views_at_data_dependent_offsets(backend):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert_same(split_at, t(6, 2), torch.tensor([1, 4]), backend=backend)


@both
def test_item_as_size(backend):
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(item_size, backend=backend, fullgraph=True)
        for k in (3, 5, 2):  # Dynamo itself guards against 0 and 1
            expected = item_size(t(3), torch.tensor(k))
            torch.testing.assert_close(compiled(t(3), torch.tensor(k)), expected)
    assert len(history.recent()) == 1
