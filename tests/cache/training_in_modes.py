"""Training steps under autocast, in other grad modes, of odd dtypes, sizes and results."""

import torch
from torch import nn

from tests.cache.training_steps import case, data, leaf, made, switched, switching


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


@switching
def with_anomalies_detected(wrap):
    x = leaf(3)
    with torch.autograd.set_detect_anomaly(switched()):
        result = wrap(lambda x: x.sqrt() * x)(x.detach().abs().requires_grad_())
        result.sum().backward()
    return [result]


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
def forward_mode(wrap):
    from torch.autograd import forward_ad

    call, x = wrap(lambda x: x.sin() * x), leaf(3)
    call(x).sum().backward()
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, data(3))
        return [forward_ad.unpack_dual(call(dual)).tangent]


@case
def buffers_of_tensors_outside(wrap):
    weights = [leaf(3, seed=n) for n in range(2)]
    call = wrap(lambda x: x * weights[0] + weights[1].sin())
    call(data(3)).sum().backward()
    return [w.grad for w in weights]
