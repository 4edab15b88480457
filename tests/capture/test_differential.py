"""Everything capture must handle, on the reference interpreter (strict, verified) and on ATen."""

import pytest
import torch
from torch import nn

from tests.differential import BACKENDS, assert_same, run

F = nn.functional
pytestmark = pytest.mark.parametrize("backend", BACKENDS)


def t(*shape, grad=False, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype.is_floating_point or dtype.is_complex:
        return torch.randn(*shape, generator=g, dtype=dtype).requires_grad_(grad)
    return torch.randint(0, 5, shape, generator=g, dtype=dtype)


# ---- plain computation, with and without gradients -------------------------------------------

PROGRAMS = {
    "pointwise": (lambda x, y: torch.sin(x) * y + x.exp() / 3, (t(4, 5), t(4, 5))),
    "matmul": (lambda x, w: F.gelu(x @ w).softmax(-1), (t(4, 5), t(5, 6))),
    "norms": (lambda x: F.layer_norm(x, (8,)) + F.group_norm(x, 2), (t(2, 8, 8),)),
    "reductions": (lambda x: (x.sum(0), x.mean(), x.amax(1), x.var(1), x.argmax()), (t(4, 5),)),
    "cat_split": (lambda x, y: torch.cat([x, y], 1).split(3, 1)[1] * 2, (t(4, 3), t(4, 5))),
    "where_mask": (lambda x: torch.where(x > 0, x, x.new_zeros(())).masked_fill(x > 1, 7), (t(6),)),
    "gather_index": (
        lambda x: x[torch.tensor([2, 0])] + x[:, 1].sum() + x[x.argmax(0)][0],
        (t(4, 4),),
    ),
    "embedding": (lambda i, w: F.embedding(i, w).relu(), (t(3, 4, dtype=torch.int64), t(5, 6))),
    "conv": (
        lambda x, w: F.max_pool2d(F.conv2d(x, w, padding=1), 2),
        (t(2, 3, 8, 8), t(4, 3, 3, 3)),
    ),
    "einsum": (lambda x, y: torch.einsum("bij,bkj->bik", x, y), (t(2, 3, 4), t(2, 5, 4))),
    "sdpa": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        (t(1, 2, 6, 8), t(1, 2, 6, 8), t(1, 2, 6, 8)),
    ),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), (t(1, 2, 4, 4),)),
    "cross_entropy": (lambda x, i: F.cross_entropy(x, i), (t(6, 5), t(6, dtype=torch.int64))),
    "cumsum_sort": (lambda x: x.cumsum(0).sort(1)[0] + x.topk(2, 1)[0].sum(), (t(4, 5),)),
    "linalg": (lambda x: torch.linalg.inv(x @ x.T + torch.eye(4)), (t(4, 4),)),
}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_programs(name, grad, backend):
    fn, args = PROGRAMS[name]
    args = tuple(a.requires_grad_(grad) if a.is_floating_point() else a for a in args)
    assert_same(fn, *args, backend=backend, grad=grad)


def test_inference_mode(backend):
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=backend)
    with torch.inference_mode():
        x = t(2, 4)
        out = compiled(x)
        torch.testing.assert_close(out, model(x))
    assert out.is_inference()


# ---- mutation and aliasing ---------------------------------------------------------------------


def mutate_input(x, y):
    x.add_(y)
    return x * 2


def mutate_view(x):
    x[1:].mul_(3)
    return x.sum()


def mutate_then_return(x):
    x.mul_(2)
    return x


def mutate_twice(x):
    y = x.t()
    y.add_(1)
    x.sub_(3)
    return y


def resize_none(x, y):
    x.copy_(y)
    return


def swap(x, y):
    saved = x.clone()
    x.copy_(y)
    y.copy_(saved)
    return x + y


MUTATIONS = {
    "input": (mutate_input, (t(3, 4), t(3, 4))),
    "view": (mutate_view, (t(3, 4),)),
    "returned": (mutate_then_return, (t(3, 4),)),
    "twice": (mutate_twice, (t(3, 3),)),
    "none_output": (resize_none, (t(3), t(3))),
    "swap": (swap, (t(3), t(3))),
    "index_put": (lambda x: x.index_put_((torch.tensor([0, 2]),), torch.tensor(5.0)), (t(4),)),
    "noncontiguous": (mutate_input, (t(4, 3).t(), t(3, 4))),
    "scalar_op": (lambda x: x.add_(1).mul_(2).relu_(), (t(5),)),
    "int_input": (lambda x: x.add_(1), (t(5, dtype=torch.int64),)),
    "out_of_place_reads": (lambda x: (x + 1, x.add_(1)), (t(5),)),
    "read_after_write": (lambda x: (x.add_(1), x.sum())[1], (t(5),)),
    "write_intermediate": (lambda x: (x * 2).add_(1), (t(5),)),
}


@pytest.mark.parametrize("name", MUTATIONS)
def test_mutation(name, backend):
    fn, args = MUTATIONS[name]
    assert_same(fn, *args, backend=backend, calls=2)


def test_mutation_while_training(backend):
    def fn(x, w):
        x.add_(1)
        return (x * w).sum()

    assert_same(fn, t(4), t(4, grad=True), backend=backend, grad=True)


ALIASES = {
    "is_input": (lambda x: x, (t(3),)),
    "input_among_others": (lambda x, y: (x, x + y, y), (t(3), t(3))),
    "view_of_input": (lambda x: x.view(-1), (t(3, 4),)),
    "slice_of_input": (lambda x: (x[1:], x + 1), (t(3, 4),)),
    "transpose_of_input": (lambda x: (x.t(), x.t() @ x), (t(3, 4),)),
    "views_of_each_other": (lambda x: ((y := x * 2), y.view(-1), y[0]), (t(3, 4),)),
    "same_output_twice": (lambda x: ((y := x + 1), y), (t(3),)),
    "equal_but_distinct": (lambda x: (x + 1, x + 1), (t(3),)),
    "clone_of_input": (lambda x: x.clone(), (t(3),)),
    "to_copy": (lambda x: x.to(torch.float32, copy=True), (t(3),)),
    "noop_view_output": (lambda x: (x * 2).view(3, 4), (t(3, 4),)),
    "noop_expand": (lambda x: x.expand(3, 4), (t(3, 4),)),
    "expand": (lambda x: x.expand(2, 3), (t(3),)),
    "contiguous_noop": (lambda x: x.contiguous(), (t(3, 4),)),
    "contiguous_copy": (lambda x: x.t().contiguous(), (t(3, 4),)),
    "detach": (lambda x: x.detach(), (t(3),)),
    "unbind": (lambda x: x.unbind(0), (t(3, 2),)),
    "split_views": (lambda x: (x + 1).split(1), (t(3, 2),)),
    "duplicate_output_of_view": (lambda x: (x[0], x[0]), (t(3, 2),)),
    "diagonal": (lambda x: x.diagonal(), (t(3, 3),)),
}


@pytest.mark.parametrize("name", ALIASES)
def test_aliasing(name, backend):
    fn, args = ALIASES[name]
    assert_same(fn, *args, backend=backend)


def test_writing_to_an_aliasing_output_changes_the_input(backend):
    x = t(3, 4)
    out = torch.compile(lambda x: (x.t(), x + 1), backend=backend)(x)
    out[0][0, 0] = 42.0
    assert x[0, 0] == 42.0


def test_duplicated_inputs(backend):
    x = t(3)
    assert_same(lambda a, b: (a + b, a.add_(1)), x, x, backend=backend)


def test_overlapping_inputs(backend):
    def fn(a, b):
        a.add_(1)
        return b * 2

    base = t(6)
    expected_base = base.clone()
    expected = fn(expected_base[:4], expected_base[2:])
    actual = torch.compile(fn, backend=backend)(base[:4], base[2:])
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(base, expected_base)


# ---- shapes, strides, odd inputs and outputs ---------------------------------------------------

ODD = {
    "none_and_scalars": (lambda x: (None, x.shape[0], 2.5, x + 1, "text", True), (t(3),)),
    "nested": (lambda x: {"a": [x, (x + 1,)], "b": {"c": x * 2}}, (t(3),)),
    "zero_elements": (lambda x: (x.sum(), x * 2, x.reshape(0)), (torch.empty(0, 3),)),
    "zero_dim": (lambda x: x * x + 1, (torch.tensor(3.0),)),
    "noncontiguous_input": (lambda x: x * 2 + x.sum(0), (t(5, 4).t(),)),
    "channels_last": (
        lambda x: F.relu(x) + 1,
        (t(2, 3, 4, 5).to(memory_format=torch.channels_last),),
    ),
    "channels_last_conv": (
        lambda x, w: F.conv2d(x, w),
        (t(2, 3, 6, 6).to(memory_format=torch.channels_last), t(4, 3, 3, 3)),
    ),
    "permuted_output": (lambda x: (x * 2).permute(2, 0, 1), (t(2, 3, 4),)),
    "mixed_strides": (lambda x, y: x + y, (t(4, 3).t(), t(3, 4))),
    "expanded_input": (lambda x: x * 2, (t(3, 1).expand(3, 4),)),
    "strided_slice": (lambda x: x[::2] * 2, (t(7, 3),)),
    "step_input": (lambda x: x.exp(), (t(8)[::2],)),
    "bool_output": (lambda x: (x > 0, (x > 0).any()), (t(4),)),
    "complex": (lambda x: torch.view_as_real(x * 2j), (t(4, dtype=torch.complex64),)),
    "conj": (lambda x: x.conj() + 1, (t(4, dtype=torch.complex64),)),
    "python_scalars": (lambda x, a, b: x * a + b, (t(3), 3, 0.5)),
    "int_float_promotion": (
        lambda x, y: x + y * 1.5,
        (t(3, dtype=torch.int32), t(3, dtype=torch.int64)),
    ),
    "no_inputs": (lambda: torch.ones(3) * 2, ()),
    "constant_tensor": (lambda x: x + torch.tensor([1.0, 2.0, 3.0]), (t(3),)),
    "constant_returned": (lambda x: (x, torch.tensor([1.0, 2.0])), (t(3),)),
    "constant_written": (lambda x: torch.tensor([1.0, 2.0, 3.0]).add_(x), (t(3),)),
    "arange_mask": (
        lambda x: x.masked_fill(torch.ones(4, 4).tril() == 0, -1e9).softmax(-1),
        (t(4, 4),),
    ),
    "arange_returned": (lambda x: (torch.arange(5) * 2, x + 1), (t(3),)),
    "int_division": (lambda x: (x // 2, x % 3, -x // 2), (t(6, dtype=torch.int64),)),
    "negative_zero": (
        lambda x: (x + 0.0, x * 1.0, x - 0.0),
        (torch.tensor([-0.0, 0.0, float("nan"), float("inf")]),),
    ),
    "item_free_full": (lambda x: torch.full((2, 2), 3) + x, (t(2, 2),)),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_odd(name, dynamic, backend):
    fn, args = ODD[name]
    assert_same(fn, *args, backend=backend, dynamic=dynamic, calls=2)


def test_float_scalar_input_changes(backend):
    compiled = torch.compile(lambda x, a: x * a, backend=backend)
    for value in (0.5, 0.25, 3.0, 4.0):
        torch.testing.assert_close(compiled(t(3), value), t(3) * value)


def test_int_scalar_input_changes(backend):
    compiled = torch.compile(lambda x, n: x[:n] * n, backend=backend)
    for value in (2, 3, 4, 5, 6):
        torch.testing.assert_close(compiled(t(8), value), t(8)[:value] * value)


def test_no_calls_comes_back_at_once(backend):
    from dovetail import history

    assert_same(lambda x, y: (y, x), t(3), t(2), backend=backend)
    assert history.recent() == []


# ---- modules: buffers, tied weights, modes -----------------------------------------------------


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, i):
        return self.head(self.embed(i))


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(4))

    def forward(self, x):
        self.steps += 1
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - self.mean


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_batch_norm(grad, backend):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
    assert_same(model, t(2, 3, 6, 6), backend=backend, grad=grad, calls=3)
    assert_same(model.eval(), t(2, 3, 6, 6), backend=backend, grad=grad)


def test_batch_norm_in_bfloat16(backend):
    assert_same(nn.BatchNorm1d(4), t(3, 4).bfloat16(), backend=backend)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_mutated_buffers(grad, backend):
    assert_same(Counter(), t(3, 4, grad=grad), backend=backend, grad=grad, calls=3)


def test_tied_weights(backend):
    assert_same(Tied(), t(3, 5, dtype=torch.int64), backend=backend, grad=True, calls=2)


@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_lstm(grad, backend):
    # Dynamo leaves nn.LSTM to eager by default; its parts still compile around it.
    model = nn.LSTM(4, 5, num_layers=2, batch_first=True)
    with torch._dynamo.config.patch(allow_rnn=True):
        assert_same(model, t(2, 3, 4, grad=grad), backend=backend, grad=grad)


def test_frozen_parameters_get_no_gradient(backend):
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[0].requires_grad_(False)
    assert_same(model, t(2, 4), backend=backend, grad=True)


def test_autocast(backend):
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float() + x.sum()

    assert_as_near(fn, t(4, 4, grad=True), t(4, 4, grad=True), backend=backend)


def test_products_in_bfloat16(backend):
    x, y = (t(4, 4, dtype=torch.bfloat16).requires_grad_() for _ in range(2))
    assert_as_near(lambda x, y: (x @ y).sigmoid(), x, y, backend=backend)


def assert_as_near(fn, *args, backend):
    """Results and gradients are as near to those of float64 as eager's: sums may be rounded once.

    Which intermediate values are rounded to half precision depends on the processor.
    """
    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    wide = tuple(x.detach().double().requires_grad_() for x in args)
    outcomes = [run(fn, wide, True, None, None)]
    outcomes += [run(f, args, True, None, None) for f in (fn, compiled)]
    assert not any(outcome.error for outcome in outcomes)
    found = [(outcome.outputs, *outcome.grads) for outcome in outcomes]
    for exact, expected, actual in zip(*found, strict=True):
        assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape)
        limit = 2 * (expected - exact).abs().max() + 1e-6
        assert (actual - exact).abs().max() <= limit


def test_autocast_around_the_call(backend):
    model = nn.Linear(4, 4)
    compiled = torch.compile(model, backend=backend)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected, actual = model(t(2, 4)), compiled(t(2, 4))
    assert actual.dtype is torch.bfloat16
    torch.testing.assert_close(actual, expected)


# ---- random numbers ----------------------------------------------------------------------------

RANDOM = {
    "dropout": lambda x: F.dropout(x, 0.5, training=True) * 2,
    "rand_like": lambda x: x + torch.rand_like(x) + torch.randn(3, 4),
    "unused_draw": lambda x: (torch.rand(3), x + torch.rand(3, 4))[1],
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.3)) + x,
    "randint_perm": lambda x: x[torch.randperm(3)] + torch.randint(0, 4, (4,)),
    "normal_": lambda x: x + torch.empty(4).normal_(),
    "equal_draws_differ": lambda x: torch.rand_like(x) - torch.rand_like(x),
    "two_dropouts": lambda x: F.dropout(F.dropout(x, 0.2) + 1, 0.2),
    "multinomial": lambda x: torch.multinomial(x.softmax(-1), 2),
}


@pytest.mark.parametrize("name", RANDOM)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_random(name, grad, backend):
    assert_same(RANDOM[name], t(3, 4, grad=grad), backend=backend, grad=grad, seed=7, calls=2)


# ---- errors are eager's ------------------------------------------------------------------------


def test_runtime_errors_are_eagers(backend):
    fn = lambda i, w: F.embedding(i, w)  # noqa: E731
    assert_same(fn, torch.tensor([0, 9]), t(5, 2), backend=backend)


def test_double_backward_raises(backend):
    compiled = torch.compile(lambda x: (x**3).sum(), backend=backend)
    x = t(3, grad=True)
    (grad,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        grad.sum().backward()


def test_graph_breaks_split_the_graph(backend):
    def fn(x):
        y = x * 2
        torch._dynamo.graph_break()
        return y + 1

    torch.testing.assert_close(torch.compile(fn, backend=backend)(t(3)), fn(t(3)))
