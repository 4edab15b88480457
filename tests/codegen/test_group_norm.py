"""Group normalisation against eager: layouts, types, sizes that vary."""

import pytest
import torch
from torch import nn

from tests.codegen.kernels import assert_generated
from tests.differential import assert_same

F = nn.functional


def _last(x):
    return x.contiguous(memory_format=torch.channels_last)


LAYOUTS = {
    "row_major": lambda x: x,
    "channels_last": _last,
    "channels_last_sliced": lambda x: _last(x)[:, :, 1:, ::2],
    "channels_last_part": lambda x: _last(x.repeat(1, 2, 1, 1))[:, 3:15],
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
    assert_generated(fn, *args, dynamic=False)


def by_groups(groups):
    def fn(x, weight=None, bias=None):
        return F.group_norm(x, groups, weight, bias)

    return fn


@pytest.mark.parametrize("shape", [(1, 8, 40, 30), (3, 16, 31, 33), (2, 8, 5, 3), (1, 8, 1500)])
@pytest.mark.parametrize("groups", [1, 2, 8])
def test_channels_last_in_parts(groups, shape):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(shape, generator=g)
    x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    weight, bias = (torch.randn(shape[1], generator=g) for _ in range(2))
    for args in ((x,), (x, weight), (x, weight, bias)):
        assert_generated(by_groups(groups), *args, dynamic=False)


def test_channels_last_is_as_exact_as_eager():
    x = _last(torch.randn(1, 8, 256, 256, generator=torch.Generator().manual_seed(1)) * 3 + 50)
    fn = by_groups(2)
    wanted = fn(x.double())
    ours = (torch.compile(fn, backend="cpu", dynamic=False)(x) - wanted).abs().max()
    assert ours <= (fn(x) - wanted).abs().max()


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
