"""ONNX Runtime as a vendor's graph compiler: operators, models, blobs."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from dovetail import Blob, errors, history, registry
from dovetail.backends.onnx.writer import METADATA
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from tests.codegen.random_graphs import check
from tests.differential import assert_same
from tests.models import GPT, ResNet

pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
F = nn.functional
BROKEN = torch.tensor([[1.0, torch.nan, 3.0], [-2.5, 0.5, -torch.inf], [torch.inf, 7.0, 0.0]])


def placed():
    """The operators that ran where, by backend."""
    found = {}
    for compilation in history.recent():
        for graph in compilation.graphs:
            for verdict in graph.verdicts:
                found.setdefault(verdict.backend, set()).add(verdict.op)
    return found


# ---- operators ---------------------------------------------------------------------------------

x, y = torch.randn(4, 6), torch.randn(6)
image = torch.randn(2, 4, 9, 9)
whole = torch.arange(-6, 6).reshape(3, 4)
UNARY = ["neg", "abs", "exp", "log", "sqrt", "reciprocal", "sin", "cos", "tan", "tanh", "sigmoid"]
UNARY += ["erf", "floor", "ceil", "round", "relu", "asin", "acos", "atan", "rsqrt", "isnan"]
CASES = {name: (getattr(torch, name), (BROKEN,)) for name in UNARY} | {
    "gelu": (F.gelu, (x,)),
    "gelu tanh": (lambda x: F.gelu(x, approximate="tanh"), (x,)),
    "silu": (F.silu, (x,)),
    "arithmetic": (lambda x, y: (x + y * 2 - 1) / (y.abs() + 1), (x, y)),
    "alpha": (lambda x, y: torch.add(x, y, alpha=3) + torch.rsub(x, 1, alpha=2), (x, y)),
    "mixed types": (lambda x, i: (x * i, i / 2, i + 1, i * 1.5), (torch.randn(3, 4), whole)),
    "extremes": (lambda x: (torch.maximum(x, x.flip(0)), x.clamp(-1, 1)), (BROKEN,)),
    "pow": (lambda x: (x**2, x.abs() ** 0.3, 2**x), (x,)),
    "comparisons": (lambda x: (x > 0, x <= 1, x == 3, x != 3, (x > 0) & ~(x < 2)), (BROKEN,)),
    "whole comparisons": (lambda i: (i > 0, i == 3), (whole,)),
    "where": (lambda x: (torch.where(x > 0, x, 0.5), x.masked_fill(x > 0, 2)), (BROKEN,)),
    "where of bools": (lambda x: torch.where(x > 0, x > 1, x < -1), (x,)),
    "casts": (lambda x: (x.double(), x.int(), x.bool(), (x * 3).long().float()), (x,)),
    "new": (lambda x: (torch.zeros_like(x) + torch.full((2, 1), 3.0)[0], torch.arange(6)), (x,)),
    "sums": (lambda x: (x.sum(), x.sum(0), x.mean(1, keepdim=True), x.mean()), (x,)),
    "whole sums": (lambda i: (i.sum(), i.sum(1), (i > 0).sum(0)), (whole,)),
    "largest": (lambda x: (x.amax(0), x.amin((0, 1)), x.max(), x.argmax(1)), (BROKEN,)),
    "largest and where": (lambda x: (*x.max(0), *x.min(1, keepdim=True)), (BROKEN,)),
    "whole largest": (lambda i: (i.amax(0), i.argmin(1), *i.max(1)), (whole,)),
    "any": (lambda x: ((x > 1).any(), (x > 1).all(0)), (x,)),
    "variance": (lambda x: (x.var(0), x.std(), *torch.var_mean(x, 1, correction=0)), (x,)),
    "cumsum": (lambda x: x.cumsum(-1), (x,)),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), (x,)),
    "layer norm": (lambda x, y: F.layer_norm(x, (6,), y, y), (x, y)),
    "layer norm alone": (lambda x: F.layer_norm(x, (4, 6)), (x,)),
    "products": (lambda x, y: (x @ x.t(), x @ y, torch.addmm(y, x @ x.t(), x, beta=2)), (x, y)),
    "batched": (lambda a: (a @ a, torch.baddbmm(a, a, a, alpha=2)), (torch.randn(3, 4, 4),)),
    "nothing added": (lambda n, x: torch.addmm(n, x, x.t(), beta=0), (BROKEN[0, 1].expand(4), x)),
    "convolution": (lambda i, w: F.conv2d(i, w, None, 2, 1), (image, torch.randn(5, 4, 3, 3))),
    "groups": (lambda i, w: F.conv2d(i, w, groups=2, dilation=2), (image, torch.randn(6, 2, 2, 2))),
    "transposed": (
        lambda i, w: F.conv_transpose2d(i, w, stride=2, output_padding=1),
        (image, torch.randn(4, 3, 3, 3)),
    ),
    "one dimension": (lambda i, w: F.conv1d(i[0], w), (image, torch.randn(2, 9, 3))),
    "max pool": (lambda i: F.max_pool2d(i, 3, 2, 1, return_indices=True), (image,)),
    "max pool of NaN": (lambda i: F.max_pool2d(i, 2), (BROKEN.repeat(2, 2)[None, None],)),
    "average pool": (lambda i: (F.avg_pool2d(i, 3, 2, 1), F.adaptive_avg_pool2d(i, 1)), (image,)),
    "views": (lambda x: (x.reshape(3, 8), x.t(), x[None].squeeze(0), x.unsqueeze(1)), (x,)),
    "permute": (lambda i: (i.permute(0, 2, 3, 1), i.transpose(1, -1).contiguous()), (image,)),
    "slices": (lambda x: (x[1:3], x[:, ::2], x[-1], x[:, -3:-1], x[2:100]), (x,)),
    "joins": (lambda x, y: (torch.cat([x, x * 2], 1), torch.stack([y, y])), (x, y)),
    "splits": (lambda x: (*x.split(4, 1), *x.unbind(0), *x.chunk(2)), (x,)),
    "expand": (lambda y: (y.expand(3, 6) + 1, y.repeat(2, 3), F.pad(y, (1, 2), value=5)), (y,)),
    "gathers": (
        lambda x, i: (x[i], x[:, i], F.embedding(i, x), x.index_select(1, i)),
        (x, torch.tensor([1, 0, 3])),
    ),
    "gather": (lambda x, i: x.gather(1, i), (x, torch.randint(6, (4, 2)))),
    "negative index": (lambda x, i: x[i] * 1, (x, torch.tensor([-1, 0]))),
    "strides": (lambda x: x.t() * 2, (torch.randn(5, 3).t(),)),
    "no dimensions": (lambda x: (x.sum() * 2, x[0, 0].exp(), x[0, 0].sum()), (x,)),
    "an input as it is": (lambda x: (x.detach(), x.view(-1), x + 1, x + 1), (x,)),
    "attention": (
        lambda q: F.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True),
        (torch.randn(2, 3, 5, 8),),
    ),
    "masked attention": (
        lambda q, m: F.scaled_dot_product_attention(q, q * 2, q, attn_mask=m, scale=0.3),
        (torch.randn(2, 3, 5, 8), torch.randn(5, 5)),
    ),
    "double": (lambda d: (d.softmax(0), d @ d.t(), d.exp().sum(), d.amax(0)), (x.double(),)),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_operators(name):
    """The same as eager, NaN and infinities included, and something ran in the engine."""
    fn, args = CASES[name]
    assert_same(fn, *args, backend="onnxruntime", calls=2)
    assert "onnxruntime" in placed()


def test_batch_norm_stays_whole():
    norm = nn.BatchNorm2d(4).eval()
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.5, 2)
    assert_same(norm, image, backend="onnxruntime")
    assert placed() == {"onnxruntime": {"aten._native_batch_norm_legit_no_training.default"}}


REFUSED = {
    "no elements": (lambda e: (e + 1, e.sum(0)), (torch.randn(0, 3),), "without elements"),
    "half": (lambda h: h + 1, (x.half(),), "no float16"),
    "dropout": (lambda x: F.dropout(x), (x,), "no ONNX for it"),
    "integer division": (lambda i: i // 3, (whole,), "no ONNX for it"),
    "erf of double": (lambda d: d.erf(), (x.double(),), "no float64 for it in ONNX Runtime"),
    "two indices": (lambda x, i: x[i, i], (x, torch.tensor([1, 0])), "several indices at once"),
    "mixed comparison": (lambda x, i: x > i[0, 0], (x, whole), "a comparison of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_runs_elsewhere_and_says_why(name):
    fn, args, reason = REFUSED[name]
    assert_same(fn, *args, backend="onnxruntime", seed=0)
    graphs = [g for c in history.recent() for g in c.graphs]
    reasons = [r for g in graphs for v in g.verdicts for _, r in v.refusals]
    assert any(reason in r for r in reasons), reasons


@pytest.mark.parametrize("index", [6, -1])
def test_an_index_out_of_range_raises_what_eager_raises(index):
    table = torch.randn(6, 3)
    assert_same(lambda i: F.embedding(i, table), torch.tensor([0, index]), backend="onnxruntime")


# ---- models ------------------------------------------------------------------------------------


@pytest.mark.e2e
@pytest.mark.parametrize("grad", [False, True])
def test_a_transformer(grad):
    tokens = torch.randint(50, (2, 12)), torch.randint(50, (2, 12))
    assert_same(GPT(), *tokens, backend="onnxruntime", grad=grad)
    others = {"aten.scatter.value", "aten.embedding_dense_backward.default"}
    assert placed().get("aten", set()) <= others


@pytest.mark.e2e
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_a_residual_network(grad, training):
    assert_same(
        ResNet().train(training), torch.randn(2, 3, 16, 16), backend="onnxruntime", grad=grad
    )
    assert placed().get("aten", set()) <= {"aten.copy_.default"}
    if not grad and not training:
        assert set(placed()) == {"onnxruntime"}


@pytest.mark.parametrize(
    ("stride", "padding", "dilation", "size"),
    [(1, 0, 1, 9), (2, 1, 1, 9), (2, 1, 1, 10), (3, (2, 0), (1, 2), 11), (1, 2, 2, 8)],
)
def test_gradients_of_a_convolution(stride, padding, dilation, size):
    layer = nn.Conv2d(4, 5, 3, stride, padding, dilation)
    given = torch.randn(2, 4, size, size, requires_grad=True)
    assert_same(layer, given, backend="onnxruntime", grad=True)
    assert "aten.convolution_backward.default" in placed()["onnxruntime"]


@pytest.mark.parametrize("grad", [False, True])
def test_dynamic_shapes(grad):
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    compiled = torch.compile(
        lambda x: model(x).reshape(-1, 2).softmax(-1) * x.shape[0], backend="onnxruntime",
        dynamic=True,
    )  # fmt: skip
    for rows in (2, 5, 3):
        given = torch.randn(rows, 8, requires_grad=grad)
        expected = model(given).reshape(-1, 2).softmax(-1) * rows
        found = compiled(given)
        torch.testing.assert_close(found, expected)
        if grad:
            left, right = (torch.autograd.grad(r.sin().sum(), given)[0] for r in (found, expected))
            torch.testing.assert_close(left, right)
    assert history.recent()[-1].graphs[0].kind
    assert len(history.recent()) == 1  # compiled once for all sizes


@pytest.mark.parametrize("first", [0, 10])
def test_random_graphs(first):
    problems = [p for seed in range(first, first + 10) if (p := check(seed, "onnxruntime"))]
    assert not problems, "\n".join(problems)


# ---- blobs -------------------------------------------------------------------------------------


def small():
    """relu(a @ b) and the sum of its rows."""
    square, row = TensorDesc("float32", (4, 4), (4, 1)), TensorDesc("float32", (4,), (1,))
    calls = (
        OpCall("m", "aten.mm.default", (Ref("a", square), Ref("b", square)), {}, square),
        OpCall("r", "aten.relu.default", (Ref("m", square),), {}, square),
        OpCall("s", "aten.sum.dim_IntList", (Ref("r", square), (1,)), {}, row),
    )
    inputs = (Input("a", square), Input("b", square))
    return Segment("small", inputs, calls, (Ref("r", square), Ref("s", row)))


def test_a_blob_is_an_onnx_model():
    import onnx

    blob = registry.get_backend("onnxruntime").compile(small())
    assert blob.is_portable
    model = onnx.load_from_string(blob.data)
    onnx.checker.check_model(model, full_check=True)
    assert [node.op_type for node in model.graph.node] == ["MatMul", "Relu", "ReduceSum"]
    assert [p.key for p in model.metadata_props] == [METADATA]


@pytest.mark.e2e
def test_a_blob_runs_in_another_process(tmp_path):
    (tmp_path / "blob").write_bytes(registry.get_backend("onnxruntime").compile(small()).data)
    code = f"""
import pathlib, torch, dovetail
blob = dovetail.Blob(pathlib.Path({str(tmp_path / "blob")!r}).read_bytes())
run = dovetail.get_backend("onnxruntime").load(blob)
a, b = torch.randn(4, 4), torch.randn(4, 4)
relu, rows = run([a, b])
torch.testing.assert_close(relu, torch.relu(a @ b))
torch.testing.assert_close(rows, torch.relu(a @ b).sum(1))
print("same")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "same\n", done.stderr


def test_bytes_that_are_no_blob():
    backend = registry.get_backend("onnxruntime")
    good = backend.compile(small()).data
    for data in [b"", b"nonsense" * 8, good[: len(good) // 2]]:
        with pytest.raises(errors.UnsupportedGraph):
            backend.load(Blob(data))
    other = good.replace(METADATA.encode(), b"somebody.segment")
    with pytest.raises(errors.UnsupportedGraph, match="not made from a segment"):
        backend.load(Blob(other))


def test_memory_is_pytorchs_own():
    """The engine reads and writes tensors where they are."""
    run = registry.get_backend("onnxruntime").load(
        registry.get_backend("onnxruntime").compile(small())
    )
    a, b = torch.randn(4, 4), torch.randn(4, 4)
    bound = []
    original = run._bind

    def spy(bind, name, tensor):
        bound.append((name, tensor.data_ptr()))
        original(bind, name, tensor)

    run._bind = spy
    results = run([a, b])
    assert dict(bound)["in.a"] == a.data_ptr()
    assert {address for _, address in bound[2:]} == {r.data_ptr() for r in results}


def test_without_the_packages_it_is_unavailable_and_says_why(monkeypatch):
    backend = registry.get_backend("onnxruntime")
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    answer = backend.available()
    assert not answer
    assert "pip install 'dovetail[onnx]'" in answer.reason
