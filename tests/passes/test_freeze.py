"""Frozen parameters under torch.compile: computed once, noticed when changed."""

import copy

import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors, history
from tests.differential import needs_code
from tests.models import ResNet

NEAR = {"rtol": 1e-4, "atol": 1e-5}

both = pytest.mark.parametrize("backend", ["reference", "aten"])


def conv_net():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 1))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model.eval()


def compiled(model, backend="aten"):
    return torch.compile(model, backend=backend, options={"freeze": True})


def every_call_graph():
    (graph,) = (g for c in history.recent() for g in c.graphs if g.kind == "inference")
    return graph.segments[0][1]


@both
@torch.no_grad()
def test_batch_norm_is_folded_into_the_convolution(backend):
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    torch.testing.assert_close(compiled(model, backend)(x), model(x), rtol=1e-5, atol=1e-5)
    text = every_call_graph()
    assert "batch_norm" not in text
    assert text.count("aten.convolution") == 2
    assert "rsqrt" not in text  # the folding itself is computed once, not per call


@both
@torch.no_grad()
def test_a_change_in_place_is_noticed(backend):
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    run = compiled(model, backend)
    run(x)
    model[0].weight.mul_(2)
    model[1].running_mean.add_(1)
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    assert len(history.recent()) == 1


@both
@torch.no_grad()
def test_loading_a_state_dict_is_noticed(backend):
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    run = compiled(model, backend)
    run(x)
    model.load_state_dict(
        {k: v * 0.5 + 0.25 if v.is_floating_point() else v for k, v in model.state_dict().items()}
    )
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_a_replaced_parameter_is_noticed():
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    run(x)
    model[0].weight = nn.Parameter(torch.randn_like(model[0].weight))
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


class Doubled(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.ones(1000))

    def forward(self, x):
        return x * (self.w * 2), self.w * 3


@both
@torch.no_grad()
def test_a_new_parameter_at_an_old_address_is_noticed(backend):
    model, x = Doubled(), torch.ones(1000)
    run = compiled(model, backend)
    for value in range(20):
        del model.w
        model.w = nn.Parameter(torch.full((1000,), float(value)))
        assert run(x)[0][0] == 2 * value


@both
@torch.no_grad()
def test_what_is_returned_is_not_the_packed_value_itself(backend):
    model, x = Doubled(), torch.ones(1000)
    for run in (compiled(model, backend), dovetail.export(model, (x,), backend=backend)):
        run(x)[1].add_(100)
        assert run(x)[1][0] == 3


@torch.no_grad()
def test_unchanged_parameters_are_packed_once(monkeypatch):
    from dovetail.runtime import frozen

    made = []
    original = frozen.FrozenRunner.__init__
    monkeypatch.setattr(
        frozen.FrozenRunner, "__init__", lambda self, *a: (original(self, *a), made.append(self))[0]
    )
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    for _ in range(3):
        run(x)
    (runner,) = made
    assert runner.packs == 1
    model[0].weight.add_(1)
    run(x)
    run(x)
    assert runner.packs == 2


UNCHECKED = {"freeze": True, "check_weights": False}  # the cheap check at each call alone


def wide_net():
    """The same with weights larger than the eight words of them that are compared."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU())
    return model.eval()


@pytest.mark.parametrize("kind", ["AdamW", "SGD", "Adagrad"])
def test_a_fused_step_is_noticed(kind):
    model, x = wide_net(), torch.randn(2, 3, 8, 8)
    run = torch.compile(model, backend="aten", options=UNCHECKED)
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, fused=True)
    for _ in range(3):
        model(x).square().mean().backward()  # small gradients, so that SGD does not diverge
        versions = [p._version for p in model.parameters()]
        optimizer.step()
        assert versions == [p._version for p in model.parameters()]
        with torch.no_grad():
            torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("how", ["torch.compile", "export"])
def test_statistics_that_eager_updates_are_noticed(how):
    model, x = wide_net(), torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        if how == "export":
            run = dovetail.export(model, (x,), backend="aten", options=UNCHECKED)
        else:
            run = torch.compile(model, backend="aten", options=UNCHECKED)
        for _ in range(3):
            torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
            model.train()(torch.randn(2, 3, 8, 8) + 3)
            model.eval()


@torch.no_grad()
def test_a_hidden_write_needs_refresh_and_is_found_by_the_check():
    model, x = wide_net(), torch.randn(2, 3, 8, 8)
    run = torch.compile(model, backend="aten", options=UNCHECKED)
    before = run(x)
    model[0].weight.data[1, 2, 1, 1] += 5
    assert torch.equal(run(x), before)
    dovetail.refresh(model)
    torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
    run = torch.compile(model, backend="aten", options={"freeze": True, "check_weights": True})
    run(x)
    model[0].weight.data[1, 2, 1, 1] += 5
    with pytest.warns(errors.StaleWeights, match=r"^0\.weight \(float32\[16, 3, 3, 3\]\): "):
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_check_names_weights_of_an_exported_model():
    model, x = wide_net(), torch.randn(2, 3, 8, 8)
    run = dovetail.export(model, (x,), backend="aten", options={"check_weights": True})
    run(x)
    model[0].weight.data[1, 2, 1, 1] += 5
    with pytest.warns(errors.StaleWeights, match=r"^0\.weight "):
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


def test_parameters_made_in_inference_mode():
    with torch.inference_mode():
        model, x = conv_net(), torch.randn(2, 3, 8, 8)
        run = compiled(model)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)
        model[0].weight.mul_(2)  # has no version counter
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


def test_training_is_not_frozen():
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    run(x).sum().backward()
    assert model[0].weight.grad is not None


@torch.no_grad()
def test_without_freeze_nothing_is_folded():
    model, x = conv_net(), torch.randn(2, 3, 8, 8)
    torch.compile(model, backend="aten")(x)
    assert "batch_norm" in every_call_graph()


@torch.no_grad()
def test_batch_norm_in_training_mode_is_not_frozen():
    model, x = conv_net().train(), torch.randn(2, 3, 8, 8)
    run = compiled(model)
    run(x)
    other = conv_net().train()
    other(x)
    torch.testing.assert_close(model[1].running_mean, other[1].running_mean)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@torch.no_grad()
def test_every_kind_of_convolution_folds_right(transposed, bias, affine):
    cls = nn.ConvTranspose2d if transposed else nn.Conv2d
    model = nn.Sequential(cls(4, 6, 3, bias=bias), nn.BatchNorm2d(6, affine=affine)).eval()
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)
    assert "batch_norm" not in every_call_graph()


@pytest.mark.parametrize("groups", [2, 4])
@torch.no_grad()
def test_grouped_transposed_convolutions_stay(groups):
    model = nn.Sequential(nn.ConvTranspose2d(4, 8, 3, groups=groups), nn.BatchNorm2d(8)).eval()
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_whole_resnet():
    model, x = ResNet().eval(), torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(compiled(model)(x), model(x), rtol=1e-4, atol=1e-5)
    assert "batch_norm" not in every_call_graph()


@torch.no_grad()
def test_dynamic_shapes_and_freezing():
    model = conv_net()
    run = torch.compile(model, backend="aten", dynamic=True, options={"freeze": True})
    for size in (8, 9, 12):
        x = torch.randn(2, 3, size, size)
        torch.testing.assert_close(run(x), model(x), rtol=1e-5, atol=1e-5)


def exact(model, x):
    return copy.deepcopy(model).double()(x.double())


def steps_after_convolutions():
    (graph,) = (g for c in history.recent() for g in c.graphs if g.kind == "inference")
    texts = "\n".join(text for _, text, *_ in graph.segments)
    return [op for op in ("aten.add.", "aten.sub.", "aten.mul.") if op in texts]


@needs_code
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize("groups", [1, 2])
@torch.no_grad()
def test_batch_norms_that_were_taken_apart_are_folded(transposed, bias, affine, groups):
    cls = nn.ConvTranspose2d if transposed else nn.Conv2d
    layers = cls(4, 6, 3, bias=bias, groups=groups), nn.BatchNorm2d(6, affine=affine)
    model = nn.Sequential(*layers, nn.ReLU()).eval()
    for parameter in (*model[1].parameters(), model[1].running_mean):
        parameter.normal_()
    model[1].running_var.uniform_(0.5, 2)
    x = torch.randn(2, 4, 7, 7)
    torch.testing.assert_close(compiled(model, "cpu")(x).double(), exact(model, x), **NEAR)
    if not (transposed and groups > 1):
        assert not steps_after_convolutions()


class Scaled(nn.Module):
    """A convolution and what one case does with it."""

    def __init__(self, case):
        super().__init__()
        self.conv, self.case = nn.Conv2d(4, 6, 3), case
        self.channels = nn.Parameter(torch.randn(6, 1, 1))
        self.places = nn.Parameter(torch.randn(5, 5))
        self.line = nn.Parameter(torch.randn(1, 6, 1, 5))
        self.more = nn.Parameter(torch.randn(2, 1, 6, 1, 1))

    def forward(self, x):
        return CASES[self.case](self, self.conv(x))


CASES = {
    "scaled": lambda m, y: m.channels * y,
    "moved": lambda m, y: y - m.channels,
    "by_one_number": lambda m, y: y * m.places[:1, :1] + m.places[1, 1],
    "taken_from": lambda m, y: m.channels - y,
    "by_place": lambda m, y: y * m.places,
    "by_line": lambda m, y: y + m.line,
    "of_higher_rank": lambda m, y: y * m.more,
    "by_itself": lambda m, y: y * y,
    "used_twice": lambda m, y: (y * m.channels, y),
    "weighed": lambda m, y: torch.add(y, m.channels, alpha=2),
}
FOLDED = {"scaled", "moved", "by_one_number"}


@needs_code
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_what_is_done_to_each_channel_is_folded(case):
    model, x = Scaled(case).eval(), torch.randn(2, 4, 7, 7)
    found, expected = compiled(model, "cpu")(x), exact(model, x)
    expected = tuple(y.float() for y in expected) if case == "used_twice" else expected.float()
    torch.testing.assert_close(found, expected, **NEAR)
    assert bool(steps_after_convolutions()) == (case not in FOLDED)
