"""Option ``check``: a wrong kernel is found, named, and reproduced alone."""

import re
import subprocess
import sys

import pytest
import torch

import dovetail
from dovetail import errors, registry

CHECKED = {"check": True}


class Wrong(dovetail.KernelBackend):
    """Its relu forgets the last element, its sums are too exact to blame."""

    name = "wrong_relu"

    @dovetail.kernel("aten.relu.default", dtypes={"float32"})
    def relu(x):
        y = torch.relu(x)
        y.flatten()[-1:] = x.flatten()[-1:]
        return y

    @dovetail.kernel("aten.sum.dim_IntList")
    @dovetail.kernel("aten.mm.default")
    def exact(*args, **kwargs):
        op = torch.ops.aten.mm if len(args) == 2 and args[1].__class__ is torch.Tensor else None
        if op is not None:
            return torch.mm(args[0].double(), args[1].double()).float()
        return torch.ops.aten.sum.dim_IntList(args[0].double(), *args[1:], **kwargs).float()


def fn(x, w):
    return torch.relu(x @ w).sum(0) * 2


@pytest.fixture
def wrong():
    with registry.registered_backend(Wrong):
        yield "wrong_relu"


def test_the_first_wrong_call_is_named_with_both_values_and_a_script(wrong):
    x, w = torch.ones(3, 4), -torch.ones(4, 5)
    compiled = torch.compile(fn, backend=wrong, options=CHECKED)
    with pytest.raises(errors.WrongResult) as raised:
        compiled(x, w)
    said = str(raised.value)
    assert "'wrong_relu' is wrong: aten.relu.default on f32[3, 5] gives -4.0 instead of 0.0" in said
    assert "at [2, 4]" in said
    script = re.search(r"run (\S+reproduce\.py)", said)[1]
    assert script == raised.value.script
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 1
    assert "Mismatched elements: 1 / 15" in done.stderr


def test_a_sound_backend_passes(wrong):
    x, w = torch.rand(3, 4), torch.rand(4, 5)  # where the relu changes nothing
    torch.testing.assert_close(torch.compile(fn, backend=wrong, options=CHECKED)(x, w), fn(x, w))
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
    compiled = torch.compile(model, backend="portable", options=CHECKED)
    torch.testing.assert_close(compiled(x), model(x))
    compiled(x).sum().backward()


@pytest.mark.e2e
def test_a_kernel_of_a_plugin_that_lies(sim):
    x = torch.randn(4, 4)
    compiled = torch.compile(lambda x: torch.tanh(torch.relu(x)), backend=sim.name, options=CHECKED)
    compiled(x)
    sim.native.set("fault.kernel_lies", 2)
    with pytest.raises(errors.WrongResult, match=r"segment_0 gives 1000000\.0 instead of"):
        compiled(x)  # once only: alone each call is right
    compiled(x)


# ---- mistakes where they are made --------------------------------------------------------------


@pytest.mark.parametrize(
    ("op", "constraints", "error", "said"),
    [
        ("aten.rleu.default", {}, errors.UnknownOperator, "did you mean 'aten.relu.default'"),
        ("aten.relu", {}, errors.UnknownOperator, "did you mean 'aten.relu.default'"),
        ("aten.add.Tenser", {}, errors.UnknownOperator, "'aten.add.Tensor'"),
        (
            "aten.add.Tensor",
            {"attributes": {"alfa": {1}}},
            errors.UnknownOperator,
            "no argument 'alfa' of aten.add.Tensor that is no tensor; did you mean 'alpha'",
        ),
        ("aten.add.Tensor", {"attributes": {"other": {1}}}, errors.UnknownOperator, "'other'"),
        ("aten.relu.default", {"dtypes": {"flaot32"}}, errors.InvalidOption, "mean 'float32'"),
        ("aten.relu.default", {"dtypes": {torch.float32}}, errors.InvalidOption, "'float32'?"),
    ],
)
def test_a_declaration_of_what_does_not_exist(op, constraints, error, said):
    with pytest.raises(error) as raised:
        dovetail.kernel(op, **constraints)
    assert said in str(raised.value)


def test_operators_of_a_library_that_is_not_loaded_yet_may_be_declared():
    dovetail.kernel("not_loaded_yet.op.default")


def backend_of(relu):
    class Chip(dovetail.KernelBackend):
        name = "chip"
        kernel = dovetail.kernel("aten.relu.default")(relu)

    return Chip


@pytest.mark.parametrize(
    ("relu", "said"),
    [
        (
            lambda x: x[:1],
            r"relu.default.*gave float32\[1, 5\], and the operator gives f32\[3, 5\]",
        ),
        (lambda x: x.double(), r"gave float64\[3, 5\]"),
        (lambda x: x.to("meta"), "gave a tensor on meta, and the operator gives one on cpu"),
        (lambda x: 3, "gave a int, not a tensor"),
        (
            lambda x: x.nothing,
            r"'chip' failed in its kernel of aten.relu.default on float32\[3, 5\]",
        ),
    ],
)
def test_a_kernel_that_gives_something_else(relu, said):
    with registry.registered_backend(backend_of(relu)):
        compiled = torch.compile(torch.relu, backend="chip", options={"debug": False})
        with pytest.raises(errors.KernelFailed, match=said):
            compiled(torch.randn(3, 5))


def test_a_cell_that_is_run_again_replaces_its_own_class():
    script = """
import torch, dovetail
for factor in (2, 3):
    class Cell(dovetail.KernelBackend):
        name = "cell"
        @dovetail.kernel("aten.relu.default")
        def relu(x, factor=factor):
            return torch.relu(x) * factor
    dovetail.register_backend(Cell)
    print(torch.compile(torch.relu, backend="cell")(torch.ones(1)).item())
class Other(dovetail.KernelBackend):
    name = "cell"
try:
    dovetail.register_backend(Other)
except dovetail.errors.BackendNameTaken:
    print("taken")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "2.0\n3.0\ntaken\n", done.stderr


def test_a_layout_change_alone_is_never_sent_to_a_device(sim):
    def change(x):
        return torch.cumsum(x.t().contiguous(), 0).t()

    x = torch.randn(4, 6)
    torch.testing.assert_close(torch.compile(change, backend=sim.name)(x), change(x))
    (graph,) = dovetail.history.recent()[-1].graphs
    assert {segment.backend for segment in graph.segments} == {"aten"}
    assert sim.moved == (0, 0)
    told = [v for v in graph.verdicts if v.op == "aten.clone.default"]
    assert all("it only changes a layout" in str(v.answers) for v in told)


def test_a_kernel_that_writes_to_its_input():
    """What it gives is right; what others read afterwards is not."""

    class Writes(dovetail.KernelBackend):
        name = "writes_to_its_input"

        @dovetail.kernel("aten.relu.default")
        def relu(x):
            result = torch.relu(x)
            x.zero_()
            return result

    with registry.registered_backend(Writes):
        compiled = torch.compile(torch.relu, backend=Writes.name, options=CHECKED)
        said = r"its input %\w+ was written to, which aten.relu.default \(%relu\) may only read"
        with pytest.raises(errors.WrongResult, match=said):
            compiled(torch.ones(3))
