"""Control flow, checkpointing, marked regions and custom operators."""

import pytest
import torch
from torch import nn
from torch._higher_order_ops import associative_scan, scan
from torch._higher_order_ops import map as control_flow_map
from torch.nn.attention.flex_attention import flex_attention
from torch.utils.checkpoint import checkpoint

from dovetail import history
from tests.differential import BACKENDS, assert_same

F = nn.functional
both = pytest.mark.parametrize("backend", BACKENDS)


def t(*shape, grad=False):
    g = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=g).requires_grad_(grad)


# ---- cond, while_loop --------------------------------------------------------------------------


def cond(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: a @ b + 1, lambda a, b: (a - b).sin(), (x, y))


def nested_cond(x):
    def inner(a):
        return torch.cond(a.mean() > 1, lambda b: b * 10, lambda b: b + 5, (a,))

    return torch.cond(x.sum() > 0, inner, lambda a: a.cos(), (x,))


def cond_with_closure(x):
    scale = x.exp()
    return torch.cond(x.sum() > 0, lambda a: a * scale, lambda a: a - scale, (x,))


def loop(x):
    def more(i, a):
        return i < 4

    def body(i, a):
        return i + 1, a * 1.5 + i

    return torch.while_loop(more, body, (torch.tensor(0), x))


@both
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_cond(sign, grad, backend):
    x = (t(4, 4).abs() * sign).requires_grad_(grad)
    assert_same(cond, x, t(4, 4, grad=grad), backend=backend, grad=grad)


@both
@pytest.mark.parametrize("scale", [3.0, 0.1, -1.0])
def test_nested_cond(scale, backend):
    assert_same(nested_cond, t(3, 4).abs() * scale, backend=backend)


@both
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_cond_with_closure(dynamic, backend):
    assert_same(cond_with_closure, t(3, 5), backend=backend, dynamic=dynamic)


@both
@pytest.mark.parametrize("dynamic", [None, True], ids=["static", "dynamic"])
def test_while_loop(dynamic, backend):
    assert_same(loop, t(3), backend=backend, dynamic=dynamic)


@both
def test_while_loop_that_runs_zero_times(backend):
    def fn(x):
        return torch.while_loop(lambda a: a.sum() < -1e9, lambda a: (a + 1,), (x,))

    assert_same(fn, t(3), backend=backend)


@both
def test_branches_may_hold_constants(backend):
    def fn(x):
        return torch.cond(
            x.sum() > 0,
            lambda x: x + (torch.arange(4) + 1),
            lambda x: nested_cond(x) - torch.tensor([1.0, 2.0, 3.0, 4.0]),
            (x,),
        )

    for sign in (1, -1):
        assert_same(fn, t(4).abs() * sign, backend=backend)


@both
def test_passes_reach_branches(backend):
    def branch(a):
        return (a + 1) * (a + 1)  # the same sum twice: one after cse

    def fn(x):
        return torch.cond(x.sum() > 0, branch, lambda a: a * 2, (x,))

    assert_same(fn, t(3), backend=backend)
    (compilation,) = history.recent()
    texts = [segment.text for segment in compilation.graphs[-1].segments]
    (text,) = (text for text in texts if "segment @true_graph_0" in text)
    branch_text = text[text.index("segment @true_graph_0") :].split("}")[0]
    assert branch_text.count("aten.add") == 1


# ---- other higher-order operators: called as they are, their bodies run by us ------------------


def scanned(x):
    return scan(lambda carry, y: (carry + y, carry * y), torch.zeros(3), x)


def scanned_in_parallel(x):
    return associative_scan(lambda a, b: a * b, x, 0, combine_mode="generic")


def mapped(x):
    return control_flow_map(lambda row: row.sin() + 1, x)


def flex(x):
    def near(score, b, h, q, k):
        return torch.where((q - k).abs() < 4, score * 2, float("-inf"))

    q = x.reshape(1, 1, 4, 3).repeat(1, 2, 32, 6)[..., :16]
    return flex_attention(q, q, q, score_mod=near)


@both
@pytest.mark.parametrize("fn", [scanned, scanned_in_parallel, mapped, flex])
def test_other_higher_order_operators(fn, backend):
    assert_same(fn, t(4, 3), backend=backend)


# ---- checkpoint --------------------------------------------------------------------------------


@both
def test_checkpoint(backend):
    layer = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            return x + checkpoint(self.layer, x, use_reentrant=False)

    assert_same(Model(), t(3, 4, grad=True), backend=backend, grad=True, calls=2)


@both
def test_checkpoint_with_dropout(backend):
    def block(x):
        return F.dropout(x.sin(), 0.5) * 2

    def fn(x):
        return checkpoint(block, x, use_reentrant=False) + F.dropout(x, 0.1)

    assert_same(fn, t(4, 5, grad=True), backend=backend, grad=True, seed=3)


# ---- regions -----------------------------------------------------------------------------------


@torch.compiler.nested_compile_region
def region(x, w):
    return torch.relu(x @ w) + x


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_nested_compile_region(grad, backend):
    def fn(x, w1, w2):
        return region(region(x, w1), w2).sum(0)

    args = (t(4, 4, grad=grad), t(4, 4, grad=grad) / 2, t(4, 4, grad=grad) / 3)
    args = tuple(a.detach().requires_grad_(grad) for a in args)
    assert_same(fn, *args, backend=backend, grad=grad)


# ---- custom operators --------------------------------------------------------------------------


@torch.library.custom_op("dovetail_tests::scaled_sin", mutates_args=())
def scaled_sin(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.sin(x) * scale


@scaled_sin.register_fake
def _(x, scale):
    return torch.empty_like(x)


def _setup(ctx, inputs, output):
    ctx.save_for_backward(inputs[0])
    ctx.scale = inputs[1]


def _backward(ctx, grad):
    (x,) = ctx.saved_tensors
    return grad * x.cos() * ctx.scale, None


scaled_sin.register_autograd(_backward, setup_context=_setup)


@torch.library.custom_op("dovetail_tests::accumulate", mutates_args=("total",))
def accumulate(total: torch.Tensor, x: torch.Tensor) -> None:
    total.add_(x)


@torch.library.custom_op("dovetail_tests::accumulate_and_count", mutates_args=("total", "count"))
def accumulate_and_count(total: torch.Tensor, count: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    total.add_(x)
    count.add_(1)
    return x * 2


@accumulate_and_count.register_fake
def _(total, count, x):
    return torch.empty_like(x)


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_custom_op(grad, backend):
    fn = lambda x: scaled_sin(x * 2, 3.0) + 1  # noqa: E731
    assert_same(fn, t(5, grad=grad), backend=backend, grad=grad)


@both
def test_custom_op_that_mutates_an_input(backend):
    def fn(total, x):
        accumulate(total, x * 2)
        return total + 1

    assert_same(fn, t(4), t(4), backend=backend, calls=2)


@both
def test_custom_op_that_mutates_an_intermediate(backend):
    def fn(x):
        total = x * 2
        before = total + 0
        accumulate(total, x)
        return total, before

    assert_same(fn, t(4), backend=backend)


@both
def test_custom_op_that_mutates_a_view(backend):
    def fn(total, x):
        accumulate(total[1], x)
        return total.sum()

    assert_same(fn, t(3, 4), t(4), backend=backend)


@both
def test_custom_op_that_mutates_several_and_returns(backend):
    def fn(total, count, x):
        y = accumulate_and_count(total, count, x)
        return y + total, count

    assert_same(fn, t(4), torch.zeros(1), t(4), backend=backend, calls=2)


# ---- several devices ---------------------------------------------------------------------------


@both
def test_tensors_on_several_devices(backend):
    def fn(x, shape_only):
        return x * 2, shape_only.t() @ shape_only, x.to("meta") + 1

    compiled = torch.compile(fn, backend=backend, fullgraph=True)
    here, there, moved = compiled(t(3), torch.empty(3, 4, device="meta"))
    torch.testing.assert_close(here, t(3) * 2)
    assert there.device.type == moved.device.type == "meta"
    assert there.shape == (4, 4)
    assert moved.shape == (3,)
