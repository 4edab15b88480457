"""Compiled, then found in the cache: both times the same as eager in all that a caller can see."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from dovetail import history
from tests.differential import BACKENDS, compare, compare_values, run

BACKEND = BACKENDS[-1]
CASES = {}


def case(*args, grad=False, seed=None, dynamic=None):
    """Register a function with its arguments, and how to call it."""

    def register(fn):
        CASES[fn.__name__] = (fn, args, grad, seed, dynamic)
        return fn

    return register


def randn(*shape, **kwargs):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape)), **kwargs)


BASE = randn(4, 6)


@case(randn(3, 4))
def views(x):
    y = x * 2
    return y.view(-1)[2:7], y.t(), x.t(), x.view(2, 6)[1], y


@case(randn(3, 4))
def the_same_output_twice(x):
    y = x.sin()
    return y, y, y.view(12), x, x[None]


@case(randn(3, 4))
def only_computed_twice(x):
    y = x.sin()
    return y, y


@case(randn(3, 4))
def a_view_of_a_result(x):
    y = x.sin() + 1
    return y[1:], y.mT


@case(randn(3, 4), randn(4))
def in_place(x, y):
    x[1:].mul_(2)
    y.add_(x.sum(0))
    return x.exp(), y


@case(randn(3, 4))
def in_place_then_returned(x):
    x.relu_()
    return x


@case(randn(3, 4))
def in_place_on_a_copy(x):
    y = x.clone()
    y[0, 1] = 7
    y[:, 2] += 1
    return y


@case(BASE, BASE)
def one_tensor_twice(x, y):
    x.add_(1)
    return x * y


@case(randn(6, 4).t())
def transposed(x):
    return x + 1, x.contiguous(), x.reshape(-1), x.clone(), x.sum(1, keepdim=True)


@case(randn(6, 4)[::2, 1:3])
def strided(x):
    return x.exp(), x.reshape(-1), x.view(3, 1, 2)


@case(randn(1, 4).expand(5, 4))
def expanded(x):
    return x * 2, x.sum(0)


@case(randn(2, 3, 4, 5).to(memory_format=torch.channels_last), randn(6, 3, 3, 3))
def channels_last(x, w):
    return F.conv2d(x, w, padding=1), x.relu()


@case(randn(3, 4), 2, 1.5, True)
def scalars(x, n, factor, flag):
    return x * factor + n, n + 1, factor * 2, (x if flag else -x) > 0


@case(torch.tensor(3.0), torch.tensor(2))
def tensors_of_no_dimension(x, n):
    return x / n, n // 2, x.item() if False else x.sqrt()


@case(randn(0, 4), randn(4, 0))
def empty(x, y):
    return x @ y.new_zeros(4, 2), y @ x, x.sum(0), torch.cat([x, x + 1])


@case(torch.arange(6), randn(6), randn(6).half(), randn(6).double())
def promotion(i, f, h, d):
    return i + f, i * h, f + d, h + f, i / 2, i + 1.5, f > i, (f > 0) + 1, h * 2.0, i**2


@case(randn(6), randn(6))
def constants(x, y):
    table = torch.tensor([1.0, 2.0, 3.0])
    return x[:3] * table, y.where(y > 0, torch.tensor(0.5)), torch.arange(3), torch.full((2,), 7)


@case(randn(4))
def nothing_but_constants(x):
    return torch.ones(3), x.shape[0], None, torch.zeros(2, dtype=torch.int32)


@case(randn(8, 8), seed=7)
def dropout(x):
    return F.dropout(x, 0.5), torch.rand(3), torch.rand_like(x), torch.randn(2) + x[0, :2]


@case(randn(8, 8), seed=7, grad=True)
def dropout_under_grad(x):
    return F.dropout(x, 0.5) * 2


@case(randn(3, 4, requires_grad=True), randn(4, 2, requires_grad=True), grad=True)
def trained(x, w):
    return (x @ w).tanh(), x.detach() * 2, x[1:], w.t()


@case(randn(3, 4, requires_grad=True), randn(4), grad=True)
def trained_with_writes(x, count):
    count.add_(x.detach().sum(0))
    y = x * 2
    y.mul_(3)
    return y.sum(), y


@case(randn(3, 4).requires_grad_(), grad=True)
def trained_half(x):
    return x.half().sum(), (x.double() * 2).sum(1)


@case(randn(3, 4), randn(4, 4))
def autocast(x, w):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ w
    return y, y @ w.bfloat16()


@case(randn(3, 4, requires_grad=True), grad=True)
def without_grad(x):
    with torch.no_grad():
        y = x * 2
    return y, x * y


@case(randn(3, 4))
def inference(x):
    with torch.inference_mode():
        return x * 2


@case(randn(3, 4), randn(4))
def conditional(x, y):
    return torch.cond(x.sum() > 0, lambda x: x.sin() + y, lambda x: x.cos() - y, (x,))


@case(torch.tensor(0), randn(4))
def loop(i, x):
    return torch.while_loop(lambda i, x: i < 4, lambda i, x: (i + 1, x * 1.5), (i, x))


@case(randn(2, 4, 8, 16), randn(2, 4, 8, 16), randn(2, 4, 8, 16))
def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


@case(torch.tensor([[1, 2, 0], [3, 1, 1]]), randn(5, 4))
def embedding(index, table):
    return F.embedding(index, table), table[index].sum(1)


@case(torch.tensor([1, 0, 2, 2]), randn(4))
def scattered(index, x):
    y = torch.zeros(3)
    y[index] = 1
    return torch.zeros(3).index_add(0, index, x), y, x.sort(), x.topk(2)


@case(randn(5, 4), randn(7, 4), dynamic=True)
def sizes(x, y):
    return torch.cat([x, y]) * x.shape[0], x.shape[0] + y.shape[0], x.new_zeros(y.shape)


@case(randn(6, 4), dynamic=True)
def sizes_with_guards(x):
    if x.shape[0] % 2:
        return x.sum(0)
    return x.view(x.shape[0] // 2, 2, -1).sum(1)


@case(randn(5, 3, requires_grad=True), grad=True, dynamic=True)
def sizes_trained(x):
    return (x.softmax(0) * x.shape[0]).sum(1)


@case(randn(4) + 1j * randn(4))
def complex_numbers(x):
    return x.conj() * 2, x.abs(), x.real, torch.view_as_real(x)


@case([randn(2), randn(2)], {"a": randn(3), "b": (randn(1), None)})
def nested(pair, named):
    return {"sum": pair[0] + pair[1], "rest": [named["a"] * 2, named["b"][0]]}, pair[1]


@torch.library.custom_op("dovetail_cache_test::scale", mutates_args=())
def scale(x: torch.Tensor, by: float) -> torch.Tensor:
    return x * by


@scale.register_fake
def _(x, by):
    return torch.empty_like(x)


@torch.library.custom_op("dovetail_cache_test::fill", mutates_args={"x"})
def fill(x: torch.Tensor, by: float) -> torch.Tensor:
    x.fill_(by)
    return x * 2


@fill.register_fake
def _(x, by):
    return torch.empty_like(x)


@case(randn(3, 4), randn(3, 4))
def custom(x, y):
    doubled = fill(y, 3.0)
    return scale(x + 1, 2.0) * 2, doubled.sum()


def both(fn, args, dynamic, grad, seed, **options):
    """Compare a function with eager, compiled and then found in the cache, two calls each."""
    module = isinstance(fn, nn.Module)
    for _ in range(2):
        torch.compiler.reset()
        history.clear()
        eager, compiled = (copy.deepcopy(fn), copy.deepcopy(fn)) if module else (fn, fn)
        call = torch.compile(
            compiled, backend=BACKEND, dynamic=dynamic, fullgraph=True, options=options
        )
        for _ in range(2):
            expected = run(eager, args, grad, seed, eager if module else None)
            actual = run(call, args, grad, seed, compiled if module else None)
            compare(expected, actual)
            if module:
                compare_values(dict(eager.named_buffers()), dict(compiled.named_buffers()))
    found = [v for c in history.recent() for v in c.cache]
    assert not found or found[-1].state == "hit", found


@pytest.mark.parametrize("name", CASES)
def test_functions(name):
    fn, args, grad, seed, dynamic = CASES[name]
    both(fn, args, dynamic, grad, seed)


class Counting(nn.Module):
    """Writes to buffers, one of which it returns."""

    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x):
        self.count += 1
        self.seen = self.seen * 0.9 + x.mean(0)
        return self.norm(self.linear(x)), self.count, self.seen


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.LSTMCell(4, 5)

    def forward(self, x):
        state = None
        for each in x:
            state = self.cell(each, state)
        return state


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.head = nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.table(index))


MODULES = [
    (Counting, randn(3, 4)),
    (Recurrent, randn(2, 3, 4)),
    (Tied, torch.tensor([[1, 2, 6]])),
    (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), randn(2, 3, 8)),
]


@pytest.mark.parametrize("how", ["inference", "frozen", "training"])
@pytest.mark.parametrize(("make", "x"), MODULES)
def test_modules(make, x, how):
    torch.manual_seed(0)
    model = make()
    model.train(how == "training")
    both(model, (x,), None, how == "training", 0, freeze=how == "frozen")
