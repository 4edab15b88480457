"""Row-major order is what PyTorch's ``is_contiguous`` says it is."""

import itertools
import random

import pytest
import torch

from dovetail.ir.size import Size
from dovetail.ir.strides import contiguous_strides, is_row_major, same_dims
from dovetail.ir.tensor import TensorDesc

S0, S1 = Size.symbol("s0"), Size.symbol("s1")


def mul(left, right):
    return Size.binary("mul", left, right)


@pytest.mark.parametrize("rank", range(4))
def test_it_agrees_with_pytorch_on_ones_and_empty_dimensions(rank):
    rng = random.Random(rank)
    memory, answers = torch.empty(10_000), set()
    for shape in itertools.product((0, 1, 2, 3), repeat=rank):
        dense = contiguous_strides(shape)
        assert dense == torch.empty(shape).stride()
        tried = [dense, dense[::-1], *(tuple(rng.choices(range(7), k=rank)) for _ in range(5))]
        for strides in tried:
            desc = TensorDesc("float32", shape, strides)
            expected = memory.as_strided(shape, strides).is_contiguous()
            assert is_row_major(desc) is expected
            assert desc.is_contiguous is expected
            answers.add(expected)
    assert answers == ({True, False} if rank else {True})


@pytest.mark.parametrize(
    ("shape", "strides", "expected"),
    [
        ((S0, S1, 2), (mul(S1, 2), 2, 1), True),
        ((S0, S1, 2), (mul(2, S1), 2, 1), True),  # spelled otherwise
        ((3, S0, S1), (mul(S1, S0), S1, 1), True),
        ((3, S0, S1), (mul(S1, S0), 1, S0), False),
        ((S0, 1, 4), (4, 17, 1), True),
        ((S0, 0, 4), (9, 9, 9), True),
        ((S0, 4), (S0, 1), False),  # true for one value of s0 only
    ],
)
def test_with_symbols_it_holds_for_all_their_values(shape, strides, expected):
    desc = TensorDesc("float32", shape, strides)
    assert is_row_major(desc) is expected
    assert desc.is_contiguous is None


def test_sizes_are_the_same_however_they_are_spelled():
    twice = Size.binary("add", S0, S0)
    assert same_dims((twice, mul(S0, S1)), (mul(2, S0), mul(S1, S0)))
    assert not same_dims((twice,), (mul(3, S0),))
    assert not same_dims((S0,), (S0, S0))


def test_divisions_without_a_remainder_are_products():
    """As PyTorch spells the strides of what it takes a dimension of apart."""

    def floordiv(left, right):
        return Size.binary("floordiv", left, right)

    squared = mul(mul(S0, S1), S1)
    assert same_dims((floordiv(squared, S1), floordiv(mul(6, S0), 3)), (mul(S1, S0), mul(2, S0)))
    assert same_dims((floordiv(mul(S0, mul(4, S1)), mul(2, S0)),), (mul(2, S1),))
    rest = Size.binary("add", squared, S0)
    for left, right in ((rest, S1), (mul(3, S0), 2), (S0, S1), (S0, Size.binary("add", S0, S1))):
        assert not same_dims((floordiv(left, right),), (S0,))
        assert same_dims((floordiv(left, right),), (floordiv(left, right),))
