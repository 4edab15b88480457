"""What each built-in pass does, and what it must not do."""

import pytest
import torch
from torch import nn

from dovetail import history
from tests.differential import assert_same

F = nn.functional


def t(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype)


def final_text(kind="inference"):
    graphs = [g for c in history.recent() for g in c.graphs if g.kind == kind]
    return graphs[-1].segments[0][1] if graphs[-1].segments else ""


# ---- noops -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x.sin().view(3, 4) + 1,
        lambda x: x.sin().expand(3, 4) + 1,
        lambda x: x.sin().permute(0, 1) + 1,
        lambda x: x.sin()[:] + 1,
        lambda x: x.sin().to(torch.float32) + 1,
        lambda x: x.sin().to(torch.float32, copy=True) + 1,
        lambda x: x.sin().clone() + 1,
        lambda x: x.sin().detach() + 1,
        lambda x: F.pad(x.sin(), (0, 0)) + 1,
    ],
)
def test_what_changes_nothing_goes_away(fn):
    assert_same(fn, t(3, 4), backend="reference")
    calls = [line.split(" = ")[1] for line in final_text().splitlines() if " = " in line]
    assert [c.split("(")[0] for c in calls] == ["aten.sin.default", "aten.add.Tensor"]


@pytest.mark.parametrize(
    ("fn", "kept"),
    [
        (lambda x: x.sin().to(torch.float64) + 1, "_to_copy"),
        (lambda x: x.sin().t() + 1, "permute"),
        (lambda x: x.sin()[1:] + 1, "slice"),
        (lambda x: x.sin().view(4, 3) + 1, "reshape"),
        (lambda x: x.clone(), "clone"),  # the caller gets memory of its own
        (lambda x: x.sin().transpose(0, 0).t() + 1, "permute"),
    ],
)
def test_what_changes_something_stays(fn, kept):
    assert_same(fn, t(3, 4), backend="reference")
    assert kept in final_text()


def test_a_copy_of_an_input_that_is_written_later_stays():
    def fn(x):
        before = x.clone()
        x.add_(1)
        return before * 1, x

    assert_same(fn, t(4), backend="aten")


def test_square_transpose_is_not_a_noop():
    assert_same(lambda x: x.sin().t() + x, t(4, 4), backend="reference")


# ---- cse ---------------------------------------------------------------------------------------


def test_cse_keeps_numbers_apart():
    def fn(x):
        return x * 1 + x * 1.0, x.new_full((2,), True), x.new_full((2,), 1.0), x * 0.0 - x * -0.0

    assert_same(fn, t(3), backend="reference")


def test_cse_gives_two_outputs_two_memories():
    fn = torch.compile(lambda x: (x + 1, x + 1), backend="aten")
    a, b = fn(t(3))
    a.zero_()
    assert b.abs().sum() > 0


def test_cse_does_not_merge_fresh_memory():
    def fn(x):
        a, b = torch.empty(3), torch.empty(3)
        a.copy_(x)
        b.copy_(x * 2)
        return a + b, a

    assert_same(fn, t(3), backend="aten")


# ---- views -------------------------------------------------------------------------------------


def test_two_reshapes_are_one():
    assert_same(lambda x: (x + 1).view(12).view(4, 3) * 2, t(3, 4), backend="reference")
    assert final_text().count("reshape") == 1


def test_reshape_of_a_transposed_view_is_not_skipped():
    assert_same(lambda x: (x + 1).t().reshape(12).view(3, 4) * 2, t(3, 4), backend="reference")


# ---- constants ---------------------------------------------------------------------------------


def test_masks_are_computed_once():
    def fn(x):
        mask = torch.ones(8, 8).tril() == 0
        return x.masked_fill(mask, -1e9).softmax(-1)

    assert_same(fn, t(8, 8), backend="reference", calls=2)
    assert "tril" not in final_text()
    assert "aten.ge" not in final_text()


def test_a_folded_constant_is_never_handed_out():
    def fn(x):
        mask = torch.arange(4) * 2
        return mask, x + mask

    run = torch.compile(fn, backend="aten")
    first, _ = run(t(4))
    first.zero_()
    torch.testing.assert_close(run(t(4))[0], torch.arange(4) * 2)


def test_large_constants_are_not_kept():
    fn = torch.compile(lambda x: x + torch.arange(1_000_000) * 2, backend="aten")
    fn(t(1))
    assert "arange" in final_text()


def test_random_numbers_are_not_constants():
    def fn(x):
        return x + torch.ones(3) * torch.rand(3)

    run = torch.compile(fn, backend="aten")
    x = t(3)
    assert not torch.equal(run(x), run(x))


def test_symbolic_sizes_are_not_constants():
    run = torch.compile(lambda x: x + torch.arange(x.shape[0]) * 2, backend="aten", dynamic=True)
    for n in (3, 5, 8):
        x = t(n)
        torch.testing.assert_close(run(x), x + torch.arange(n) * 2)


# ---- dead code ---------------------------------------------------------------------------------


def test_unused_calls_go_and_checks_stay():
    def fn(x):
        x.exp().sum()
        return x + 1

    assert_same(fn, t(3), backend="reference")
    assert "exp" not in final_text()


# ---- re-inplacing ------------------------------------------------------------------------------


def test_writing_to_an_input_copies_nothing():
    assert_same(lambda x: x.add_(1), t(5), backend="aten", calls=2)
    assert "copy_" not in final_text()
    assert "aten.add_.Tensor" in final_text()


@torch.library.custom_op("dovetail_tests::fill_row", mutates_args=("cache",))
def fill_row(cache: torch.Tensor, row: int, value: torch.Tensor) -> None:
    WRITTEN.append(cache.untyped_storage().data_ptr())
    cache[row] = value


WRITTEN = []


def test_a_custom_operator_writes_to_the_input_itself():
    def step(cache, value):
        fill_row(cache, 1, value * 2)
        return cache.sum()

    run = torch.compile(step, backend="aten")
    cache, value = torch.zeros(3, 4), t(4)
    WRITTEN.clear()
    torch.testing.assert_close(run(cache, value), value.sum() * 2)
    torch.testing.assert_close(cache[1], value * 2)
    assert [cache.untyped_storage().data_ptr()] == WRITTEN  # no copy was made
    assert "copy_" not in final_text()


@pytest.mark.parametrize(
    "fn",
    [
        lambda c, v: (c * 1, fill_row(c, 0, v), c + 1)[::2],
        lambda c, v: (y := c * 2, fill_row(y, 0, v), y + c)[2],
        lambda c, v: (y := c * 2, z := y.t(), fill_row(y, 0, v), z + 1)[3],
        lambda c, v: (y := c.clone(), fill_row(y, 0, v), y - c)[2],
        lambda c, v: (fill_row(c[1:], 0, v), fill_row(c, 0, v), c.sum())[2],
        lambda c, v: (fill_row(c.view(3, 4), 0, v), c)[1],
    ],
)
def test_custom_operators_in_place_give_eagers_results(fn):
    assert_same(fn, t(3, 4), t(4), backend="aten", calls=2)
    assert_same(fn, t(3, 4), t(4), backend="reference", calls=2)


def test_index_put_on_fresh_memory_is_in_place():
    def fn(x, i):
        out = torch.zeros(5)
        out[i] = x
        return out * 2

    assert_same(fn, t(2), torch.tensor([1, 3]), backend="aten")
    assert "aten.index_put_" in final_text()


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: (x.add_(1), x * 2)[1],
        lambda x: (y := x.t(), x.add_(1), y + 0)[2],
        lambda x: x.add_(x),
        lambda x: (x.sum(), x.mul_(2), x.sum())[0],
        lambda x: x.copy_(x.t() + 1),
        lambda x: (x[0].add_(1), x.mul_(2))[1],
        lambda x: x.cumsum_(0),
        lambda x: x.clamp_(0).sqrt_(),
    ],
)
def test_in_place_gives_eagers_results(fn):
    assert_same(fn, t(4, 4), backend="aten", calls=2)


def test_source_of_a_scatter_that_is_read_again_is_left_alone():
    def fn(x, i):
        base = x * 2
        changed = base.index_put((i,), torch.tensor(9.0))
        return changed + base

    assert_same(fn, t(5), torch.tensor([1, 3]), backend="aten")


def test_scatter_into_an_input_out_of_place_leaves_it_alone():
    fn = lambda x, i: x.index_put((i,), torch.tensor(9.0)) * 2  # noqa: E731
    assert_same(fn, t(5), torch.tensor([1, 3]), backend="aten")


def test_scatter_into_a_view_of_an_input_leaves_it_alone():
    fn = lambda x, i: x.view(5).clone().index_put((i,), torch.tensor(9.0)) * x.sum()  # noqa: E731
    assert_same(fn, t(5, 1), torch.tensor([1, 3]), backend="aten")
