"""Memory: what passes must not join, and what they must not part."""

import pytest
import torch

from dovetail import history
from dovetail.passes import PassManager, rewrite
from tests.differential import BACKENDS, assert_same

aten = torch.ops.aten
both = pytest.mark.parametrize("backend", BACKENDS)


def t(*shape, grad=False, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).requires_grad_(grad)


@torch.library.custom_op("dovetail_tests::overwrite", mutates_args=("out",))
def overwrite(out: torch.Tensor, x: torch.Tensor) -> None:
    out.zero_()
    out.add_(x)


@torch.library.custom_op("dovetail_tests::noise", mutates_args=())
def noise(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x)


@noise.register_fake
def _(x):
    return torch.empty_like(x)


@both
def test_a_copy_that_an_operator_writes_to_stays_a_copy(backend):
    def fn(y):
        a = y * 2
        b = a.clone()
        overwrite(b, a)
        return b + 0

    assert_same(fn, t(3), backend=backend)


@both
@pytest.mark.parametrize(
    "change", [lambda c, i: c.scatter(0, i, c), lambda c, i: c.index_add(0, i, c)]
)
def test_a_scatter_that_reads_its_own_source(change, backend):
    def fn(x, i):
        return change(x.index_fill(0, i[:1], 0.0), i)

    assert_same(fn, t(5), torch.tensor([1, 2, 3, 4, 0]), backend=backend)


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_equal_products_are_two_tensors(grad, backend):
    assert_same(
        lambda x, w: (x @ w, x @ w), t(2, 3, 4), t(4, 5, grad=grad), backend=backend, grad=grad
    )


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_returned_views_are_objects_of_their_own(grad, backend):
    def fn(x):
        h = x + 1
        return h, h.view(3, 4), h.view(3, 4)

    assert_same(fn, t(3, 4, grad=grad), backend=backend, grad=grad)


@both
@pytest.mark.parametrize("resolve", [torch.resolve_conj, torch.clone])
def test_a_resolved_conjugate_stays_resolved(resolve, backend):
    fn = lambda x: torch.view_as_real(resolve(x.conj())) * 2  # noqa: E731
    if resolve is torch.resolve_conj:
        assert_same(fn, t(3, dtype=torch.complex64), backend=backend)
    assert_same(lambda x: resolve(x.conj()) * 2, t(3, dtype=torch.complex64), backend=backend)


@both
def test_custom_operators_are_not_merged(backend):
    run = torch.compile(lambda x: (noise(x) - noise(x)).abs().sum(), backend=backend)
    assert run(torch.ones(4)) != 0


def test_a_chain_of_scatters_is_all_in_place():
    def fn(x, i):
        out = torch.zeros(5)
        for n in range(6):
            out = out.index_fill(0, i, float(n)) if n % 2 else out.index_put((i,), x)
        return out

    assert_same(fn, t(2), torch.tensor([1, 3]), backend="aten")
    text = history.recent()[-1].graphs[-1].segments[0][1]
    assert text.count("aten.index_fill_") + text.count("aten.index_put_") == 6


def test_long_chains_of_constants():
    def fn(x):
        c = torch.arange(4.0)
        for _ in range(1500):
            c = c + 1
        return x + c

    options = {"debug": False}  # verifying 1,500 nodes after each pass takes its time
    torch.testing.assert_close(
        torch.compile(fn, backend="aten", options=options)(torch.ones(4)), fn(torch.ones(4))
    )


def test_a_rewrite_drops_no_random_draw():
    @rewrite
    class TimesZero:
        def pattern(x, y):
            return aten.add.Tensor(aten.mul.Tensor(x, 0.0), y)

        def replacement(x, y):
            return aten.clone.default(y)

    def fn(x):
        return torch.rand_like(x) * 0.0 + x, torch.rand(2)

    manager = PassManager().add("post_grad", TimesZero, before="noops")
    run = torch.compile(fn, backend="aten", options={"passes": manager})
    torch.manual_seed(3)
    expected = fn(torch.ones(3))
    torch.manual_seed(3)
    torch.testing.assert_close(run(torch.ones(3)), expected)
