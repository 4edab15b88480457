"""Products and attention in half precision: kernels where no library is fast, right everywhere."""

import pytest
import torch
from torch.nn import functional as F

import dovetail
from tests.differential import needs_code

pytestmark = needs_code
TYPES = [torch.float16, torch.bfloat16]


def off(result, exact):
    return (result.double() - exact).square().mean().sqrt().item()


def check(fn, *inputs, dynamic=None, **options):
    """A function's results have at most twice eager's error against float64."""
    torch.compiler.reset()
    with torch.no_grad():
        run = torch.compile(fn, backend="dovetail", dynamic=dynamic, options=options)
        result, eager = run(*inputs), fn(*inputs)
        exact = fn(*(x.double() if x.is_floating_point() else x for x in inputs))
    assert result.dtype == eager.dtype
    assert result.shape == eager.shape
    if result.numel():
        assert off(result, exact) <= 2 * off(eager, exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    ("m", "k", "n"), [(1, 33, 48), (3, 100, 97), (5, 300, 96), (33, 257, 64), (70, 520, 130)]
)
def test_linear(m, k, n, dtype):
    torch.manual_seed(0)
    x, w, b = torch.randn(m, k), torch.randn(n, k) / k**0.5, torch.randn(n)
    check(lambda x, w, b: F.gelu(F.linear(x, w, b)), x.to(dtype), w.to(dtype), b.to(dtype))


@pytest.mark.parametrize("dtype", TYPES)
def test_frozen(dtype):
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(70, 96).to(dtype).eval(), torch.randn(9, 70).to(dtype)
    with torch.no_grad():
        eager, run = layer(x), torch.compile(layer, backend="dovetail", options={"freeze": True})
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        assert off(run(x), exact) <= 2 * off(eager, exact)


@pytest.mark.parametrize("dtype", [*TYPES, torch.float32])
def test_rows_known_when_it_runs(dtype, tmp_path):
    torch.manual_seed(0)
    layer, rows = torch.nn.Linear(70, 96).to(dtype).eval(), torch.export.Dim("rows", min=0)
    example = (torch.randn(4, 70).to(dtype),)
    path = tmp_path / "half.dvt"
    dovetail.export(layer, example, dynamic_shapes=({0: rows},), backend="cpu").save(path)
    run = dovetail.load(path, trust=True)
    for m in (0, 1, 2, 5, 31, 300):
        x = torch.randn(m, 70).to(dtype)
        with torch.no_grad():
            eager, result = layer(x), run(x)
        exact = F.linear(x.double(), layer.weight.double(), layer.bias.double())
        assert result.shape == eager.shape
        assert m == 0 or off(result, exact) <= 2 * off(eager, exact)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "grouped"])
def test_attention(kind, dtype):
    torch.manual_seed(0)
    heads = 2 if kind == "grouped" else 4
    q, k, v = (torch.randn(2, h, 37, 16).to(dtype) for h in (4, heads, heads))
    seen = torch.rand(2, 1, 37, 37) > 0.3

    def attend(q, k, v, seen):
        mask = seen if kind == "mask" else None
        return F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=kind == "causal", enable_gqa=kind == "grouped"
        )

    check(attend, q, k, v, seen)
