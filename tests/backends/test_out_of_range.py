"""Indices and classes out of range: eager's exceptions, whether or not a gradient is wanted."""

import pytest
import torch
from torch.nn import functional as F

pytest.importorskip("llvmlite")

X = torch.randn(4, 5)
CASES = {
    "nll_loss": lambda x, i: F.nll_loss(F.log_softmax(x[:2], 1), i),
    "cross_entropy": lambda x, i: F.cross_entropy(x[:2], i),
    "weighted": lambda x, i: F.cross_entropy(x[:2], i, weight=torch.ones(5), reduction="none"),
    "smoothed": lambda x, i: F.cross_entropy(x[:2], i, label_smoothing=0.1),
    "in a plane": lambda x, i: F.cross_entropy(x[:2].t()[None], i[None]),
    "embedding": lambda x, i: F.embedding(i, x),
    "index": lambda x, i: x[:, i] + 1,
    "index_put": lambda x, i: x.index_put((i,), torch.ones(2, 5)),
    "index_select": lambda x, i: x.index_select(1, i),
    "gather": lambda x, i: x.gather(1, i[:, None]),
    "scatter": lambda x, i: x.scatter(1, i[:, None], 1.0),
    "take": lambda x, i: x.take(i * 3),
}


@pytest.fixture(autouse=True)
def _as_users_have_it(monkeypatch):
    """Not strict: what fails runs on PyTorch, which has its own words for it."""
    monkeypatch.delenv("DOVETAIL_STRICT", raising=False)


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_exception_is_eagers(case, grad):
    x, fn = X.clone().requires_grad_(grad), CASES[case]
    compiled = torch.compile(fn, backend="dovetail")
    for place in (7, -9):
        index = torch.tensor([0, place])
        with pytest.raises((IndexError, RuntimeError)) as expected:
            fn(x, index)
        with pytest.raises(type(expected.value)) as raised:
            compiled(x, index)
        assert type(raised.value) is type(expected.value)
    index = torch.tensor([0, 3])
    torch.testing.assert_close(compiled(x, index), fn(x, index))


_FROM_THE_END = ("index", "index_put", "take")


@pytest.mark.parametrize("case", [name for name in CASES if name not in _FROM_THE_END])
def test_nothing_else_counts_from_the_end(case):
    x, index = X.clone(), torch.tensor([0, -1])
    with pytest.raises((IndexError, RuntimeError)):
        torch.compile(CASES[case], backend="dovetail")(x, index)


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("weighted", [False, True])
def test_ignored_classes_are_not_checked(reduction, weighted):
    def fn(x, target):
        weight = torch.arange(1.0, 6.0, dtype=x.dtype) if weighted else None
        return F.nll_loss(x, target, weight, ignore_index=200, reduction=reduction)

    x, target = torch.randn(6, 5).double(), torch.tensor([0, 4, 200, 2, 200, 1])
    torch.testing.assert_close(torch.compile(fn, backend="dovetail")(x, target), fn(x, target))


def test_a_message_names_the_index():
    compiled = torch.compile(lambda x, i: x[i] * 2, backend="dovetail")
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        compiled(X, torch.tensor([7]))


def test_the_number_of_classes_may_vary():
    torch._dynamo.reset()
    scores, target = torch.randn(5, 10), torch.randint(0, 10, (5,))
    torch._dynamo.mark_dynamic(scores, 1)
    loss = torch.compile(F.cross_entropy, backend="cpu", fullgraph=True)
    torch.testing.assert_close(loss(scores, target), F.cross_entropy(scores, target))


@pytest.mark.parametrize("weight", [None, torch.rand(7)])
def test_the_loss_of_one_row_of_scores(weight):
    torch._dynamo.reset()
    scores, target = torch.randn(7), torch.tensor(3)
    loss = torch.compile(F.cross_entropy, backend="cpu", fullgraph=True)
    expected = F.cross_entropy(scores, target, weight)
    torch.testing.assert_close(loss(scores, target, weight), expected)
