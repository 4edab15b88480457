"""CUDA's settings, as far as they are there without a GPU."""

import contextlib

import pytest
import torch

from dovetail.capture._torch.cuda import product_settings

MATMUL = torch.backends.cuda.matmul


@contextlib.contextmanager
def having(name, value):
    before = getattr(MATMUL, name)
    setattr(MATMUL, name, value)
    try:
        yield
    finally:
        setattr(MATMUL, name, before)


def test_float32_is_rounded_where_that_is_allowed():
    assert product_settings(float32=True) is False
    with having("allow_tf32", True):
        assert product_settings(float32=True) is True
        assert product_settings(float32=False) is False


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("allow_fp16_reduced_precision_reduction", False),
        ("allow_bf16_reduced_precision_reduction", False),
        ("allow_fp16_accumulation", True),
    ],
)
def test_other_sums_than_usual_are_pytorchs(name, value):
    assert product_settings(float32=False) is False
    with having(name, value):
        assert product_settings(float32=False) is None


def test_sums_in_one_order_are_pytorchs():
    torch.use_deterministic_algorithms(True)
    try:
        assert product_settings(float32=False) is None
    finally:
        torch.use_deterministic_algorithms(False)
