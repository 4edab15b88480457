"""What fails becomes the smallest script that shows it."""

import runpy

import pytest
import torch
from torch import nn

import dovetail
from dovetail import registry
from dovetail.cli import main
from dovetail.reproduce import reproduce
from dovetail.reproduce.shrink import shrink
from tests.reproduce import factories


class Wrong(dovetail.KernelBackend):
    """Computes tanh of what is large wrongly, and exp always."""

    name = "wrong_here"

    @dovetail.kernel("aten.tanh.default")
    def tanh(x):
        return torch.where(x.abs() > 100, 0.5, torch.tanh(x))

    @dovetail.kernel("aten.exp.default")
    def exp(x):
        return torch.exp(x) + 1


class WrongBackwards(dovetail.KernelBackend):
    """Computes a gradient wrongly."""

    name = "wrong_backwards_here"

    @dovetail.kernel("aten.gelu_backward.default")
    def gelu_backward(gradient, x, *, approximate="none"):
        return torch.ops.aten.gelu_backward(gradient, x, approximate=approximate) * 1.5


class Picky(dovetail.Backend):
    """Takes all, and does not compile a sine of a product."""

    name = "picky_here"

    def supports(self, call):
        return dovetail.Support.yes()

    def compile(self, segment):
        if {"aten.sin.default", "aten.mul.Tensor"} <= {call.op for call in segment.calls}:
            raise ValueError("no sine of a product")
        return registry.get_backend("aten").compile(segment)

    def load(self, blob):
        return registry.get_backend("aten").load(blob)


@pytest.fixture
def wrong():
    with registry.registered_backend(Wrong):
        yield Wrong.name


class Model(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.function = function

    def forward(self, x):
        y = self.linear(x).relu() * 3
        z = self.function(y)
        return (z + 1).square()


def run(found, folder):
    """Run the script as a person would, here where its backend is."""
    path = folder / "reproduction.py"
    found.write(path)
    runpy.run_path(str(path), run_name="__main__")


def test_one_call_that_is_wrong(wrong, tmp_path):
    found = reproduce(Model(torch.exp).eval(), torch.randn(4, 8), backend=wrong)
    assert found.calls == ("aten.exp.default",)
    assert found.before > 4
    assert found.failure.stage == "results"
    assert "is off by 1" in found.failure.what
    assert found.source["code"] == "z = self.function(y)"
    assert found.source["file"] == __file__
    assert "torch.randn((4, 8)" in found.script
    with pytest.raises(AssertionError, match="not close"):
        run(found, tmp_path)


def test_two_calls_that_do_not_compile_together(tmp_path):
    with registry.registered_backend(Picky):
        found = reproduce(Model(torch.sin).eval(), torch.randn(4, 8), backend=Picky.name)
        assert sorted(found.calls) == ["aten.mul.Tensor", "aten.sin.default"]
        assert found.failure.stage == "compile"
        assert "no sine of a product" in found.failure.what
        with pytest.raises(Exception, match="no sine of a product"):
            run(found, tmp_path)


@pytest.mark.parametrize("rows", [2, 40])
def test_values_that_matter_are_kept(rows, wrong, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    x = torch.randn(rows, 8) * 1000
    found = reproduce(lambda x: torch.tanh(x.t()), x, backend=wrong)
    assert found.calls[-1] == "aten.tanh.default"
    assert "randn" not in found.script
    assert ("allow_pickle=False" in found.script) == (rows == 40)
    with pytest.raises(AssertionError, match="not close"):
        run(found, tmp_path)


def test_a_gradient_that_is_wrong(tmp_path):
    with registry.registered_backend(WrongBackwards):
        given = Model(nn.functional.gelu), torch.randn(4, 8)
        assert reproduce(*given, backend=WrongBackwards.name) is None
        found = reproduce(*given, backend=WrongBackwards.name, train=True)
        assert found.calls == ("aten.gelu.default",)
        assert found.before > 4
        assert found.failure.stage == "results"
        assert found.failure.what.startswith("values: gradient 0 is off by")
        assert found.source["code"] == "z = self.function(y)"
        assert ".requires_grad_()" in found.script
        with pytest.raises(AssertionError, match="not close"):
            run(found, tmp_path)
    right = found.script.replace(WrongBackwards.name, "aten")
    exec(compile(right, "reproduction.py", "exec"), {"__name__": "__main__"})


def test_a_backward_graph_that_does_not_compile(tmp_path):
    with registry.registered_backend(Picky):
        model = Model(torch.cos)  # its gradient is a product with a sine
        assert reproduce(model, torch.randn(4, 8), backend=Picky.name) is None
        found = reproduce(model, torch.randn(4, 8), backend=Picky.name, train=True)
        assert found.failure.stage == "compile"
        assert found.calls == ("aten.cos.default",)
        with pytest.raises(Exception, match="no sine of a product"):
            run(found, tmp_path)


def test_nothing_fails_in_training():
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        nn.GELU(),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.Linear(64, 2),
    )
    found = reproduce(model, torch.randn(2, 3, 6, 6), backend="cpu", train=True)
    assert found is None, found.script


def test_nothing_fails():
    assert reproduce(Model(torch.exp).eval(), torch.randn(4, 8), backend="aten") is None


def test_results_of_several_graphs_tuples_and_integers(tmp_path):
    model, args = factories.several()
    assert reproduce(model, *args, backend="aten") is None


def test_the_command(wrong, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    argv = ["reproduce", "tests.reproduce.factories:exponential"]
    assert main([*argv, "--backend", wrong, "-o", "bug.py"]) == 1
    out = capsys.readouterr().out
    assert "aten.exp.default" in out
    assert "return torch.exp(x * 2)" in out
    assert (tmp_path / "bug.py").read_text().startswith('"""values: output 0 is off by')
    assert main([*argv, "--backend", "aten"]) == 0
    assert "nothing failed" in capsys.readouterr().out
    assert main([*argv, "--backend", wrong, "-o", "no/bug.py"]) == 2
    assert "cannot write" in capsys.readouterr().err


@pytest.mark.parametrize("needed", [{0}, {7}, {3, 4}, {0, 9}, {1, 5, 8}])
def test_shrinking_leaves_what_is_needed(needed):
    tried = []

    def fails(items):
        tried.append(list(items))
        return needed <= set(items)

    assert set(shrink(range(10), fails, seconds=10)) == needed
    assert len(tried) < 60


def test_shrinking_ends_in_time():
    assert shrink(range(10), lambda items: len(items) == 10, seconds=0) == list(range(10))
