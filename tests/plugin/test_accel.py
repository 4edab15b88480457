"""examples/accel_c under torch.compile: results, what ran where, and what was copied."""

import copy
from collections import Counter

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors, history
from tests.models import GPT, ResNet

pytestmark = pytest.mark.e2e
VIEWS = {
    "aten.alias.default",
    "aten.expand.default",
    "aten.permute.default",
    "aten.reshape.default",
    "aten.select.int",
    "aten.slice.Tensor",
    "aten.squeeze.dims",
    "aten.unsqueeze.default",
}


class ResidualMLP(nn.Module):
    """Two linear layers around a relu, added to the input."""

    def __init__(self, width=16):
        super().__init__()
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        return x + self.down(torch.relu(self.up(x)))


def claimed(graphs):
    """How often each operator is said to run on the accelerator, views aside."""
    return Counter(
        v.op for g in graphs for v in g.verdicts if v.backend == "accel_c" and v.op not in VIEWS
    )


def graphs():
    return [g for compilation in history.recent() for g in compilation.graphs]


def step(model, *inputs):
    """Outputs and every parameter's gradient."""
    model.zero_grad()
    out = model(*inputs)
    (out if out.ndim == 0 else out.square().mean()).backward()
    return [out.detach(), *(p.grad for p in model.parameters())]


@pytest.mark.parametrize(
    ("make", "inputs", "ops"),
    [
        pytest.param(ResNet, (torch.randn(2, 3, 16, 16),), {"aten.relu.default"}, id="resnet"),
        pytest.param(
            GPT,
            (torch.randint(50, (2, 12)), torch.randint(50, (2, 12))),
            {"aten.native_layer_norm.default"},
            id="gpt",
        ),
    ],
)
def test_trains_like_eager_and_the_report_is_true(accel, make, inputs, ops):
    model = make()
    reference = copy.deepcopy(model)
    compiled = torch.compile(model, backend=accel.name)
    found = step(compiled, *inputs)
    torch.testing.assert_close(found, step(reference, *inputs), rtol=1e-3, atol=1e-5)
    kinds = [g.kind for g in graphs()]
    assert kinds == ["forward", "backward"]
    ran = accel.ran()
    assert ran == claimed(graphs())
    assert ops | {"aten.addmm.default", "aten.mm.default", "aten.add.Tensor"} <= ran.keys()
    refused = [v for g in graphs() for v in g.verdicts if v.refusals]
    assert {v.backend for v in refused} == {"aten"}
    assert {r for v in refused for r in v.refusals} >= {("accel_c", "there is no kernel for it")}


@pytest.mark.parametrize("make", [ResNet, GPT])
def test_inference_like_eager(accel, make):
    model = make().eval()
    x = torch.randn(2, 3, 16, 16) if make is ResNet else torch.randint(50, (2, 12))
    compiled = torch.compile(model, backend=accel.name)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
            assert accel.ran() == claimed(graphs())


def test_a_residual_mlp_copies_what_a_person_would(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name)
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        assert accel.copies() == (5, 1)  # two weights, two biases and the input; the result
        for _ in range(2):
            compiled(torch.randn(4, 16))
            assert accel.copies() == (1, 1)


def test_forward_and_backward_share_the_weights(accel):
    model, x = ResidualMLP(), torch.randn(4, 16, requires_grad=True)
    compiled = torch.compile(model, backend=accel.name)
    weights = sum(p.numel() * 4 for p in model.parameters())

    def sent():
        before = accel.native.counters()["upload_bytes"]
        step(compiled, x)
        return accel.native.counters()["upload_bytes"] - before

    first, second = sent(), sent()
    assert first == second + weights


def uploads(accel, model, compiled, x):
    """Sizes of what is sent in one call, the input left out."""
    accel.log()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    sizes = [int(line[1]) for line in accel.log() if line[0] == "h2d"]
    sizes.remove(x.numel() * 4)
    return sorted(sizes)


def test_after_an_optimiser_step_exactly_what_changed_is_sent(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    model.up.weight.requires_grad_(False)
    compiled = torch.compile(model, backend=accel.name)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    assert len(uploads(accel, model, compiled, x)) == 4
    assert uploads(accel, model, compiled, x) == []
    model(x).sum().backward()
    optimizer.step()
    changed = (model.up.bias, model.down.weight, model.down.bias)
    assert uploads(accel, model, compiled, x) == sorted(p.numel() * 4 for p in changed)
    assert uploads(accel, model, compiled, x) == []


def test_a_parameter_given_other_memory_is_sent_again(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name)
    uploads(accel, model, compiled, x)
    model.up.weight.data = torch.randn(32, 16)
    assert uploads(accel, model, compiled, x) == [32 * 16 * 4]


UNCHECKED = {"check_weights": False}  # the cheap check at each use alone


def test_a_fused_step_is_noticed_and_only_its_parameters_are_sent(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name, options=UNCHECKED)
    uploads(accel, model, compiled, x)
    changed = model.up.weight
    optimizer = torch.optim.AdamW([changed], lr=0.1, fused=True, weight_decay=0)
    changed.grad = torch.zeros_like(changed)
    changed.grad[1, 2] = 1  # an element that the eight words compared of a tensor do not have
    optimizer.step()
    assert uploads(accel, model, compiled, x) == [changed.numel() * 4]
    assert uploads(accel, model, compiled, x) == []


def test_swapped_parameters_are_sent_again(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name, options=UNCHECKED)
    uploads(accel, model, compiled, x)
    torch.utils.swap_tensors(model.up.weight, nn.Parameter(torch.randn(32, 16)))
    assert uploads(accel, model, compiled, x) == [32 * 16 * 4]


def test_writes_that_pytorch_does_not_count(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name, options=UNCHECKED)
    uploads(accel, model, compiled, x)
    model.up.weight.data.mul_(2)
    assert uploads(accel, model, compiled, x) == [32 * 16 * 4]
    model.up.weight.data[1, 2] += 1
    dovetail.refresh(model)
    assert len(uploads(accel, model, compiled, x)) == 4


def test_the_check_of_contents_names_what_a_device_copy_lacks(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name, options={"check_weights": True})
    uploads(accel, model, compiled, x)
    model.up.weight.data[1, 2] += 1
    with pytest.warns(errors.StaleWeights, match=r"^up\.weight \(float32\[32, 16\]\): "):
        assert uploads(accel, model, compiled, x) == [32 * 16 * 4]


def test_memory_of_a_model_that_is_gone_is_given_back(accel):
    model, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(model, backend=accel.name)
    with torch.no_grad():
        compiled(x)
    assert accel.native.get("memory.used") > 4 * 1024
    import gc

    del model, compiled
    torch.compiler.reset()
    gc.collect()
    assert accel.native.get("memory.used") == 0


def test_dynamic_shapes(accel):
    model = nn.Sequential(ResidualMLP(), nn.ReLU(), nn.Softmax(-1))
    compiled = torch.compile(model, backend=accel.name, dynamic=True)
    for rows in (3, 5, 3, 7):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(step(compiled, x), step(model, x))
    assert history.recent()
    assert accel.ran()["aten.addmm.default"] == 8


def test_views_and_strides(accel):
    def fn(a, b):
        y = torch.bmm(a.transpose(1, 2), b[:, 1:4])
        z = torch.relu(y[:, 1].unsqueeze(1).expand(-1, 3, -1))
        return (z * y).permute(2, 0, 1), torch.softmax(y + y.mT, 1), a.view(-1)

    a, b = torch.randn(2, 3, 3), torch.randn(2, 5, 3)
    compiled = torch.compile(fn, backend=accel.name)
    torch.testing.assert_close(compiled(a, b), fn(a, b))
    assert accel.ran() == claimed(graphs())


def test_a_constant_of_the_graph_is_sent_once(accel):
    table = torch.randn(4, 16)
    model = dovetail.export(_Constant(table), (torch.randn(4, 16),), backend=accel.name)
    accel.log()
    for copies in (2, 1):
        x = torch.randn(4, 16)
        torch.testing.assert_close(model(x), x * table)
        assert accel.copies() == (copies, 1)


class _Constant(nn.Module):
    def __init__(self, table):
        super().__init__()
        self.register_buffer("table", table)

    def forward(self, x):
        return x * self.table


def test_empty_and_scalar_tensors(accel):
    def fn(x, s):
        return torch.relu(x) + s

    def normalise(x):
        return torch.softmax(x, 0), nn.functional.layer_norm(x, x.shape[1:] or x.shape)

    compiled = torch.compile(fn, backend=accel.name)
    for shape in [(0, 4), (), (1,)]:
        x, s = torch.randn(shape), torch.randn(())
        torch.testing.assert_close(compiled(x, s), fn(x, s))
    torch.testing.assert_close(torch.compile(torch.softmax, backend=accel.name)(s, 0), s * 0 + 1)
    for shape in [(0, 4), (2, 0), (3, 4)]:
        x = torch.randn(shape)
        found = torch.compile(normalise, backend=accel.name)(x)
        torch.testing.assert_close(found, normalise(x))


def test_other_dtypes_run_on_the_host_with_a_reason(accel):
    compiled = torch.compile(torch.relu, backend=accel.name)
    x = torch.randn(3, dtype=torch.float64)
    torch.testing.assert_close(compiled(x), torch.relu(x))
    (verdict,) = graphs()[0].verdicts
    assert verdict.refusals == (("accel_c", "only float32 is implemented"),)
    assert accel.ran() == Counter()


def test_threads(accel):
    from concurrent.futures import ThreadPoolExecutor

    model = ResidualMLP()
    compiled = torch.compile(model, backend=accel.name)
    inputs = [torch.randn(4, 16) for _ in range(16)]
    with torch.no_grad():
        compiled(inputs[0])

    def run(x):
        with torch.no_grad():
            return compiled(x)

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, inputs))
    with torch.no_grad():
        torch.testing.assert_close(found, [model(x) for x in inputs])
