"""What ``explain`` collects: source lines, kernels, programs, memory; held against the runtime."""

import json

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from dovetail.report.collect import Collector
from tests.report.schema import problems


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        y = self.linear(x).relu() * 2
        whole = x.long()
        y = y + (whole @ whole.T).sum()  # a product of integers is left to a library
        values, _ = y.topk(3)
        return y.softmax(-1), values


@pytest.fixture(scope="module")
def data():
    torch.compiler.reset()
    with torch.no_grad():
        found = dovetail.explain(Model().eval(), torch.randn(3, 16), backend="cpu")
    return found.to_dict()


def graph_of(data):
    (compilation,) = data["compilations"]
    return compilation, compilation["graphs"][0]


def test_the_data_is_as_the_schema_says(data):
    assert problems(json.loads(json.dumps(data))) == []


def test_calls_have_the_lines_of_the_model(data):
    _, graph = graph_of(data)
    lines = {call["op"]: call["source"] for call in graph["calls"]}
    assert lines["aten.topk.default"]["code"] == "values, _ = y.topk(3)"
    assert lines["aten.relu.default"]["code"] == "y = self.linear(x).relu() * 2"
    assert lines["aten.addmm.default"]["code"] == "y = self.linear(x).relu() * 2"  # not nn.Linear's
    assert lines["aten.addmm.default"]["file"] == __file__
    assert {c["op"]: c["module"] for c in graph["calls"]}["aten.addmm.default"] == "linear"


def test_edges_are_those_of_the_graph(data):
    _, graph = graph_of(data)
    by_op = {call["op"]: call for call in graph["calls"]}
    names = [given["name"] for given in graph["inputs"]]
    assert len(names) == 3
    assert set(by_op["aten.addmm.default"]["reads"]) <= {
        *names,
        *(c["name"] for c in graph["calls"]),
    }
    assert by_op["aten.relu.default"]["reads"] == [by_op["aten.addmm.default"]["name"]]
    softmax, topk = by_op["aten._softmax.default"]["name"], by_op["aten.topk.default"]["name"]
    assert graph["outputs"] == [softmax, topk]


def test_the_kinds_of_work_are_counted_apart_as_the_runtime_counts(data):
    _, graph = graph_of(data)
    programs = [segment["program"] for segment in graph["segments"]]
    counts = graph["counts"]
    assert counts["library"] == 1  # the product
    assert counts["host"] == 1  # topk
    assert counts["kernel"] >= 1
    assert counts["elsewhere"] == 0
    read = [p for p in programs if p["counted"]]
    for program in read:
        kinds = [i["kind"] for i in program["instructions"]]
        assert {k: kinds.count(k) for k in program["counts"]} == program["counts"]
        called = program["counts"]["library"] + program["counts"]["host"]
        assert program["counted"]["pytorch_calls"] == called
        assert program["counted"]["arena_bytes"] == program["memory"]["peak"]
    assert read


def test_instructions_are_measured_by_a_profile_alone(data):
    def steps(found):
        programs = [segment["program"] for segment in graph_of(found)[1]["segments"]]
        return [i for p in programs if p["counted"] for i in p["instructions"]]

    assert {step["measured_seconds"] for step in steps(data)} == {None}
    options = {"profile": True}
    with torch.no_grad():
        report = dovetail.explain(
            Model().eval(), torch.randn(8, 16), backend="cpu", options=options
        )
    found = report.to_dict()
    assert problems(json.loads(json.dumps(found))) == []
    assert all(0 < step["measured_seconds"] < 60 for step in steps(found))
    for segment in graph_of(found)[1]["segments"]:
        counted, counts = segment["program"]["counted"], segment["program"]["counts"]
        called = counts["library"] + counts["host"]
        assert not counted or counted["pytorch_calls"] == called * segment["measured"]["calls"]


def test_a_copy_into_an_input_is_the_call_that_writes():
    def fn(x):
        x.add_(1)
        return x * 2

    found = dovetail.explain(fn, torch.randn(4, 4), backend="cpu").to_dict()
    (graph,) = found["compilations"][0]["graphs"]
    steps = [i for s in graph["segments"] for i in s["program"]["instructions"]]
    assert [len(step["calls"]) for step in steps if step["kind"] == "copy"] == [1]


def test_kernels_have_code_and_the_calls_they_compute(data):
    compilation, graph = graph_of(data)
    kernels = {kernel["name"]: kernel for kernel in compilation["kernels"]}
    steps = [i for s in graph["segments"] for i in s["program"]["instructions"]]
    called = {step["name"] for step in steps if step["kind"] == "kernel"}
    assert called == kernels.keys()
    for name, kernel in kernels.items():
        assert name in kernel["ir"]
        assert kernel["schedule"].startswith(f"schedule {kernel['target']}")
        assert f"@{name}(" in kernel["llvm"]
        assert f"{name}:" in kernel["assembly"]
    softmax = next(c for c in graph["calls"] if c["op"] == "aten._softmax.default")
    segment = next(s for s in graph["segments"] if s["name"] == softmax["segment"])
    for number in softmax["instructions"]:
        assert softmax["name"] in segment["program"]["instructions"][number]["calls"]
    assert "= exp %" in softmax["expression"]


def test_memory_lies_in_the_arena(data):
    _, graph = graph_of(data)
    for segment in graph["segments"]:
        memory = segment["program"]["memory"]
        if memory is None:
            continue
        buffers = memory["buffers"]
        assert memory["bound"] <= memory["peak"] <= memory["sum"]
        assert memory["sum"] == sum(b["bytes"] for b in buffers)
        assert all(b["offset"] + b["bytes"] <= memory["peak"] for b in buffers)
        for a in buffers:
            for b in buffers:
                alive = a["first"] <= b["last"] and b["first"] <= a["last"]
                apart = (
                    a["offset"] + a["bytes"] <= b["offset"]
                    or b["offset"] + b["bytes"] <= a["offset"]
                )
                assert a is b or not alive or apart


def test_graph_breaks_say_where_and_why():
    def fn(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    found = dovetail.explain(fn, torch.randn(3), backend="reference")
    (only,) = found.to_dict()["graph_breaks"]
    assert only["source"]["code"] == "torch._dynamo.graph_break()"
    assert "graph break: " in str(found)
    assert len(found.compilations) == 2
    again = dovetail.explain(lambda x: x.sin(), torch.randn(3), backend="reference")
    assert again.graph_breaks == ()


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.gru = nn.Conv1d(4, 4, 1), nn.GRU(4, 4)

    def forward(self, x):
        y = self.conv(x).relu()
        z, _ = self.gru(y)
        return z.cos()


def test_a_graph_break_that_ends_the_function_says_why():
    x = torch.randn(2, 4, 4)
    for backend in ("reference", "cpu"):
        found = dovetail.explain(Recurrent().eval(), x, backend=backend).to_dict()
        (only,) = found["graph_breaks"]
        first = only["reason"].splitlines()[0]
        assert "GRU" in first
        assert first.endswith("function runs in Python")
        assert only["source"]["code"] == "z, _ = self.gru(y)"


def test_a_backend_whose_code_cannot_be_read_is_said_to_be_one():
    found = dovetail.explain(lambda x: x.sin(), torch.randn(3), backend="reference").to_dict()
    (graph,) = found["compilations"][0]["graphs"]
    assert problems(found) == []
    assert graph["counts"]["elsewhere"] + graph["counts"]["host"] == 1


def test_training_has_both_graphs_with_their_lines():
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    found = dovetail.explain(model, torch.randn(3, 4), backend="aten").to_dict()
    assert problems(found) == []
    forward, backward = found["compilations"][0]["graphs"]
    assert forward["counts"]["library"] == 1
    assert backward["calls"]
    assert all(call["text"] for call in (*forward["calls"], *backward["calls"]))


def test_those_who_do_not_ask_have_no_watch():
    torch.compile(lambda x: x.sin(), backend="aten")(torch.ones(3))
    assert history.recent()[-1].observer is None
    found = dovetail.Report(tuple(history.recent())).to_dict()
    assert problems(found) == []
    assert found["compilations"][-1]["graphs"][0]["counts"] is None


def test_a_record_does_not_hold_what_runs():
    found = dovetail.explain(lambda x: x.sin(), torch.ones(3), backend="aten")
    assert [c.observer for c in found.compilations] == [None]


def test_a_watch_sees_what_begins_while_it_watches():
    watch = Collector()
    with history.observed_by(watch):
        begun = history.begin("aten")
    assert begun.observer is watch
    assert history.begin("aten").observer is None
