"""A backend of Python functions, with what each takes declared."""

import pytest
import torch
from torch import nn

import dovetail
from dovetail import KernelBackend, errors, history, kernel
from tests.differential import assert_same

F = nn.functional
RAN = []


class Toy(KernelBackend):
    name = "toy"

    @kernel("aten.mm.default", dtypes={"float32"}, layout="contiguous")
    def mm(a, b):
        RAN.append("mm")
        return torch.einsum("ij,jk->ik", a, b)

    @kernel("aten.relu.default", dtypes={"float32", "int64"})
    def relu(x):
        RAN.append("relu")
        return x.clamp(min=0)

    @kernel("aten.add.Tensor", ranks={2}, attributes={"alpha": {1}})
    def add(x, y):
        RAN.append("add")
        return x + y

    @kernel("aten._softmax.default", static=True, alignment=16, attributes={"dim": {-1, 1}})
    def softmax(x, dim, half_to_float):
        RAN.append("softmax")
        return x.softmax(dim)


@pytest.fixture(autouse=True)
def toy():
    RAN.clear()
    with dovetail.registered_backend(Toy):
        yield


def t(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def refusals():
    graph = history.recent()[-1].graphs[-1]
    return {v.op: v.refusals[0][1] for v in graph.verdicts if v.refusals}


def test_kernels_run_and_the_rest_does_not():
    assert_same(lambda x, w: F.relu(x @ w).sin() + x, t(4, 4), t(4, 4), backend="toy")
    assert RAN == ["mm", "relu", "add"]
    assert refusals() == {"aten.sin.default": "no kernel for aten.sin.default"}


def test_training():
    assert_same(
        nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)),
        t(3, 4),
        backend="toy",
        grad=True,
    )
    assert "relu" in RAN
    assert "mm" in RAN  # in the backward graph


DOUBLE = torch.float64
REFUSED = {
    "dtype": (
        lambda x, y: x @ y,
        (t(2, 3, dtype=DOUBLE), t(3, 2, dtype=DOUBLE)),
        "input 0 is float64, takes float32",
    ),
    "layout": (
        lambda x, y: x @ y.t(),
        (t(2, 3), t(2, 3)),
        "input 1 is not known to be contiguous (strides [1, 3])",
    ),
    "rank": (lambda x, y: x + y, (t(3), t(3)), "input 0 has rank 1, takes 2"),
    "attribute": (
        lambda x, y: torch.add(x, y, alpha=2),
        (t(2, 2), t(2, 2)),
        "alpha is 2, takes 1",
    ),
    "dimension": (lambda x: x.softmax(0), (t(4, 4),), "dim is 0, takes -1, 1"),
    "alignment": (
        lambda x: x.softmax(1),
        (t(4, 3),),
        "input 0 has rows of 3 elements, takes multiples of 16 bytes",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_was_expected(name):
    fn, args, reason = REFUSED[name]
    assert_same(fn, *args, backend="toy")
    assert reason in refusals().values()


def test_symbolic_shapes():
    run = torch.compile(lambda x: F.relu(x.softmax(1)), backend="toy", dynamic=True)
    for rows in (2, 3, 5):
        x = t(rows, 4)
        torch.testing.assert_close(run(x), x.softmax(1))
    assert RAN == ["relu"] * 3
    assert "takes static shapes" in refusals()["aten._softmax.default"]


def test_several_kernels_for_one_operator():
    class Two(KernelBackend):
        name = "two"

        @kernel("aten.relu.default", ranks={1})
        def small(x):
            RAN.append("small")
            return x.clamp(min=0)

        @kernel("aten.relu.default", ranks={2, 3})
        @kernel("aten.abs.default")
        def large(x):
            RAN.append("large")
            return torch.where(x > 0, x, 0 * x)

    with dovetail.registered_backend(Two):
        assert_same(lambda x, y: (F.relu(x), F.relu(y)), t(3), t(2, 2), backend="two")
    assert sorted(RAN) == ["large", "small"]
    assert set(Two.kernels) == {"aten.relu.default", "aten.abs.default"}
    assert not KernelBackend.kernels


def test_kernels_are_inherited():
    class More(Toy):
        name = "more"

        @kernel("aten.sin.default")
        def sin(x):
            RAN.append("sin")
            return x.sin()

    assert set(More.kernels) == {*Toy.kernels, "aten.sin.default"}


def test_mistakes_are_named():
    with pytest.raises(errors.UnknownOption, match="did you mean 'dtypes'"):
        kernel("aten.mm.default", dtype={"float32"})
    with pytest.raises(errors.InvalidOption, match="'dtypes' must be a collection"):
        kernel("aten.mm.default", dtypes="float32")
    with pytest.raises(errors.UnknownOption, match="unknown layout 'row'"):
        kernel("aten.mm.default", layout="row")
    with pytest.raises(errors.InvalidOption, match="alignment"):
        kernel("aten.mm.default", alignment=0)
    with pytest.raises(errors.BackendNameTaken, match=r"aten\.mm\.default"):

        class Twice(KernelBackend):
            name = "twice"

            @kernel("aten.mm.default")
            def one(a, b):
                return a @ b

            @kernel("aten.mm.default")
            def other(a, b):
                return a @ b


def test_a_kernel_that_raises_is_not_hidden():
    class Bad(KernelBackend):
        name = "bad"

        @kernel("aten.relu.default")
        def relu(x):
            raise ZeroDivisionError("in the kernel")

    said = r"'bad' .* aten.relu.default on float32\[3\]: ZeroDivisionError: in the kernel"
    with dovetail.registered_backend(Bad), pytest.raises(errors.KernelFailed, match=said) as raised:
        torch.compile(lambda x: F.relu(x), backend="bad")(t(3))
    assert isinstance(raised.value.__cause__, ZeroDivisionError)
