"""``mode="max-autotune"``: real candidates, measured, remembered, right."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail import history
from dovetail.backends.cpu.backend import CpuBackend
from dovetail.compilers.local import compile_segment
from dovetail.ir import Input, Segment
from dovetail.ir.call import OpCall, Ref
from dovetail.ir.strides import contiguous_strides
from dovetail.ir.tensor import TensorDesc
from dovetail.schedule.images import channels_last
from dovetail.tuning import chooser, measure
from dovetail.tuning.problem import Problem, problem_of
from tests.differential import needs_code

pytestmark = needs_code
AUTOTUNE = {"autotune": True}


def desc(*shape, strides=None, dtype="float32"):
    return TensorDesc(dtype, shape, strides or contiguous_strides(shape))


def image(*shape):
    return desc(*shape, strides=channels_last(shape))


def convolution(x, w, made, groups=1):
    refs = Ref("x", x), Ref("w", w)
    args = (*refs, None, (1, 1), (1, 1), (1, 1), False, (0, 0), groups)
    return OpCall("y", "aten.convolution.default", args, {}, made)


PROBLEMS = {
    "product": OpCall(
        "y", "aten.mm.default", (Ref("x", desc(64, 96)), Ref("w", desc(96, 192))), {}, desc(64, 192)
    ),
    "transposed": OpCall(
        "y",
        "aten.addmm.default",
        (Ref("b", desc(192)), Ref("x", desc(9, 96)), Ref("w", desc(96, 192, strides=(1, 96)))),
        {},
        desc(9, 192),
    ),
    "half": OpCall(
        "y",
        "aten.mm.default",
        (Ref("x", desc(64, 96, dtype="float16")), Ref("w", desc(96, 192, dtype="float16"))),
        {},
        desc(64, 192, dtype="float16"),
    ),
    "batched": OpCall(
        "y",
        "aten.bmm.default",
        (Ref("x", desc(4, 40, 48)), Ref("w", desc(4, 48, 56))),
        {},
        desc(4, 40, 56),
    ),
    "image": convolution(image(1, 32, 15, 15), desc(64, 32, 3, 3), image(1, 64, 15, 15)),
    "channels": convolution(image(1, 32, 30, 30), desc(32, 1, 3, 3), image(1, 32, 30, 30), 32),
    "attention": OpCall(
        "y",
        "aten._scaled_dot_product_flash_attention_for_cpu.default",
        tuple(Ref(n, desc(1, 2, 64, 32)) for n in "qkv"),
        {},
        (desc(1, 2, 64, 32), desc(1, 2, 64)),
    ),
}


def problem(call, constants=frozenset("w"), outputs=None):
    inputs = tuple(Input(r.name, r.desc) for r in call.refs())
    path = (0,) if isinstance(call.output, tuple) else ()
    made = call.output[0] if path else call.output
    segment = Segment("s", inputs, (call,), outputs or (Ref("y", made, path),))
    return problem_of(segment, call, constants)


@pytest.mark.parametrize("constants", [frozenset("w"), frozenset()], ids=["constant", "varying"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_candidate_gives_the_result_of_the_rules(name, constants, quick, monkeypatch):
    told = []
    monkeypatch.setattr(measure.log, "warning", lambda *args: told.append(args))
    found, backend = problem(PROBLEMS[name], constants), CpuBackend()
    named = backend.candidates(found.call, found.constants)
    times = measure.measure(found, backend, named.taken, named.others, compile_segment)
    assert not told
    assert named.taken in times
    assert len(times) > 1
    assert len(named.others) <= 5


def test_problems_alike_but_for_names_are_one():
    call = PROBLEMS["product"]
    other = OpCall("z", call.op, (Ref("a", call.args[0].desc), Ref("c", call.args[1].desc)), {},
                   call.output)  # fmt: skip
    segment = Segment("t", (), (other,), (Ref("z", other.output),))
    same = problem_of(segment, other, frozenset("c"))
    assert isinstance(same, Problem)
    assert same.text == problem(call).text
    assert same.text != problem(call, frozenset()).text


def test_what_follows_a_call_is_part_of_its_problem():
    call = PROBLEMS["product"]
    after = OpCall("z", "aten.tanh.default", (Ref("y", call.output),), {}, call.output)
    inputs = tuple(Input(r.name, r.desc) for r in call.refs())
    joined = Segment("s", inputs, (call, after), (Ref("z", call.output),))
    found = problem_of(joined, call, frozenset())
    assert [each.op for each in found.segment.calls] == ["aten.mm.default", "aten.relu.default"]
    kept = Segment("s", inputs, (call, after), (Ref("z", call.output), Ref("y", call.output)))
    assert len(problem_of(kept, call, frozenset()).segment.calls) == 1


def selections():
    """What was chosen in the last compilation, by the operator."""
    graphs = history.recent()[-1].graphs
    return {v.op: v.selection for g in graphs for v in g.verdicts if v.selection is not None}


def block():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(96, 192), nn.GELU(), nn.Linear(192, 96)).eval()


@pytest.mark.parametrize("mode", ["max-autotune", "max-autotune-no-cudagraphs"])
def test_a_mode_measures_and_stays_right(mode, quick):
    model, x = block(), torch.randn(32, 96)
    with torch.no_grad():
        assert torch.allclose(torch.compile(model, backend="dovetail", mode=mode)(x), model(x),
                              atol=1e-5)  # fmt: skip
    found = selections()["aten.addmm.default"]
    assert found.reason == "measured"
    assert found.chosen in dict(found.seconds)


@pytest.mark.parametrize("winner", ["library", "kernel, no panels", "kernel, panels of 32"])
def test_the_winner_is_what_runs(winner, quick, monkeypatch):
    monkeypatch.setattr(chooser, "decide", lambda times, taken: winner)
    model, x = block(), torch.randn(32, 96)
    with torch.no_grad():
        report = dovetail.explain(model, x, options={**AUTOTUNE, "freeze": True})
        run = torch.compile(model, backend="dovetail", mode="max-autotune-no-cudagraphs")
        assert torch.allclose(run(x), model(x), atol=1e-5)
    graph = report.to_dict()["compilations"][0]["graphs"][-1]
    library = winner == "library"
    assert (graph["counts"]["library"] == 2) is library
    assert f"by {winner} (measured): " in str(report)
    assert f"by {winner} (measured): " in report.calls()
    chosen = [call["selection"] for call in graph["calls"] if call["selection"]]
    assert [each["chosen"] for each in chosen] == [winner, winner]
    assert chosen[0]["measured_seconds"].keys() >= {"kernel", winner}


def test_explain_says_what_the_rules_take_and_why():
    with torch.no_grad():
        report = dovetail.explain(block(), torch.randn(32, 96))
    assert "aten.addmm.default (2x) by kernel (a kernel joins it with what follows)" in str(report)


def test_training_is_tuned_and_right(quick):
    model, x = block(), torch.randn(32, 96)
    run = torch.compile(model, backend="dovetail", options=AUTOTUNE)
    run(x).square().sum().backward()
    made = [p.grad.clone() for p in model.parameters()]
    assert any(found.seconds for found in selections().values())
    model.zero_grad()
    model(x).square().sum().backward()
    for mine, parameter in zip(made, model.parameters(), strict=True):
        assert torch.allclose(mine, parameter.grad, rtol=1e-4, atol=1e-4)


def test_sizes_that_vary_are_left_to_the_rules():
    model = block()
    with torch.no_grad():
        run = torch.compile(model, backend="dovetail", options=AUTOTUNE, dynamic=True)
        assert torch.allclose(run(torch.ones(32, 96)), model(torch.ones(32, 96)), atol=1e-5)
    assert not any(found.seconds for found in selections().values())


@pytest.mark.e2e
@pytest.mark.parametrize("options", [{"compile": "subprocess"}, {"background": True}], ids=str)
def test_candidates_are_compiled_in_whatever_way(options, quick, monkeypatch):
    monkeypatch.setattr(chooser, "decide", lambda times, taken: "kernel, no panels")
    model, x = block(), torch.randn(32, 96)
    run = torch.compile(model, backend="dovetail", options={**AUTOTUNE, "freeze": True, **options})
    with torch.no_grad():
        run(x)
        dovetail.compilers.background.background.wait()
        assert torch.allclose(run(x), model(x), atol=1e-5)
    assert selections()["aten.addmm.default"].chosen == "kernel, no panels"


def test_a_file_holds_the_winner(quick, monkeypatch, tmp_path):
    model, x = block(), torch.randn(32, 96)
    counts = {}
    for winner in ("library", "kernel, no panels"):
        monkeypatch.setattr(chooser, "decide", lambda times, taken, winner=winner: winner)
        path = tmp_path / f"{winner}.dvt"
        made = dovetail.export(model, (x,), backend="cpu", options={**AUTOTUNE, "cache": False})
        made.save(path)
        loaded = dovetail.load(path, trust=True) if winner == "library" else dovetail.load(path)
        assert torch.allclose(loaded(x), model(x), atol=1e-5)
        counts[winner] = path.stat().st_size
    assert counts["library"] != counts["kernel, no panels"]


PROGRAM = """
import math, sys, torch
from torch import nn
from dovetail import history
from dovetail.tuning import chooser, decide, measure
measure.SECONDS, measure.ROUNDS, decide.UNSTEADY = (0.0, 0.01), (2, 2), math.inf
if sys.argv[1] == "again":
    def measured(*args):
        raise AssertionError("measured again")
    chooser.measure = measured
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(96, 192), nn.GELU()).eval()
if sys.argv[1] == "again":  # another graph, with the same product in it
    model.append(nn.Tanh())
x = torch.randn(32, 96)
with torch.no_grad():
    run = torch.compile(model, backend="dovetail", mode="max-autotune")
    assert torch.allclose(run(x), model(x), atol=1e-5)
graphs = history.recent()[-1].graphs
print([v.selection.reason for g in graphs for v in g.verdicts if v.selection])
"""


@pytest.mark.e2e
def test_another_process_measures_nothing_again():
    def process(which):
        return subprocess.run([sys.executable, "-c", PROGRAM, which], env=os.environ, text=True,
                              capture_output=True, check=True).stdout.strip()  # fmt: skip

    assert process("first") == "['measured']"
    assert process("again") == "['measured before']"


def test_a_candidate_that_is_wrong_does_not_win(quick, monkeypatch):
    """A result that differs leaves the list of those measured."""
    right = measure.is_near
    monkeypatch.setattr(measure, "is_near", lambda a, b: right(a + 1, b))
    found, backend = problem(PROBLEMS["product"]), CpuBackend()
    named = backend.candidates(found.call, found.constants)
    times = measure.measure(found, backend, named.taken, named.others, compile_segment)
    assert list(times) == [named.taken]


def test_numbers_of_threads_have_choices_and_graphs_of_their_own(quick):
    """What is fastest on one thread need not be on two."""
    from dovetail.tuning.remembered import choice_key

    found, backend = problem(PROBLEMS["product"]), CpuBackend()
    named = backend.candidates(found.call, found.constants)
    one, two = (choice_key(found, backend, named, n) for n in (1, 2))
    assert one.differs(two) == ["threads"]
    small = choice_key(found, CpuBackend(convolution_error=0.0), named, 1)
    assert one.differs(small) == ["options"]


def test_attention_of_few_rows(quick):
    q = torch.randn(1, 2, 64, 32)
    with torch.no_grad():
        run = torch.compile(
            lambda q: F.scaled_dot_product_attention(q, q, q) + 1, backend="dovetail",
            options=AUTOTUNE,
        )  # fmt: skip
        assert torch.allclose(run(q), F.scaled_dot_product_attention(q, q, q) + 1, atol=1e-5)
