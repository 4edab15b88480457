"""Group normalisation against eager: layouts, types, sizes that vary."""

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated
from tests.differential import assert_same

F = nn.functional
LAYOUTS = {
    "row_major": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "transposed": lambda x: x.transpose(2, 3),
    "sliced": lambda x: x[:, :, 1:, ::2],
    "without_space": lambda x: x[:, :, 0, 0],
    "one_point": lambda x: x[:, :, :1, :1],
}


def fn(x, weight, bias):
    return F.silu(F.group_norm(x, 3, weight, bias))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts(layout, dtype):
    g = torch.Generator().manual_seed(1)
    x = LAYOUTS[layout](torch.randn(2, 12, 7, 9, generator=g).to(dtype))
    args = (x, torch.randn(12, generator=g).to(dtype), torch.randn(12, generator=g).to(dtype))
    if dtype != torch.float32 or layout in ("channels_last", "one_point"):
        assert_same(fn, *args, backend="cpu", dynamic=False)  # PyTorch has a kernel for those
    else:
        assert_generated(fn, *args, dynamic=False)


@pytest.mark.parametrize("layout", ["row_major", "channels_last"])
def test_gradients(layout):
    g = torch.Generator().manual_seed(1)
    x = LAYOUTS[layout](torch.randn(2, 12, 5, 7, generator=g)).requires_grad_()
    weight, bias = (torch.randn(12, generator=g).requires_grad_() for _ in range(2))
    assert_same(fn, x, weight, bias, backend="cpu", grad=True, dynamic=False)


@pytest.mark.parametrize("layout", ["row_major", "channels_last"])
def test_sizes_that_vary(layout):
    compiled = torch.compile(fn, backend="cpu", dynamic=True)
    weight, bias = torch.randn(12), torch.randn(12)
    for shape in [(2, 12, 5, 7), (3, 12, 8, 9), (4, 12, 16, 3)]:
        x = LAYOUTS[layout](torch.randn(shape))
        torch.testing.assert_close(compiled(x, weight, bias), fn(x, weight, bias))
