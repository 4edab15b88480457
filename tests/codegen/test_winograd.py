"""Winograd's algorithm: its kernels, the error that is stated, and how to do without it."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import dovetail
from dovetail import registry
from dovetail.cli.inspect import describe
from dovetail.file.processors import target_here
from dovetail.ir.kernel_convolution import kernel_convolution
from dovetail.ir.segment import Segment
from dovetail.lower.winograd import NAME
from dovetail.runtime.interpreter import Interpreter
from dovetail.schedule.cpu import pack_convolution
from dovetail.schedule.cpu.pack_convolution import WINOGRAD_ERRORS, pack_convolutions
from dovetail.schedule.cpu.strategy import make_schedule
from dovetail.schedule.plan import make_plan
from dovetail.schedule.text import parse_schedule, print_schedule
from dovetail.schedule.tiles import ConvolutionTile
from dovetail.schedule.verify_schedule import verify_schedule
from dovetail.testing.schedules import check_schedule
from tests.codegen.test_convolutions import AVX512, Case, integers
from tests.codegen.test_random_kernels import targets
from tests.differential import needs_code

pytestmark = needs_code


def split(case, size, monkeypatch):
    """The calls that run once, and the others, by tiles of a size."""
    monkeypatch.setattr(pack_convolution, "own_choice", lambda *_, **__: 0.0)
    monkeypatch.setattr(pack_convolution, "winograd_size", lambda *_: size)
    packed = pack_convolutions(case.segment(), AVX512, frozenset("wb"), 1.0)
    (call,) = (c for c in packed.calls if c.op == NAME)
    made = [r for r in call.refs() if r.name not in "xwb"]
    names = [c.name for c in packed.calls]
    first, last = packed.calls[: names.index(call.name)], packed.calls[names.index(call.name) :]
    given = {i.name: i for i in packed.inputs}
    once = Segment("once", (given["w"],), first, tuple(made))
    constants = tuple(replace(given["w"], name=r.name, desc=r.desc) for r in made)
    return once, Segment("every", (given["x"], given["b"], *constants), last, packed.outputs)


def data(case, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(case.image, generator=g).relu().to(memory_format=torch.channels_last)
    return x, torch.randn(case.weight, generator=g) / 20, torch.randn(case.made[1], generator=g)


CASES = {
    "whole": Case((2, 20, 8, 12), (24, 20, 3, 3), pad=1),
    "beyond": Case((1, 33, 7, 6), (20, 33, 3, 3), pad=1),
    "no_padding": Case((1, 70, 9, 6), (18, 70, 3, 3)),
    "blocks": Case((1, 32, 35, 24), (40, 32, 3, 3), pad=1),
    "small": Case((1, 16, 2, 3), (16, 16, 3, 3), pad=1),
    "wide_padding": Case((1, 16, 5, 5), (16, 16, 3, 3), pad=2),
}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_results(name, size, monkeypatch):
    case = CASES[name]
    once, every = split(case, size, monkeypatch)
    x, w, b = data(case)
    backend = registry.get_backend("cpu")
    made = backend.load(backend.compile(once))([w])
    for ours, theirs in zip(made, Interpreter(once)([w]), strict=True):
        torch.testing.assert_close(ours, theirs)
    (y,) = backend.load(backend.compile(every))([x, b, *made])
    (z,) = Interpreter(every)([x, b, *made])
    pad = case.numbers[1]
    exact = torch.relu(torch.conv2d(x.double(), w.double(), b.double(), padding=pad))
    scale = exact.pow(2).mean().sqrt()
    assert (z - exact).abs().max() <= 1e-5 * scale
    assert (y - exact).abs().max() <= WINOGRAD_ERRORS[size] * scale
    assert y.stride() == z.stride()


@pytest.mark.parametrize("name", ["whole", "beyond"])
def test_kernels_on_every_target(name, monkeypatch):
    """What is scheduled is what the kernels say, but for the rounding of sums."""
    _, every = split(CASES[name], 2, monkeypatch)
    kernels = [step.kernel for step in make_plan(every, AVX512).steps]
    assert len(kernels) == (2 if name == "whole" else 3)
    products = [k for k in kernels if kernel_convolution(k)]
    assert [len(kernel_convolution(k).totals) for k in products] == [16]
    given = integers(products[0])
    for target in targets():
        schedule = verify_schedule(products[0], make_schedule(products[0], target), target)
        assert isinstance(schedule.register_tiles, ConvolutionTile) == ("fma" in target.features)
        assert parse_schedule(print_schedule(schedule)) == schedule
        check_schedule(products[0], schedule, target, given)


@pytest.mark.parametrize(("channels", "side", "size"), [(256, 8, 2), (256, 8, 4), (64, 24, 4)])
def test_the_error_that_is_stated(channels, side, size, monkeypatch):
    """Of many channels, whose sums are long, on images that are no longer of one sign."""
    case = Case((1, channels, side, side), (64, channels, 3, 3), pad=1)
    once, every = split(case, size, monkeypatch)
    backend = registry.get_backend("cpu")
    for seed in range(2):
        x, w, b = data(case, seed)
        made = backend.load(backend.compile(once))([w])
        (y,) = backend.load(backend.compile(every))([x, b, *made])
        exact = torch.relu(torch.conv2d(x.double(), w.double(), b.double(), padding=1))
        assert (y - exact).abs().max() <= WINOGRAD_ERRORS[size] * exact.pow(2).mean().sqrt()


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(), nn.Conv2d(64, 64, 3, 1, 1)).eval()


def kernels_in(path):
    return describe(str(path))["program"]


@pytest.mark.skipif("fma" not in target_here().features, reason="it needs multiply-adds")
def test_an_option_does_without(tmp_path):
    model, x = network(), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        expected = model.double()(x.double())
        model.float()
        errors = {}
        for bound in (2e-5, 0.0):
            path = tmp_path / "network.dvt"
            options = {"backend_options": {"convolution_error": bound}}
            dovetail.export(model, (x,), backend="cpu", options=options).save(path)
            errors[bound] = (dovetail.load(path)(x) - expected).abs().max()
            calls = kernels_in(path).count("generated.")
            errors[bound, "kernels"] = calls
    scale = expected.pow(2).mean().sqrt()
    assert errors[2e-5] <= 2e-5 * scale
    assert errors[0.0] <= 3e-6 * scale
    assert errors[2e-5, "kernels"] > errors[0.0, "kernels"]


def test_parameters_that_are_not_frozen_and_training_do_without(monkeypatch):
    monkeypatch.setattr(pack_convolution, "winograd_size", lambda *_: 4)
    packed = pack_convolutions(CASES["whole"].segment(), AVX512, frozenset(), 1.0)
    assert not any(call.op == NAME for call in packed.calls)
