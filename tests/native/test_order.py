"""Kernels that put elements in order, and those that put elements into places, against PyTorch."""

import itertools
import math

import pytest
import torch

from dovetail.errors import InvalidArtifact
from dovetail.testing.program_reference import KERNELS
from tests.native.test_kernels import call

TYPES = [
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32),
    *(torch.int16, torch.int8, torch.uint8, torch.bool),
]
LENGTHS = (1, 2, 16, 17, 40, 700)


def numbers(length, dtype, rows=3):
    """Rows with ties and, where there are any, NaN, infinities and zeros of both signs."""
    made = torch.randint(-9, 9, (rows, length)).double() + torch.rand(rows, 1).round() * 0.5
    if dtype.is_floating_point:
        special = torch.tensor([math.nan, -0.0, 0.0, math.inf, -math.inf, math.nan])
        places = torch.randint(0, length, (rows, 6))
        made.scatter_(1, places, special.double().expand(rows, 6))
        made[0] = torch.randn(length)  # and one row without
    return made.abs().to(dtype) if dtype in (torch.uint8, torch.bool) else made.to(dtype)


def laid_out(t):
    yield t
    yield t.t().contiguous().t()
    yield torch.stack([t, t], -1)[..., 1]


@pytest.mark.parametrize("dtype", TYPES)
def test_sorted_as_eager_sorts(dtype):
    for length, descending in itertools.product(LENGTHS, (0, 1)):
        for source in laid_out(numbers(length, dtype)):
            for axis in (0, 1):
                like = torch.empty_like(source), torch.empty(source.shape, dtype=torch.int64)
                got = call("sort", [source], like, (axis, descending))
                want = torch.sort(source, dim=axis, descending=bool(descending), stable=True)
                assert torch.equal(got[0].nan_to_num(7), want[0].nan_to_num(7))
                assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("kind", ["rising", "falling", "equal", "teeth", "middle"])
def test_rows_that_are_hard_to_cut(kind):
    n = 5000
    rows = {
        "rising": torch.arange(n).float(),
        "falling": torch.arange(n, 0, -1).float(),
        "equal": torch.zeros(n),
        "teeth": torch.arange(n).float() % 7,
        "middle": torch.cat([torch.arange(n // 2), torch.arange(n // 2).flip(0)]).float(),
    }
    source = rows[kind][None]
    like = torch.empty_like(source), torch.empty(source.shape, dtype=torch.int64)
    for descending in (0, 1):
        got = call("sort", [source], like, (1, descending))
        want = torch.sort(source, descending=bool(descending), stable=True)
        assert torch.equal(got[0], want[0])
        assert torch.equal(got[1], want[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.uint8])
def test_the_first_of_a_row(dtype):
    for length, kept, descending in itertools.product(LENGTHS, (0, 1, 5, 16), (0, 1)):
        if kept > length:
            continue
        source = numbers(length, dtype)
        like = torch.empty(3, kept, dtype=dtype), torch.empty(3, kept, dtype=torch.int64)
        got = call("sort", [source], like, (1, descending))
        want = torch.sort(source, descending=bool(descending), stable=True)
        assert torch.equal(got[0].nan_to_num(7), want[0][:, :kept].nan_to_num(7))
        assert torch.equal(got[1], want[1][:, :kept])


@pytest.mark.parametrize("dtype", [t for t in TYPES if t != torch.bool])
def test_one_of_a_row(dtype):
    for length in LENGTHS:
        source = numbers(length, dtype)
        for which in (0, length // 2, length - 1, -1, -2):
            like = torch.empty(3, dtype=dtype), torch.empty(3, dtype=torch.int64)
            for got in (
                call("select", [source], like, (1, which)),
                call("select", [source.t().contiguous()], [t[None] for t in like], (0, which)),
            ):
                want, _ = KERNELS["select"]([source], (1, which))
                assert torch.equal(got[0].flatten().nan_to_num(7), want.nan_to_num(7))
                there = source.gather(1, got[1].reshape(3, 1))[:, 0]
                assert torch.equal(there.nan_to_num(7), want.nan_to_num(7))


@pytest.mark.parametrize("dtype", TYPES)
def test_put_by_several_indices(dtype):
    base = numbers(4, dtype, 5 * 6).reshape(5, 6, 4).nan_to_num(0, 1, 2)
    i, j = torch.randperm(5)[:3], torch.tensor([[0], [-1]])
    cases = [  # places, where they stand, dimensions, the shape of the source
        ([i], 0, 0b001, (3, 6, 4)),
        ([i - 5], 1, 0b010, (5, 3, 4)),
        ([i, j], 0, 0b011, (2, 3, 4)),
        ([i, j], 0, 0b101, (2, 3, 6)),
        ([i, j], 1, 0b110, (5, 2, 3)),
        ([i, j, torch.tensor(2)], 0, 0b111, (2, 3)),
        ([torch.tensor(1)], 2, 0b100, (5, 6)),
        ([torch.tensor(1)], 2, 0b100, ()),
        ([torch.empty(0, dtype=torch.int64)], 0, 0b001, (1, 1, 1)),
    ]
    for places, first, mask, shape in cases:
        source = numbers(max(math.prod(shape), 1), dtype, 1).reshape(shape).nan_to_num(0, 1, 2)
        for adds in (0, 1):
            given, attributes = [base, source, *places], (adds, first, mask, 1)
            (got,) = call("put", given, [torch.empty_like(base)], attributes)
            assert torch.equal(got, KERNELS["put"](given, attributes))


def test_put_adds_in_order_what_meets_in_one_place():
    base, source = torch.zeros(3, 2), torch.randn(100, 2)
    place = torch.randint(0, 3, (100,))
    (got,) = call("put", [base, source, place], [base], (1, 0, 1, 1))
    torch.testing.assert_close(got, base.index_put((place,), source, accumulate=True))


def test_places_that_are_not_there():
    base, source = torch.zeros(3, 4), torch.ones(2, 4)
    for wrong, from_end in ((3, 1), (-4, 1), (-1, 0), (2**62, 1), (-(2**63), 1)):
        with pytest.raises(IndexError, match="out of bounds for a dimension of size 3"):
            call("put", [base, source, torch.tensor([0, wrong])], [base], (0, 0, 1, from_end))


@pytest.mark.parametrize(
    ("kernel", "inputs", "outputs", "attributes"),
    [
        ("sort", ["f3x4"], ["f3x5", "i3x5"], (1, 0)),
        ("sort", ["f3x4"], ["f3x4", "i3x3"], (1, 0)),
        ("sort", ["f3x4"], ["f3x4", "f3x4"], (1, 0)),
        ("sort", ["f3x4"], ["f3x4", "i3x4"], (2, 0)),
        ("sort", ["f3x4"], ["f3x4", "i3x4"], (-1, 0)),
        ("sort", ["f3x4"], ["i3x4", "i3x4"], (1, 0)),
        ("select", ["f3x4"], ["f3", "i3"], (1, 4)),
        ("select", ["f3x4"], ["f3", "i3"], (1, -3)),
        ("select", ["f3x4"], ["f4", "i3"], (1, 0)),
        ("select", ["f3x0"], ["f3", "i3"], (1, -1)),
        ("put", ["f3x4", "f2x4", "i2"], ["f3x4"], (0, 0, 0b11, 0)),
        ("put", ["f3x4", "f2x4", "i2"], ["f3x4"], (0, 0, 0b100, 0)),
        ("put", ["f3x4", "f2x4", "i2"], ["f3x4"], (0, 2, 0b01, 0)),
        ("put", ["f3x4", "f2x4", "i2"], ["f3x4"], (0, -1, 0b01, 0)),
        ("put", ["f3x4", "f3x4", "i2"], ["f3x4"], (0, 0, 0b01, 0)),
        ("put", ["f3x4", "f4", "i2", "i3"], ["f3x4"], (0, 0, 0b11, 0)),
        ("put", ["f3x4", "f2x4", "f2"], ["f3x4"], (0, 0, 0b01, 0)),
        ("put", ["f3x4", "f2x4", "i2"], ["f3x5"], (0, 0, 0b01, 0)),
        ("put", ["f3x4", "f3x4"], ["f3x4"], (0, 0, 0, 0)),
    ],
)
def test_operands_that_do_not_fit(kernel, inputs, outputs, attributes):
    def made(text):
        dtype = torch.float32 if text[0] == "f" else torch.int64
        return torch.zeros([int(n) for n in text[1:].split("x")], dtype=dtype)

    with pytest.raises(InvalidArtifact, match="do not fit"):
        call(kernel, list(map(made, inputs)), list(map(made, outputs)), attributes)
