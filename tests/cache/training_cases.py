"""Training steps that do odd things with autograd, for ``test_training_processes``.

``python -m tests.cache.training_cases`` runs each compiled and as it is, and writes what a caller
can see of both as JSON to the standard output.
"""

import json
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from dovetail import history

CASES = {}


def case(fn):
    """Register a function ``case(wrap)``: what ``wrap(model)`` gives is called in its place."""
    CASES[fn.__name__] = fn
    return fn


def seen(value):
    """What a caller can see of a value."""
    if isinstance(value, torch.Tensor):
        flags = f"{value.dtype} {list(value.shape)} {list(value.stride())}"
        flags += f" grad={value.requires_grad} leaf={value.is_leaf} view={value._is_view()}"
        return [flags, torch.view_as_real(value).tolist() if value.is_complex() else value.tolist()]
    if isinstance(value, tuple | list):
        return [seen(each) for each in value]
    return repr(value)


def leaf(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()


def data(*shape, seed=0):
    return leaf(*shape, seed=seed).detach()


def made(make):
    torch.manual_seed(11)
    return make().double()


def stepped(model, call, inputs, steps=3, **optimizer):
    """Losses of steps of SGD, then parameters, gradients and buffers."""
    torch.manual_seed(5)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9, **optimizer)
    found = []
    for _ in range(steps):
        optimizer.zero_grad()
        result = call(*inputs)
        loss = (result[0] if isinstance(result, tuple) else result).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss)
    return [
        *found,
        *([p, p.grad] for p in model.parameters()),
        *model.buffers(),
        torch.get_rng_state().sum(),
    ]


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
        self.head.weight = self.table.weight

    def forward(self, index):
        return self.head(self.table(index).tanh())


@case
def tied_weights(wrap):
    model = made(Tied)
    return stepped(model, wrap(model), [torch.tensor([[1, 2, 6], [0, 0, 3]])])


@case
def tied_through_a_view(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.weight @ self.weight.t() + self.weight[0]

    model = made(Model)
    return stepped(model, wrap(model), [data(2, 3)])


@case
def batch_norm(wrap):
    model = made(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU()))
    call = wrap(model)
    found = stepped(model, call, [data(2, 2, 5, 5)])
    model.eval()
    return [*found, *stepped(model, call, [data(2, 2, 5, 5)], 1)]


@case
def batch_norm_whose_statistics_are_fixed(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)))
    model[1].eval()
    model[1].weight.requires_grad_(False)
    return stepped(model, wrap(model), [data(5, 3)])


@case
def spectral_norm(wrap):
    model = made(lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4)))
    return stepped(model, wrap(model), [data(5, 3)])


@case
def weight_norm(wrap):
    model = made(lambda: nn.utils.parametrizations.weight_norm(nn.Linear(3, 4)))
    return stepped(model, wrap(model), [data(5, 3)])


@case
def dropout(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.Linear(8, 2)))
    return stepped(model, wrap(model), [data(3, 4)])


@case
def random_numbers(wrap):
    def fn(x):
        return x * torch.rand(4) + torch.randn_like(x), torch.randint(0, 9, (3,))

    torch.manual_seed(1)
    call, x = wrap(fn), leaf(4)
    result, drawn = call(x)
    result.sum().backward()
    again = call(x)[0]
    return [result, drawn, x.grad, again, torch.rand(2)]


@case
def checkpointed(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 4))

        def forward(self, x):
            return checkpoint(self.body, x, use_reentrant=False) + x

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 4)])


@case
def recurrent(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = nn.GRUCell(3, 4)

        def forward(self, x):
            state = None
            for each in x:
                state = self.cell(each, state)
            return state

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 2, 3)])


@case
def attention(wrap):
    model = made(lambda: nn.TransformerEncoderLayer(8, 2, 16, 0.1, batch_first=True))
    return stepped(model, wrap(model), [data(2, 3, 8)])


@case
def embedding_that_rescales_its_rows(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(5, 3, max_norm=0.5, padding_idx=1)

        def forward(self, index):
            return self.table(index) * 2

    model = made(Model)
    return stepped(model, wrap(model), [torch.tensor([0, 1, 4, 4])])


@case
def channels_last_weights(wrap):
    model = made(lambda: nn.Conv2d(3, 4, 3)).to(memory_format=torch.channels_last)
    return stepped(model, wrap(model), [data(2, 3, 5, 5).to(memory_format=torch.channels_last)])


@case
def a_weight_clipped_in_the_forward_pass(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))
            self.register_buffer("average", torch.zeros(3, 3))

        def forward(self, x):
            with torch.no_grad():
                self.weight.clamp_(-0.5, 0.5)
                self.average.lerp_(self.weight, 0.1)
            return x @ self.weight + self.average

    model = made(Model)
    return stepped(model, wrap(model), [data(3, 3)])


@case
def a_buffer_replaced(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            y = self.linear(x)
            self.mean = self.mean * 0.9 + y.detach().mean(0)
            return y - self.mean, self.mean

    model = made(Model)
    call = wrap(model)
    return [*stepped(model, call, [data(2, 3)]), call(data(2, 3))]


@case
def parameters_that_are_not_used_or_not_trained(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(3, 3) for _ in range(3))
            self.two.requires_grad_(False)

        def forward(self, x):
            return self.two(self.one(x)) + self.three(x).detach()

    model = made(Model)
    return stepped(model, wrap(model), [data(2, 3)])


@case
def a_parameter_returned(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(3, 3))

        def forward(self, x):
            return x @ self.weight, self.weight, self.weight.t(), self.weight.detach()

    model = made(Model)
    call = wrap(model)
    results = call(data(2, 3))
    same = results[1] is model.weight
    sum(r.sum() * (n + 1) for n, r in enumerate(results)).backward()
    return [same, *results, model.weight.grad, *stepped(model, call, [data(2, 3)])]


@case
def an_input_returned(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    results = wrap(lambda x, y: (x, x * y, y))(x, y)
    (results[0] * 2 + results[1] * 3 + results[2]).sum().backward()
    return [results[0] is x, results[2] is y, *results, x.grad, y.grad]


@case
def only_an_input_returned(wrap):
    base = leaf(3)
    x = base.exp()
    results = wrap(lambda x: (x, x.sin().detach()))(x)
    results[0].sum().backward()
    return [*results, base.grad]


@case
def views_of_an_input(wrap):
    base = leaf(2, 6)
    x = base * 2
    results = wrap(lambda x: (x.view(3, 4), x.t(), x[0], x.detach(), x.sin()))(x)
    sum(r.sum() * (n + 1) for n, r in enumerate(results)).backward()
    return [*results, base.grad]


@case
def a_view_of_an_input_written_to_later(wrap):
    base = leaf(6)
    x = base * 2
    view, other = wrap(lambda x: (x.view(2, 3), x.detach().sin()))(x)
    view.mul_(3)
    (x.sum() + view.sum() + other.sum()).backward()
    return [x, view, base.grad]


@case
def views_of_a_result(wrap):
    x = leaf(2, 6)

    def fn(x):
        y = x.exp()
        return y, y.view(-1), y[0], y.t(), y

    results = wrap(fn)(x)
    sum(r.sum() * (n + 1) for n, r in enumerate(results)).backward()
    return [results[0] is results[4], *results, x.grad]


@case
def one_result_twice(wrap):
    def fn(x):
        y = x.sin()
        return y, y, y * 1

    x = leaf(4)
    results = wrap(fn)(x)
    (results[0].sum() + 2 * results[1].sum() + 3 * results[2].sum()).backward()
    return [results[0] is results[1], *results, x.grad]


@case
def an_expanded_result(wrap):
    x = leaf(3)
    result = wrap(lambda x: x.exp().expand(4, 3))(x)
    result.backward(data(4, 3))
    return [result, x.grad]


@case
def written_inputs(wrap):
    def fn(x, count, total):
        count.add_(1)
        total.copy_(x.detach().sum(0))
        total[0] = 7
        return x * total

    x, count, total = leaf(2, 3), data(1), data(3)
    call = wrap(fn)
    for _ in range(2):
        call(x, count, total.clone()).sum().backward()
    result = call(x, count, total)
    return [result, x.grad, count, total]


@case
def a_written_input_that_is_saved(wrap):
    def fn(x, y):
        result = x * y.clone()
        y.add_(1)
        return result + y * x

    x, y = leaf(3), data(3)
    wrap(fn)(x, y).sum().backward()
    return [x.grad, y]


@case
def a_written_input_that_trains(wrap):
    def fn(x, y):
        x.mul_(y)
        return x.sin()

    base, y = leaf(3), leaf(3, seed=2)
    x = base * 1
    result = wrap(fn)(x, y)
    (result.sum() + x.sum()).backward()
    return [result, x, base.grad, y.grad]


@case
def a_leaf_written_without_grad(wrap):
    def fn(x, y):
        with torch.no_grad():
            x.mul_(2)
        return x * y

    x, y = leaf(3), leaf(3, seed=2)
    wrap(fn)(x, y).sum().backward()
    return [x, x.grad, y.grad]


@case
def a_written_view_of_an_input(wrap):
    def fn(x, y):
        y[0].mul_(3)
        y.t()[1] += 1
        return x @ y

    x, y = leaf(2, 2), data(2, 2)
    result = wrap(fn)(x, y)
    result.sum().backward()
    return [result, x.grad, y]


@case
def metadata_of_an_input_written(wrap):
    def fn(x, y):
        y.unsqueeze_(0)
        return x * y

    x, y = leaf(3), data(3)
    result = wrap(fn)(x, y)
    result.sum().backward()
    return [result, x.grad, y]


@case
def inputs_that_share_memory(wrap):
    base = data(6)
    x = leaf(3)
    result = wrap(lambda x, a, b: x * a + b)(x, base[:3], base[3:])
    result.sum().backward()
    return [result, x.grad]


@case
def inputs_that_share_memory_and_are_written(wrap):
    def fn(x, a, b):
        a.add_(1)
        return x * a + b

    base = data(6)
    x = leaf(4)
    result = wrap(fn)(x, base[:4], base[2:])
    result.sum().backward()
    return [result, x.grad, base]


@case
def inputs_that_share_memory_and_train(wrap):
    base = leaf(6)
    x = base * 1
    result = wrap(lambda a, b: a * b)(x[:4], x[2:])
    result.sum().backward()
    return [result, base.grad]


@case
def one_input_twice(wrap):
    x = leaf(3)
    call = wrap(lambda a, b: a * b.sin())
    call(x, x).sum().backward()
    grad, x.grad = x.grad, None
    other = leaf(3, seed=4)
    call(x, other).sum().backward()
    return [grad, x.grad, other.grad]


@case
def gradients_that_are_one_tensor(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    wrap(lambda x, y: x + y)(x, y).sum().backward()
    x.grad.mul_(5)
    return [x.grad, y.grad]


@case
def some_results_without_gradient(wrap):
    def fn(x, y):
        return x.sin() * y, x.argmax(), (x > 0), x.detach() * 2, y.exp()

    found = []
    call = wrap(fn)
    for which in ([0], [4], [0, 4]):
        x, y = leaf(3), leaf(3, seed=1)
        results = call(x, y)
        sum(results[n].sum() for n in which).backward()
        # eager leaves what has no path alone, where AOTAutograd gives zeros
        found += [*results, y.grad, data(3) * 0 if x.grad is None else x.grad + 0]
    return found


@case
def no_result_with_gradient(wrap):
    x = leaf(3)
    result = wrap(lambda x: (x.detach() * 2, x.argmax()))(x)
    return [result]


@case
def asked_for_one_gradient(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    result = wrap(lambda x, y: x * y.sin())(x, y)
    (first,) = torch.autograd.grad(result.sum(), y, retain_graph=True)
    (second,) = torch.autograd.grad(result.sum(), x)
    return [first, second, x.grad, y.grad]


@case
def an_unused_input(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    result = wrap(lambda x, y: (x.sin(), y.shape[0]))(x, y)
    grads = torch.autograd.grad(result[0].sum(), [x, y], allow_unused=True)
    return [result, grads]


@case
def backward_twice(wrap):
    x = leaf(3)
    result = wrap(lambda x: x.sin() * x)(x)
    result.sum().backward(retain_graph=True)
    result.sum().backward()
    try:
        result.sum().backward()
    except RuntimeError as error:
        return [x.grad, "second time" in str(error)]
    return []


@case
def accumulated_over_batches(wrap):
    model = made(lambda: nn.Linear(3, 2))
    call = wrap(model)
    for seed in range(3):
        call(data(2, 3, seed=seed)).square().sum().backward()
    return [p.grad for p in model.parameters()]


@case
def two_passes_before_one_backward(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)))
    call = wrap(model)
    (call(data(4, 3)) * call(data(4, 3, seed=8))).sum().backward()
    return [*(p.grad for p in model.parameters()), *model.buffers()]


@case
def results_fed_back(wrap):
    call = wrap(lambda x, w: (x @ w).tanh())
    x, w = leaf(2, 3), leaf(3, 3)
    y = x
    for _ in range(3):
        y = call(y, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@case
def an_optimizer_step_between_forward_and_backward(wrap):
    w = leaf(3)
    call = wrap(lambda w: w.exp() * w)
    call(w).sum().backward()
    result = call(w)
    with torch.no_grad():
        w.add_(1)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return ["modified by an inplace operation" in str(error)]
    return [w.grad]


@case
def autocast_around(wrap):
    model = nn.Linear(4, 4)
    torch.manual_seed(0)
    nn.init.normal_(model.weight)
    nn.init.zeros_(model.bias)
    call, x = wrap(model), data(2, 4).float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        result = call(x)
    result.float().sum().backward()
    grad = model.weight.grad.clone()
    plain = call(x)
    plain.sum().backward()
    return [result, grad, plain, model.weight.grad]


@case
def autocast_within(wrap):
    def fn(x, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = x @ w
        return y.float() * x.sum()

    x, w = leaf(2, 3, dtype=torch.float32), leaf(3, 3, dtype=torch.float32)
    result = wrap(fn)(x, w)
    result.sum().backward()
    return [result, x.grad, w.grad]


@case
def no_grad_within(wrap):
    def fn(x, w):
        with torch.no_grad():
            scale = (x * w).abs().amax()
            view = x.view(-1)
        with torch.enable_grad():
            y = x * w
        return y / scale, scale, view

    x, w = leaf(2, 3), leaf(2, 3, seed=1)
    results = wrap(fn)(x, w)
    results[0].sum().backward()
    return [results, x.grad, w.grad]


@case
def grad_mode_changed_and_left_so(wrap):
    def fn(x):
        y = x * 2
        torch.set_grad_enabled(False)
        return y, x * 3

    x = leaf(3)
    try:
        results = wrap(fn)(x)
        after = torch.is_grad_enabled()
    finally:
        torch.set_grad_enabled(True)
    results[0].sum().backward()
    return [results, after, x.grad]


@case
def called_without_grad_first(wrap):
    model = made(lambda: nn.Linear(3, 3))
    call, x = wrap(model), data(2, 3)
    with torch.no_grad():
        first = call(x)
    second = call(x)
    second.sum().backward()
    with torch.inference_mode():
        third = call(x).sum().item()
    return [first, second, model.weight.grad, third]


@case
def detached_and_followed_again(wrap):
    def fn(x):
        y = x.exp().detach().requires_grad_()
        return x * y, y * 2

    x = leaf(3)
    results = wrap(fn)(x)
    results[0].sum().backward()
    return [results, x.grad]


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(y)
        ctx.kept = x.exp()
        return x * y, y * 2

    @staticmethod
    def backward(ctx, one, two):
        (y,) = ctx.saved_tensors
        return one * y * ctx.kept * 0.5, None


@case
def a_function_of_its_own(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    results = wrap(lambda x, y: Halved.apply(x.sin(), y))(x, y)
    sum(r.sum() for r in results).backward()
    return [results, x.grad, y.grad]


@case
def a_hook_within(wrap):
    def fn(x):
        y = x.sin()
        y.register_hook(lambda grad: grad * 3)
        return y * x

    x = leaf(3)
    result = wrap(fn)(x)
    result.sum().backward()
    return [result, x.grad]


@case
def hooks_around(wrap):
    base = leaf(3)
    x = base * 2
    x.retain_grad()
    x.register_hook(lambda grad: grad * 2)
    result = wrap(lambda x: x.sin() * x)(x)
    result.retain_grad()
    result.register_hook(lambda grad: grad + 1)
    result.sum().backward()
    return [x.grad, result.grad, base.grad]


@case
def conditional(wrap):
    def fn(x, y):
        return torch.cond(x.sum() > 0, lambda x: x.sin() * y, lambda x: x.cos() - y, (x,))

    found = []
    call = wrap(fn)
    for sign in (1, -1):
        x, y = (leaf(3).detach().abs() * sign).requires_grad_(), leaf(3, seed=1)
        call(x, y).sum().backward()
        found += [x.grad, y.grad]
    return found


@case
def complex_numbers(wrap):
    x = leaf(3, dtype=torch.complex128)
    result = wrap(lambda x: (x * x.conj()).real.sum() + x.abs().sum())(x)
    result.backward()
    return [result, x.grad]


@case
def nothing_in_it(wrap):
    x, w = leaf(0, 3), leaf(3, 2)
    result = wrap(lambda x, w: x @ w)(x, w)
    result.sum().backward()
    return [result, x.grad, w.grad]


@case
def numbers_of_no_dimension(wrap):
    x, y = leaf(1).detach()[0].requires_grad_(), leaf(2)
    result = wrap(lambda x, y: x * y.sum() + 2)(x, y)
    result.backward()
    return [result, x.grad, y.grad]


@case
def of_two_types(wrap):
    x, w = leaf(3, dtype=torch.bfloat16), leaf(3, dtype=torch.float32)
    result = wrap(lambda x, w: (x * w, x.double() + 1, x.half()))(x, w)
    (result[0].sum() + result[1].sum() + result[2].sum()).backward()
    return [result, x.grad, w.grad]


@case
def transposed_inputs(wrap):
    x = leaf(3, 4).detach().t().requires_grad_()
    result = wrap(lambda x: x.exp() * x)(x)
    result.backward(data(3, 4).t())
    return [result, x.grad]


@case
def written_results(wrap):
    x = leaf(4)
    call = wrap(lambda x: x * 2 + 1)
    result = call(x)
    result.mul_(3)
    result.relu_()
    result.sum().backward()
    return [result, x.grad]


@case
def a_result_that_is_saved_and_written(wrap):
    x = leaf(4)
    call = wrap(lambda x: x.exp())
    call(x).sum().backward()
    result = call(x)
    result.mul_(3)
    try:
        result.sum().backward()
    except RuntimeError as error:
        return ["modified by an inplace operation" in str(error)]
    return [x.grad]


@case
def graphs_around_a_break(wrap):
    def fn(x, w):
        y = (x * w).sin()
        torch._dynamo.graph_break()
        return y.exp() * w

    x, w = leaf(3), leaf(3, seed=1)
    result = wrap(fn)(x, w)
    result.sum().backward()
    return [result, x.grad, w.grad]


@case
def results_that_are_no_tensors(wrap):
    x = leaf(3)
    result = wrap(lambda x, n: (x * n, None, n + 1, {"a": [x.sin(), "text"]}))(x, 3)
    (result[0].sum() + result[3]["a"][0].sum()).backward()
    return [result[0], result[1], result[2], result[3]["a"], x.grad]


@case
def deterministic_algorithms(wrap):
    index = torch.tensor([0, 0, 1])

    def fn(x):
        return x.index_add(0, index, x.exp())

    x = leaf(3)
    torch.use_deterministic_algorithms(True)
    try:
        result = wrap(fn)(x)
        result.sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return [result, x.grad]


@case
def sizes_that_vary(wrap):
    call = wrap(lambda x, w: ((x @ w).softmax(0) * x.shape[0]).sum(1), dynamic=True)
    found = []
    for rows in (3, 5, 8):
        x, w = leaf(rows, 4), leaf(4, 2)
        result = call(x, w)
        result.sum().backward()
        found += [result, x.grad, w.grad]
    return found


@case
def images_whose_sizes_vary(wrap):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm, self.head = nn.Conv2d(2, 7, 3), nn.BatchNorm2d(7), nn.Linear(7, 5)

        def forward(self, x):
            x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
            return self.head(F.dropout(F.adaptive_avg_pool2d(x, 1).flatten(1), 0.2)), x.shape[2]

    model = made(Model)
    call = wrap(model, dynamic=True)
    sizes = (11, 9, 16) if switched() else (12, 9, 14)
    return [stepped(model, call, [data(3, 2, size, size + 1)], 1) for size in sizes]


@case
def a_batch_size_that_comes_to_vary(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2)))
    call = wrap(model)
    sizes = (6, 9, 8) if switched() else (5, 7, 8)
    return [stepped(model, call, [data(rows, 4)], 1) for rows in sizes]


@case
def functional_gradients_within(wrap):
    def fn(x, w):
        return torch.func.grad(lambda w: (x * w).sin().sum())(w) * w

    x, w = leaf(3), leaf(3, seed=1)
    result = wrap(fn)(x, w)
    result.sum().backward()
    return [result, x.grad, w.grad]


class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.mark_dirty(x)
        x.mul_(2)
        rounded = y.round()
        ctx.mark_non_differentiable(rounded)
        return x, rounded

    @staticmethod
    def backward(ctx, one, two):
        return one * 2, None


@case
def a_function_that_writes(wrap):
    def fn(x, y):
        z = x.sin()
        return Written.apply(z, y)

    x, y = leaf(3), leaf(3, seed=1)
    results = wrap(fn)(x, y)
    results[0].sum().backward()
    return [results, x.grad, y.grad]


@case
def a_gradient_of_a_gradient(wrap):
    x = leaf(3)
    (grad,) = torch.autograd.grad(wrap(lambda x: x.sin() * x)(x).sum(), x, create_graph=True)
    grad.sum().backward()
    return [x.grad]


@case
def forward_mode(wrap):
    from torch.autograd import forward_ad

    call, x = wrap(lambda x: x.sin() * x), leaf(3)
    call(x).sum().backward()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, data(3))
        return [forward_ad.unpack_dual(call(dual)).tangent]


@case
def with_anomalies_detected(wrap):
    x = leaf(3)
    with torch.autograd.set_detect_anomaly(switched()):
        result = wrap(lambda x: x.sqrt() * x)(x.detach().abs().requires_grad_())
        result.sum().backward()
    return [result]


@case
def saved_tensors_packed_while_compiling(wrap):
    x, packed = leaf(3), []

    def pack(tensor):
        packed.append(1)
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = wrap(lambda x: x.sin() * x)(x)
    result.sum().backward()
    return [result, x.grad, bool(packed)]


@case
def inference_tensors(wrap):
    with torch.inference_mode():
        y = data(3) * 1
    x = leaf(3)
    result = wrap(lambda x, y: x + y)(x, y)
    result.sum().backward()
    return [result, x.grad]


@case
def a_view_that_is_a_leaf(wrap):
    x = data(6)[1:4].requires_grad_()
    wrap(lambda x: x.exp() * x)(x).sum().backward()
    return [x.grad]


@case
def memory_that_overlaps(wrap):
    base = leaf(3)
    x = base.expand(4, 3)
    result = wrap(lambda x: x.exp() * x)(x)
    result.sum().backward()
    return [result, base.grad]


@case
def buffers_of_tensors_outside(wrap):
    weights = [leaf(3, seed=n) for n in range(2)]
    call = wrap(lambda x: x * weights[0] + weights[1].sin())
    call(data(3)).sum().backward()
    return [w.grad for w in weights]


@case
def the_whole_step(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)))

    def step(x, target):
        loss = F.cross_entropy(model(x), target)
        loss.backward()
        return loss

    call = wrap(step)
    losses = [call(data(5, 3), torch.tensor([0, 1, 1, 0, 1])) for _ in range(2)]
    return [*losses, *(p.grad for p in model.parameters())]


# ---- running them ----


def switched():
    """Parameters that only the second process trains, and the other way around."""
    return "switch" in sys.argv


@case
def one_parameter_trained_in_one_process_alone(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)))
    model[0].weight.requires_grad_(switched())
    model[2].bias.requires_grad_(not switched())
    return stepped(model, wrap(model), [data(2, 3)])


@case
def an_input_followed_in_one_process_alone(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    (x if switched() else y).requires_grad_(False)
    wrap(lambda x, y: x.sin() * y)(x, y).sum().backward()
    return [x.grad, y.grad]


@case
def memory_shared_in_one_process_alone(wrap):
    def fn(x, a, b):
        a.add_(1)
        return x * a + b

    x, a, b = leaf(3), data(3), data(3)
    wrap(fn)(x, a, a.view(3) if switched() else b).sum().backward()
    return [x.grad, a]


@case
def weights_shared_in_one_process_alone(wrap):
    model = made(lambda: nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3)))
    if switched():
        model[2].weight = model[0].weight
    return stepped(model, wrap(model), [data(2, 3)])


@case
def a_leaf_in_one_process_alone(wrap):
    base = leaf(3)
    x = base * 1 if switched() else base
    x.retain_grad()
    wrap(lambda x: x.sin() * x)(x).sum().backward()
    return [x.grad]


def verdicts():
    return [f"{v.graph} {v.state}" for c in history.recent() for v in c.cache]


def run(name, backend):
    """A case compiled and as it is: what both show, and what the cache said."""
    torch.compiler.reset()
    history.clear()

    def compiled(fn, **keywords):
        return torch.compile(fn, backend=backend, **keywords)

    found = {}
    for way, wrap in (("compiled", compiled), ("eager", lambda fn, **_: fn)):
        try:
            found[way] = seen(CASES[name](wrap))
        except Exception as error:
            found[way] = f"{type(error).__name__}: {error}"
    found["cache"] = verdicts()
    return found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    json.dump({name: run(name, sys.argv[1]) for name in CASES}, sys.stdout)
