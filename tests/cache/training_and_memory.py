"""Training steps whose inputs and results are views, share memory, or are written to."""

import torch

from tests.cache.training_steps import case, data, leaf, switched, switching


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


@switching
def memory_shared_in_one_process_alone(wrap):
    def fn(x, a, b):
        a.add_(1)
        return x * a + b

    x, a, b = leaf(3), data(3), data(3)
    wrap(fn)(x, a, a.view(3) if switched() else b).sum().backward()
    return [x.grad, a]
