"""torch.export programs through the same pipeline."""

import pytest
import torch
from torch import nn
from torch._functorch._aot_autograd.utils import register_buffer_assignment_hook
from torch.export import Dim

import dovetail
from dovetail import errors
from tests.models import GPT, ResNet

both = pytest.mark.parametrize("backend", ["reference", "aten"])


def close(a, b):
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


class Accumulator(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))
        self.register_buffer("scale", torch.full((3,), 2.0))

    def forward(self, x):
        self.total += x * self.scale
        return self.total * 1


class Nested(nn.Module):
    def forward(self, x, *, scale, extra=None):
        return {"sum": x + extra["a"], "list": [x * scale, (x.shape[0], None)]}


@both
def test_mlp(backend):
    model, x = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.randn(3, 4)
    artifact = dovetail.export(model, (x,), backend=backend)
    close(artifact(x), model(x))
    other = torch.randn(3, 4)
    close(artifact(other), model(other))
    assert not artifact(x).requires_grad


@both
def test_gpt_and_resnet(backend):
    gpt, tokens = GPT(layers=2).eval(), torch.randint(0, 50, (2, 8))
    close(dovetail.export(gpt, (tokens,), backend=backend)(tokens), gpt(tokens))
    resnet, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    artifact = dovetail.export(resnet, (x,), backend=backend)
    close(artifact(x), resnet(x))
    (every,) = (g for g in artifact.record.graphs if g.kind == "inference")
    assert "batch_norm" not in every.segments[0][1]


@both
def test_parameters_are_constants(backend):
    model, x = nn.Linear(3, 3), torch.randn(2, 3)
    artifact = dovetail.export(model, (x,), backend=backend)
    expected = model(x)
    with torch.no_grad():
        model.weight = nn.Parameter(torch.zeros_like(model.weight))
    close(artifact(x), expected)


@both
def test_mutated_buffers_are_state(backend):
    model, x = Accumulator(), torch.ones(3)
    artifact = dovetail.export(model, (x,), backend=backend)
    for step in (1, 2, 3):
        close(artifact(x), torch.full((3,), 2.0 * step))
    close(artifact.state["total"], torch.full((3,), 6.0))
    assert list(artifact.state) == ["total"]
    close(model.total, torch.zeros(3))  # the model's own buffer is left alone


@both
def test_batch_norm_in_training_mode_keeps_its_statistics(backend):
    model, other = nn.BatchNorm1d(3), nn.BatchNorm1d(3)
    artifact = dovetail.export(model, (torch.randn(4, 3),), backend=backend)
    for _ in range(3):
        x = torch.randn(4, 3)
        close(artifact(x), other(x))
    close(artifact.state["running_mean"], other.running_mean)
    close(artifact.state["num_batches_tracked"], other.num_batches_tracked)


@both
def test_inputs_written_in_place(backend):
    class Model(nn.Module):
        def forward(self, x):
            x.add_(1)
            return x * 2

    artifact = dovetail.export(Model(), (torch.zeros(3),), backend=backend)
    x = torch.zeros(3)
    close(artifact(x), torch.full((3,), 2.0))
    close(x, torch.ones(3))


@both
def test_keywords_and_nested_outputs(backend):
    x, extra = torch.randn(3), {"a": torch.randn(3)}
    artifact = dovetail.export(Nested(), (x,), {"scale": 2.0, "extra": extra}, backend=backend)
    out = artifact(x, scale=2.0, extra=extra)
    close(out["sum"], x + extra["a"])
    close(out["list"][0], x * 2)
    assert out["list"][1] == (3, None)


@both
def test_dynamic_shapes(backend):
    model = GPT(layers=1).eval()
    shapes = {"tokens": {0: Dim("batch", max=16), 1: Dim("length", min=2, max=64)}}
    artifact = dovetail.export(
        model, (torch.randint(0, 50, (3, 8)),), dynamic_shapes=shapes, backend=backend
    )
    for shape in [(3, 8), (5, 8), (2, 33), (16, 64)]:
        tokens = torch.randint(0, 50, shape)
        close(artifact(tokens), model(tokens))


@both
def test_numbers_computed_from_sizes(backend, tmp_path):
    class Model(nn.Module):
        def forward(self, x):
            y = x * (1 / x.shape[0]) + x.shape[1] ** 0.5
            y = nn.functional.pad(y, (0, x.shape[1] // 2))
            return y, nn.functional.celu(y, x.shape[0] / 3), y.var(0) / (x.shape[1] / 7)

    shapes = {"x": {0: Dim("batch", min=2, max=50), 1: Dim("length", min=2, max=50)}}
    artifact = dovetail.export(
        Model(), (torch.randn(3, 4),), dynamic_shapes=shapes, backend=backend
    )
    artifact.save(tmp_path / "m.dvt")
    loaded = dovetail.load(tmp_path / "m.dvt")
    for shape in [(3, 4), (2, 9), (31, 50)]:
        x = torch.randn(shape)
        for one in (artifact, loaded):
            for found, expected in zip(one(x), Model()(x), strict=True):
                close(found, expected)


@both
def test_derived_dimensions(backend):
    class Model(nn.Module):
        def forward(self, x, y):
            return x + y[::2]

    half = Dim("half", min=2, max=50)
    shapes = {"x": {0: half}, "y": {0: 2 * half}}
    artifact = dovetail.export(
        Model(), (torch.randn(4), torch.randn(8)), dynamic_shapes=shapes, backend=backend
    )
    x, y = torch.randn(7), torch.randn(14)
    close(artifact(x, y), x + y[::2])
    with pytest.raises(errors.GuardFailed, match="expected"):
        artifact(x, torch.randn(13))


@both
def test_parameters_written_are_state(backend):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3))

        def forward(self, x):
            with torch.no_grad():
                self.w.add_(1)
            return x + self.w

    artifact = dovetail.export(Model(), (torch.zeros(3),), backend=backend)
    artifact(torch.zeros(3))
    close(artifact(torch.zeros(3)), torch.full((3,), 2.0))


@both
def test_an_input_that_is_written_and_returned_is_that_input(backend):
    class Model(nn.Module):
        def forward(self, x):
            x.mul_(2)
            return x + 1, x

    x = torch.ones(3)
    more, same = dovetail.export(Model(), (torch.ones(3),), backend=backend)(x)
    assert same is x
    close(x, torch.full((3,), 2.0))
    close(more, torch.full((3,), 3.0))


def test_keywords_and_dictionaries_in_any_order():
    class Model(nn.Module):
        def forward(self, x, *, mask, scale):
            return x * mask["b"] + scale - mask["a"]

    one = torch.ones(2)
    artifact = dovetail.export(Model(), (one,), {"mask": {"a": one, "b": one}, "scale": one})
    close(artifact(one, scale=one * 5, mask={"b": one * 2, "a": one * 0}), one * 7)


def test_autocast_does_not_reach_in():
    model, x = nn.Linear(4, 4), torch.randn(2, 4)
    artifact = dovetail.export(model, (x,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert artifact(x).dtype is torch.float32


def test_a_derived_size_that_no_number_gives_is_named():
    class Model(nn.Module):
        def forward(self, x):
            return x.view(-1, 2).sum(1)

    artifact = dovetail.export(
        Model(), (torch.randn(8),), dynamic_shapes=({0: 2 * Dim("half", max=50)},)
    )
    assert artifact(torch.ones(10)).shape == (5,)
    with pytest.raises(errors.GuardFailed, match="size 7 in dimension 0, expected a value of"):
        artifact(torch.ones(7))


def test_none_is_a_value_to_compare_with():
    class Model(nn.Module):
        def forward(self, x, mask=None):
            return x if mask is None else x * mask

    artifact = dovetail.export(Model(), (torch.ones(3), None))
    with pytest.raises(errors.GuardFailed, match=r"'mask' is tensor.*exported as None"):
        artifact(torch.ones(3), torch.zeros(3))


def test_tied_weights_stay_one():
    model = GPT(layers=1).eval()
    artifact = dovetail.export(model, (torch.randint(0, 50, (2, 8)),))
    tokens = torch.randint(0, 50, (2, 8))
    close(artifact(tokens), model(tokens))


# ---- what a caller can get wrong ---------------------------------------------------------------


class Breaks(nn.Module):
    def forward(self, x):
        if x.sum() > 0:  # data-dependent
            return x
        return -x


def test_a_graph_break_is_our_error():
    with pytest.raises(errors.ExportFailed, match="Breaks") as caught:
        dovetail.export(Breaks(), (torch.randn(3),))
    assert "torch.compile" in str(caught.value)


class BreaksAsIn211(nn.Module):
    """Leaves PyTorch's hook on buffers behind, as an export of PyTorch 2.11 does that fails."""

    def forward(self, x):
        hook = register_buffer_assignment_hook(self, {})
        self.trace(x)
        hook.remove()

    def trace(self, x):
        raise ValueError("no graph")


@pytest.mark.parametrize("model", [Breaks(), BreaksAsIn211()], ids=["breaks", "leaves a hook"])
def test_a_failed_export_leaves_no_hook_on_buffers(model):
    """Dynamo cannot trace it: each later graph that assigns to a buffer would break."""
    with pytest.raises(errors.ExportFailed):
        dovetail.export(model, (torch.randn(3),))
    later = Accumulator()
    torch.compile(later, backend="reference", fullgraph=True)(torch.ones(3))
    close(later.total, torch.full((3,), 2.0))


def test_not_a_module():
    with pytest.raises(errors.ExportFailed, match=r"torch\.nn\.Module"):
        dovetail.export(lambda x: x, (torch.randn(3),))


def test_unknown_backend_and_option():
    with pytest.raises(errors.UnknownBackend, match="did you mean 'reference'"):
        dovetail.export(nn.Linear(2, 2), (torch.randn(2, 2),), backend="referense")
    with pytest.raises(errors.UnknownOption, match="did you mean 'strict'"):
        dovetail.export(nn.Linear(2, 2), (torch.randn(2, 2),), options={"strikt": True})


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((torch.randn(3, 5),), "size 5 in dimension 1, expected 4"),
        ((torch.randn(2, 4),), "size 2 in dimension 0, expected 3; pass dynamic_shapes"),
        ((torch.randn(3, 4).double(),), "is float64, expected float32"),
        ((torch.randn(4),), "has 1 dimensions, expected 2"),
        ((3.0,), "is a float, expected a tensor"),
        ((torch.randn(3, 4), 1), "called with"),
        ((torch.randn(3, 4, device="meta"),), "is on meta, expected cpu"),
    ],
)
def test_wrong_inputs_are_named(args, message):
    artifact = dovetail.export(nn.Linear(4, 2), (torch.randn(3, 4),))
    with pytest.raises(errors.GuardFailed, match=message):
        artifact(*args)


def test_sizes_out_of_range_are_named():
    shapes = ({0: Dim("n", min=2, max=8)},)
    artifact = dovetail.export(nn.Linear(4, 2), (torch.randn(3, 4),), dynamic_shapes=shapes)
    with pytest.raises(errors.GuardFailed, match="it may be 2 to 8"):
        artifact(torch.randn(9, 4))
