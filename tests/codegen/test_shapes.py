"""Rules that move elements, and folds of every type, against eager: types, layouts, sizes."""

import math

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated
from tests.differential import assert_same

F = nn.functional


def data(*shape, dtype=torch.float32):
    g = torch.Generator().manual_seed(sum(shape) + len(shape))
    if dtype.is_floating_point:
        return torch.randn(shape, generator=g).to(dtype)
    return torch.randint(-3 if dtype.is_signed else 0, 4, shape, generator=g).to(dtype)


MOVES = {
    "repeat": lambda x: x.repeat(2, 3),
    "repeat_more_dims": lambda x: x.repeat(2, 1, 3) + 1,
    "repeat_none": lambda x: x.repeat(2, 0),
    "tile": lambda x: x.tile(3),
    "repeat_interleave": lambda x: x.repeat_interleave(3, 1),
    "diagonal": lambda x: x.diagonal() * 2,
    "diagonal_above": lambda x: x.diagonal(2, 1, 0).neg(),
    "diagonal_below": lambda x: x[None].diagonal(-3, -2, -1) * 2,
    "diagonal_outside": lambda x: x.diagonal(40) * 2,
    "diagonal_computed": lambda x: (x * x).diagonal(1),
    "diagonal_scatter": lambda x: (x * 1).diagonal_scatter(x[0, :7], 0),
    "diagonal_scatter_below": lambda x: (x * 1).diagonal_scatter(x[1, :5], -2),
    "diag_embed": lambda x: torch.diag_embed(x, 1),
    "diag": lambda x: torch.diag(x) + torch.diag(torch.diag(x))[0],
    "trace": lambda x: x.diagonal().sum(),
    "windows": lambda x: x.unfold(1, 3, 2) * 2,
    "windows_computed": lambda x: (x * x).unfold(0, 4, 1).sum(-1),
    "windows_twice": lambda x: x.unfold(0, 3, 2).unfold(1, 5, 3) * 2,
    "slice_scatter_in_steps": lambda x: (x * 1).slice_scatter(x[:, :5], 1, 2, 17, 3),
    "slice_scatter_in_steps_of_rows": lambda x: (x * 1).slice_scatter(x[:3], 0, 1, 7, 2),
    "stack": lambda x: torch.stack([x, x * 2, x * 3], -1),
    "triangle": lambda x: x.tril(-1) + x.triu(2),
    "flip": lambda x: x.flip(0, 1),
    "reshape_of_a_view": lambda x: (x.t().reshape(-1) + 1, (x * 1).t().reshape(17 * 7)),
    "turned": lambda x: x.rot90(),
    "strides_of_one_element": lambda x: x.amax(1, keepdim=True).as_strided((7, 1), (1, 5)) * 2,
    "steps_of_whole_numbers": lambda x: x.float() + torch.arange(17.0, 0, -1.0, dtype=torch.int64),
    "unit_matrix": lambda x: x + torch.eye(*x.shape, dtype=x.dtype),
}


@pytest.mark.parametrize("name", MOVES)
def test_moves_are_generated(name):
    x = data(7, 17)
    assert_generated(MOVES[name], x, dynamic=False)


def everything(table):
    """One program of all of them: what is read in several ways at once, and a quicker test."""
    return lambda x: {name: fn(x) for name, fn in table.items()}


TYPES = [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_moves_of_other_types(dtype):
    assert_same(everything(MOVES), data(7, 17, dtype=dtype), backend="cpu", dynamic=False)


LAYOUTS = {
    "transposed": lambda: data(17, 7).t(),
    "sliced": lambda: data(9, 40)[1:8, 3:37:2],
    "repeated": lambda: data(1, 17).expand(7, 17),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_moves_of_other_layouts(layout):
    assert_same(everything(MOVES), LAYOUTS[layout](), backend="cpu", dynamic=False)


FITTING = {"diagonal_scatter", "diagonal_scatter_below", "reshape_of_a_view"}
FITTING |= {"slice_scatter_in_steps", "slice_scatter_in_steps_of_rows", "steps_of_whole_numbers"}


def test_moves_of_sizes_that_vary():
    """Those that do not need pieces of one size."""
    fn = everything({name: fn for name, fn in MOVES.items() if name not in FITTING})
    compiled = torch.compile(fn, backend="cpu", dynamic=True)
    for shape in [(7, 17), (9, 18), (8, 31)]:
        torch.testing.assert_close(compiled(data(*shape)), fn(data(*shape)))


VARYING = {
    "last_three": lambda x: x[:, -3:] * 2,
    "from_the_third": lambda x: x[3:] * 2,
    "second_half": lambda x: x[:, x.shape[1] // 2 :] * 2,
    "halves": lambda x: torch.cat([-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]], 1),
    "between": lambda x: x[1::2, 5 : x.shape[1] - 2] * 2,
    "joined": lambda x: torch.cat([x, x * 2, x]) + 1,
    "stacked": lambda x: torch.stack([x, x + 1]),
    "chunk": lambda x: x.chunk(2, 1)[1] * 2,
    "split": lambda x: x.split(3)[1] * 2,
    "roll": lambda x: x.roll((1, -2), (0, 1)),
    "reshaped": lambda x: x.t().reshape(-1) * 2,
    "slice_scatter": lambda x: (x * 1).slice_scatter(x[:2] * 3, 0, 1, 3),
    "slice_scatter_back": lambda x: (x * 1).slice_scatter(x[:2] * 3, 0, -3, -1),
    "select_scatter": lambda x: (x * 1).select_scatter(x[0] * 3, 0, -2),
    "circular": lambda x: F.pad(x, (1, 2), mode="circular") * 2,
}


@pytest.mark.parametrize("name", VARYING)
def test_sizes_that_vary(name):
    compiled = torch.compile(VARYING[name], backend="cpu", dynamic=True)
    for shape in [(12, 18), (10, 21), (14, 30)]:
        torch.testing.assert_close(compiled(data(*shape)), VARYING[name](data(*shape)))


# Three dimensions of unknown sizes take PyTorch itself many seconds to trace.
PADS = [
    (mode, rank, dynamic)
    for mode in ("reflect", "replicate", "circular")
    for rank, dynamic in ((1, True), (1, False), (2, True), (2, False), (3, False))
]


@pytest.mark.parametrize(("mode", "rank", "dynamic"), PADS)
def test_padding(mode, rank, dynamic):
    x = data(2, 3, *(4, 5, 7)[-rank:])

    def fn(x):
        return F.pad(x, (1, 2, 2, 0, 3, 1)[: 2 * rank], mode=mode) * 2

    if dynamic:
        assert_same(fn, x, backend="cpu", dynamic=True)
    else:
        assert_generated(fn, x, dynamic=False)
        assert_same(fn, x.requires_grad_(), backend="cpu", grad=True, dynamic=False)


INDICES = {
    "apart": lambda x, i: x[i, :, i],
    "apart_in_the_middle": lambda x, i: x[:, i, :, i],
    "beside_each_other": lambda x, i: x[:, i, i] * 2,
    "broadcast": lambda x, i: x[i[:, None], :, i],
    "negative": lambda x, i: x[:, -i - 1],
}


@pytest.mark.parametrize("name", INDICES)
def test_indices(name):
    x, i = data(5, 6, 7, 8), torch.tensor([0, 3, 1])
    assert_generated(INDICES[name], x, i)


def test_an_index_out_of_range():
    assert_same(INDICES["apart"], data(5, 6, 7, 8), torch.tensor([0, 6]), backend="cpu")


# ---- folds of every type -------------------------------------------------------------------------

FOLDS = {
    "sum": lambda x: (x.sum(), x.sum(1)),
    "prod": lambda x: (x.prod(0), x.prod(1, keepdim=True)),
    "any": lambda x: (x.any(), x.any(1), x.any(0, keepdim=True)),
    "all": lambda x: (x.all(), x.all(1)),
    "amax": lambda x: (x.amax(), x.amax(1), x.amin(0)),
    "max_all": lambda x: (x.max(), x.min()),
    "max_dim": lambda x: (*x.max(1), *x.min(0)),
    "count_nonzero": lambda x: x.count_nonzero(0),
}
PLACES = {"places": lambda x: (x.argmax(), x.argmax(1), x.argmin(0, keepdim=True))}
EVERY = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
EVERY += [torch.float16, torch.bfloat16, torch.float32, torch.float64]


@pytest.mark.parametrize("dtype", EVERY, ids=str)
@pytest.mark.parametrize("shape", [(7, 17), (1, 1), (40, 33)], ids=str)
def test_folds_of_every_type(dtype, shape):
    x = data(*shape, dtype=torch.int64).to(dtype).clamp(-1, 1) if dtype != torch.bool else None
    x = data(*shape, dtype=torch.int64) > 0 if x is None else x
    table = {**FOLDS, **({} if dtype == torch.bool else PLACES)}
    assert_generated(everything(table), x, dynamic=False)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.float32], ids=str)
def test_folds_of_nothing(dtype):
    table = {name: FOLDS[name] for name in ("sum", "prod", "any", "all", "count_nonzero")}
    assert_same(everything(table), torch.zeros(0, 5).to(dtype), backend="cpu", dynamic=False)


ORDERS = [0, 1, 2, 3, 0.5, -1, -2.5, math.inf, -math.inf]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_norms(order, dtype):
    def fn(x):
        whole = torch.linalg.vector_norm(x, order)
        return whole, torch.linalg.vector_norm(x, order, dim=1, keepdim=True)

    x = data(7, 17, dtype=dtype)
    assert_generated(fn, x, dynamic=False)


def test_norms_of_special_values():
    x = torch.tensor([[0.0, -0.0], [math.inf, 1.0], [math.nan, 2.0], [-math.inf, 0.0]])
    fn = everything({n: lambda x, n=n: torch.linalg.vector_norm(x, n, dim=1) for n in ORDERS})
    assert_same(fn, x, backend="cpu")


def test_a_norm_in_another_type():
    assert_same(lambda x: torch.linalg.vector_norm(x, dtype=torch.float64), data(9), backend="cpu")


def test_joining_nothing():
    assert_same(lambda x: torch.cat([x, x]) + 1, torch.zeros(0), backend="cpu")


def test_axes_of_a_known_times_an_unknown_size():
    """The kernel is told ``16 * s0``, from which it computes how many points there are."""
    x = data(3, 16, 32, 32)
    torch._dynamo.mark_dynamic(x, 0)
    pooled = torch.compile(lambda x: F.max_pool2d(x, 3, 2, 1), backend="cpu")(x)
    assert torch.equal(pooled, F.max_pool2d(x, 3, 2, 1))
