"""Training steps whose gradients are asked for, or made, in odd ways."""

import torch

from tests.cache.training_steps import case, data, leaf, switched, switching


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
def saved_tensors_packed_while_compiling(wrap):
    x, packed = leaf(3), []

    def pack(tensor):
        packed.append(1)
        return tensor * 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = wrap(lambda x: x.sin() * x)(x)
    result.sum().backward()
    return [result, x.grad, bool(packed)]


@switching
def an_input_followed_in_one_process_alone(wrap):
    x, y = leaf(3), leaf(3, seed=1)
    (x if switched() else y).requires_grad_(False)
    wrap(lambda x, y: x.sin() * y)(x, y).sum().backward()
    return [x.grad, y.grad]


@switching
def a_leaf_in_one_process_alone(wrap):
    base = leaf(3)
    x = base * 1 if switched() else base
    x.retain_grad()
    wrap(lambda x: x.sin() * x)(x).sum().backward()
    return [x.grad]
