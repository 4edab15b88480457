"""The same capture on a CUDA device, and across devices."""

import copy

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

import dovetail
from dovetail import errors, history, registry
from tests.differential import BACKENDS, assert_same
from tests.models import GPT, ResNet

F = nn.functional
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
OURS = ("cuda",) if registry.default_backend("cuda") == "cuda" else ()
both = pytest.mark.parametrize("backend", [*BACKENDS, *OURS])


def t(*shape, grad=False, device="cuda"):
    return torch.randn(*shape, device=device).requires_grad_(grad)


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_programs(grad, backend):
    fn = lambda x, w: F.layer_norm(F.gelu(x @ w), (8,)).softmax(-1)  # noqa: E731
    assert_same(fn, t(4, 8, grad=grad), t(8, 8, grad=grad), backend=backend, grad=grad)


@both
def test_tensors_on_several_devices(backend):
    def fn(x, y, scale):
        moved = y.to("cuda") + x
        return moved * scale, (moved.cpu() + y).sin(), x.sum()

    scale = torch.tensor(2.0)  # a zero-dimensional CPU tensor mixes with CUDA ones
    assert_same(fn, t(3), t(3, device="cpu"), scale, backend=backend)


@both
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
def test_dropout_gives_eagers_numbers(grad, backend):
    fn = lambda x: F.dropout(x, 0.5) + torch.rand_like(x)  # noqa: E731
    assert_same(fn, t(64, 64, grad=grad), backend=backend, grad=grad, seed=3, calls=2)


@both
def test_mutation(backend):
    assert_same(lambda x: x.add_(1).relu_(), t(5), backend=backend, calls=2)


UNCHECKED = {"freeze": True, "check_weights": False}  # the cheap check at each call alone


@pytest.mark.parametrize(
    ("kind", "form"),
    [
        ("AdamW", {"fused": True}),
        ("SGD", {"fused": True}),
        ("Adam", {"fused": True}),
        ("AdamW", {"capturable": True}),
        ("Adam", {"foreach": True}),
        ("Adam", {"foreach": False}),
    ],
    ids=str,
)
def test_steps_of_optimisers_reach_frozen_weights(kind, form):
    model, x = nn.Sequential(nn.Linear(32, 32), nn.ReLU()).cuda(), t(4, 32)
    run = torch.compile(model, backend="aten", options=UNCHECKED)
    optimiser = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **form)
    for _ in range(3):
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x))
        model(x).square().mean().backward()
        optimiser.step()


@torch.no_grad()
def test_the_replay_of_a_cuda_graph_needs_refresh_and_is_found_by_the_check():
    model, x = nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32)).eval().cuda(), t(4, 32)
    weight = model[0].weight
    weight.mul_(1)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        weight.mul_(1.5)
    run = torch.compile(model, backend="aten", options=UNCHECKED)
    run(x)
    version = weight._version
    graph.replay()
    assert weight._version == version
    dovetail.refresh(model)
    torch.testing.assert_close(run(x), model(x))
    run = torch.compile(model, backend="aten", options={"freeze": True, "check_weights": True})
    run(x)
    graph.replay()
    with pytest.warns(errors.StaleWeights, match="^0.weight"):
        torch.testing.assert_close(run(x), model(x))


@torch.no_grad()
def test_freezing_a_resnet():
    model, x = ResNet().eval().cuda(), t(2, 3, 16, 16)
    run = torch.compile(model, backend="aten", options={"freeze": True})
    torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)
    model.stem[0].weight.mul_(2)
    torch.testing.assert_close(run(x), model(x), rtol=1e-3, atol=1e-3)


def test_training_a_resnet():
    eager = ResNet().cuda()
    ours = copy.deepcopy(eager)
    x = t(4, 3, 16, 16)
    eager(x).sum().backward()
    torch.compile(ours, backend="aten")(x).sum().backward()
    for a, b in zip(eager.parameters(), ours.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=1e-3, atol=1e-3)


def test_export():
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)).cuda(), t(3, 4)
    torch.testing.assert_close(dovetail.export(model, (x,))(x), model(x))


def test_the_default_backend_is_chosen_by_device():
    try:
        dovetail.set_default_backend("reference", device="cuda")
        torch.compile(lambda x: x + 1, backend="dovetail")(t(3))
        torch.compile(lambda x: x * 2, backend="dovetail")(t(3, device="cpu"))
    finally:
        dovetail.set_default_backend(None, device="cuda")
    usual = registry.default_backend("cpu")
    assert [c.backend for c in history.recent()] == ["reference", usual]


def test_gpt_in_bfloat16():
    model = GPT(layers=1).cuda().bfloat16().eval()

    class OnDevice(nn.Module):
        def __init__(self):
            super().__init__()
            self.blocks = model.blocks

        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return x

    assert_same(OnDevice(), t(2, 8, 32).bfloat16(), backend="aten")


# ---- generated kernels -------------------------------------------------------------------------

needs_kernels = pytest.mark.skipif(not OURS, reason="needs Triton")
PROGRAMS = {
    "pointwise": (lambda x: F.gelu(x * 2) * torch.sigmoid(x) + x.tanh() - x.exp(), (101, 37)),
    "softmax of odd rows": (lambda x: x.softmax(-1), (33, 257)),
    "softmax of long rows": (lambda x: x.softmax(-1), (9, 200001)),
    "softmax of columns": (lambda x: x.log_softmax(0), (700, 130)),
    "layer norm": (lambda x: F.layer_norm(x, (513,)), (130, 513)),
    "few rows": (lambda x: (x.sum(-1), F.layer_norm(x, (300000,))), (3, 300000)),
    "sums": (lambda x: (x.sum(), x.sum(0), x.mean(1), x.amax(0), x.argmax(1)), (1000, 515)),
    "group norm": (lambda x: F.silu(F.group_norm(x, 8)), (2, 32, 14, 14)),
    "transposed": (lambda x: x.t().contiguous() * 2, (513, 700)),
    "joined and padded": (lambda x: (torch.cat((x, x + 1), 1), F.pad(x, (3, 5))), (32, 100)),
    "running sums": (lambda x: x.cumsum(-1), (40, 3000)),
    "none": (lambda x: (x * 2, x.sum(1)), (0, 5)),
}


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_kernels_are_as_exact_as_eager(name, dtype):
    fn, shape = PROGRAMS[name]
    x = t(*shape).to(dtype)
    found = torch.compile(fn, backend="cuda", fullgraph=True, options={"strict": True})(x)
    for ours, eager, exact in zip(
        *map(pytree.tree_leaves, (found, fn(x), fn(x.double()))), strict=True
    ):
        assert (ours.dtype, ours.shape, ours.stride()) == (eager.dtype, eager.shape, eager.stride())
        if not ours.is_floating_point():
            assert torch.equal(ours, eager)
            continue
        error, theirs = ((y.double() - exact).norm() for y in (ours, eager))
        assert error <= 2 * theirs + 4e-7 * exact.norm()


@needs_kernels
def test_sizes_that_vary_and_memory_that_is_not_aligned():
    run = torch.compile(lambda x: (x * 2).softmax(-1), backend="cuda", dynamic=True)
    for n in (5, 1000, 4097):
        x = t(n, n // 2 + 3)
        torch.testing.assert_close(run(x), (x * 2).softmax(-1))
    odd = t(1001)[1:]
    torch.testing.assert_close(torch.compile(lambda x: x * 2, backend="cuda")(odd), odd * 2)


@needs_kernels
def test_kernels_run_on_the_current_stream_and_in_a_cuda_graph():
    run, stream = torch.compile(lambda x: x * 2 + 1, backend="cuda"), torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = t(1 << 20)
        y = run(x)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2 + 1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x)
    x.fill_(3)
    graph.replay()
    torch.cuda.synchronize()
    assert bool((y == 7).all())


# ---- CUDA graphs -------------------------------------------------------------------------------


@needs_kernels
@torch.no_grad()
def test_calls_are_recorded_and_replayed(monkeypatch):
    from dovetail.backends.cuda.replay import WARM, ReplayedCall

    replayed, replay = [], ReplayedCall._replay
    monkeypatch.setattr(
        ReplayedCall, "_replay", lambda self, inputs: replayed.append(1) or replay(self, inputs)
    )
    model = nn.Sequential(nn.Linear(256, 256), nn.GELU(), nn.LayerNorm(256)).cuda()
    run = torch.compile(model, backend="cuda", mode="reduce-overhead")
    inputs = [t(300, 256) for _ in range(8)]
    found = [run(x) for x in inputs]
    assert len(replayed) == len(inputs) - WARM
    for x, y in zip(inputs, found, strict=True):  # no result was overwritten by a later one
        torch.testing.assert_close(y, model(x))
    model[0].weight.mul_(2)
    torch.testing.assert_close(run(inputs[0]), model(inputs[0]))
    model[0].weight.data = t(256, 256)  # memory moves: it is recorded again
    for x in inputs:
        torch.testing.assert_close(run(x), model(x))
    with torch.cuda.stream(torch.cuda.Stream()) as _:
        torch.testing.assert_close(run(inputs[0]), model(inputs[0]))


@needs_kernels
@torch.no_grad()
def test_what_cannot_be_recorded_runs_as_ever():
    draws = torch.compile(lambda x: F.dropout(x, 0.5), backend="cuda", mode="reduce-overhead")
    shares = torch.compile(lambda x: (x * 2, x.t()), backend="cuda", mode="reduce-overhead")
    waits = torch.compile(lambda x: x[x > 0] * 2, backend="cuda", mode="reduce-overhead")
    writes = torch.compile(lambda x: x.add_(1), backend="cuda", mode="reduce-overhead")
    x = t(64, 64)
    for seed in range(5):
        torch.manual_seed(seed)
        wanted = F.dropout(x, 0.5)
        torch.manual_seed(seed)
        torch.testing.assert_close(draws(x), wanted)
        torch.testing.assert_close(shares(x), (x * 2, x.t()))
        torch.testing.assert_close(waits(x), x[x > 0] * 2)
        y = x.clone()
        torch.testing.assert_close(writes(y), x + 1)
        torch.testing.assert_close(y, x + 1)
        x = t(64, 64)


@needs_kernels
@torch.no_grad()
def test_replays_for_several_sizes():
    run = torch.compile(lambda x: (x * 2).softmax(-1), backend="cuda", dynamic=True,
                        mode="reduce-overhead")  # fmt: skip
    for n in (64, 100, 64, 100, 64, 100, 64, 100, 64, 100):
        x = t(n, 50)
        torch.testing.assert_close(run(x), (x * 2).softmax(-1))
