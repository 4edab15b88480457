"""The report: what it says of calls, segments, copies and times, as data and as text."""

import copy
import json

import pytest
import torch
from torch import nn

import dovetail
from dovetail import Speed, Support, Transfer, cli, history
from dovetail.backends.aten import AtenBackend
from tests.report.schema import problems


class Accelerator(AtenBackend):
    """Takes products and relu; copies cost something, though little."""

    name = "accelerator"
    writes_in_place = False
    transfer = Transfer(latency_seconds=1e-9)
    speed = Speed(call_seconds=2e-6)

    def supports(self, call):
        if call.op in ("aten.mm.default", "aten.relu.default"):
            return Support.yes(3e-6 if call.op == "aten.mm.default" else 0.0)
        return Support.no("no kernel")


def report(fn=lambda x, y: (x @ y).relu().sin(), *args, **options):
    args = args or (torch.randn(4, 8), torch.randn(8, 2))
    return dovetail.explain(fn, *args, options={"backends": [Accelerator], **options})


def only_graph(data):
    (compilation,) = data["compilations"]
    (graph,) = compilation["graphs"]
    return graph


@pytest.mark.parametrize("profile", [False, True])
def test_the_data_is_as_the_schema_says(profile):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    data = report(model, torch.randn(3, 4), profile=profile).to_dict()
    assert {g["kind"] for c in data["compilations"] for g in c["graphs"]} == {
        "forward",
        "backward",
    }
    assert problems(json.loads(json.dumps(data))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.pop("format"),
        lambda d: d.update(format="dovetail.report/2"),
        lambda d: d.update(more=1),
        lambda d: d["compilations"][0].update(number=-1),
        lambda d: d["compilations"][0].update(number=True),
        lambda d: d["compilations"][0].update(backends=[]),
        lambda d: only_graph(d)["segments"][0]["ops"].update(x="y"),
        lambda d: only_graph(d)["segments"][0].update(measured={"calls": 0}),
        lambda d: only_graph(d)["calls"][0]["answers"][0].update(takes=None),
    ],
)
def test_the_schema_would_notice(change):
    data = copy.deepcopy(report().to_dict())
    assert problems(data) == []
    change(data)
    assert problems(data) != []


def test_calls_segments_and_copies():
    data = report().to_dict()
    graph = only_graph(data)
    assert data["compilations"][0]["backends"] == ["accelerator", "aten"]
    calls = {c["op"]: c for c in graph["calls"]}
    assert calls["aten.mm.default"]["backend"] == "accelerator"
    assert calls["aten.mm.default"]["segment"] == "segment_0"
    assert calls["aten.mm.default"]["answers"][0]["cost_seconds"] == 3e-6
    assert calls["aten.sin.default"]["answers"] == [
        {"backend": "accelerator", "takes": False, "reason": "no kernel", "cost_seconds": None}
    ]
    first, second = graph["segments"]
    assert first["ops"] == {"aten.mm.default": 1, "aten.relu.default": 1}
    assert (first["inputs"], first["bytes_in"]) == (2, 4 * 8 * 4 + 8 * 2 * 4)
    assert (first["outputs"], first["bytes_out"]) == (1, 4 * 2 * 4)
    assert first["estimated_seconds"] == pytest.approx(5e-6)  # 3 for mm, the speed's 2 for relu
    assert second["backend"] == "aten"
    assert second["copies"] == []
    assert graph["copies"] == [
        {"from": "host", "to": "accelerator", "count": 2, "bytes": 192},
        {"from": "accelerator", "to": "host", "count": 1, "bytes": 32},
    ]


def test_measured_times():
    assert only_graph(report().to_dict())["segments"][0]["measured"] is None
    torch.compiler.reset()
    profiled = report(profile=True)
    before = [s["measured"] for s in only_graph(profiled.to_dict())["segments"]]
    assert [m["calls"] for m in before] == [5, 5]
    assert all(0 < m["least_seconds"] <= m["mean_seconds"] for m in before)
    assert "(5x)" in str(profiled)


def test_a_profiled_model_keeps_counting():
    compiled = torch.compile(
        lambda x: x.sin(), backend="aten", options={"profile": True, "debug": False}
    )
    for _ in range(5):
        compiled(torch.ones(3))
    (segment,) = history.recent()[-1].graphs[0].segments
    assert segment.measured.calls == 5


def test_a_single_segment_of_two_inputs_is_timed():
    compiled = torch.compile(
        lambda x, y: (x * y).sin(), backend="cpu", options={"profile": True, "debug": False}
    )
    for _ in range(5):
        compiled(torch.ones(3), torch.ones(3))
    (segment,) = history.recent()[-1].graphs[0].segments
    assert segment.measured.calls == 5


def test_symbolic_sizes_are_those_of_the_example():
    compiled = torch.compile(lambda x: x.sin(), backend="aten", dynamic=True)
    compiled(torch.ones(6, 2))
    (segment,) = history.recent()[-1].graphs[0].segments
    assert segment.symbolic
    assert segment.bytes_in == segment.bytes_out == 48


def test_parameters_and_buffers_are_kept_not_given():
    model = nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        torch.compile(model, backend="aten")(torch.randn(3, 4))
    (segment,) = history.recent()[-1].graphs[0].segments
    assert (segment.inputs, segment.kept, segment.bytes_kept) == (1, 4, 4 * 4 * 4)


def test_buffers_that_the_graph_writes_to_are_given_at_every_call():
    model = nn.BatchNorm1d(4).train()
    with torch.no_grad():
        torch.compile(model, backend="aten")(torch.randn(3, 4))
    graph = history.recent()[-1].graphs[0]
    assert sum(s.kept for s in graph.segments) == 2  # weight and bias


def test_the_text():
    text = str(report())
    assert "backends accelerator, aten" in text
    assert "inference graph: 3 calls, 2 segments: 2 on accelerator, 1 on aten" in text
    assert "copies from host to accelerator: 2 (192 B) a call" in text
    assert "aten.sin.default (1x) refused by accelerator: no kernel" in text
    (row,) = (line for line in text.splitlines() if "segment_0" in line)
    assert row.endswith("  mm, relu")
    assert "5 µs" in row


def test_every_call_has_its_line():
    lines = report().calls().splitlines()
    assert lines[-1].strip() == "sin   aten.sin.default  on aten; accelerator: no kernel"
    assert len(lines) == 4


def test_many_segments_are_cut_short():
    def fn(x):
        for _ in range(30):
            x = (x + 1).relu()
        return x

    text = str(report(fn, torch.randn(3), keep_small=True))
    assert "and 20 more" in text


def test_nothing_compiled():
    found = dovetail.explain(lambda: None)
    assert str(found) == "nothing was compiled"
    assert problems(found.to_dict()) == []


@pytest.fixture
def factory(tmp_path, monkeypatch):
    (tmp_path / "my_models.py").write_text(
        "import torch\ndef mlp():\n    return torch.nn.Linear(4, 2), (torch.randn(3, 4),)\n"
    )
    monkeypatch.chdir(tmp_path)
    return "my_models:mlp"


def test_the_command(factory, capsys):
    assert cli.main(["explain", factory, "--backend", "reference", "--calls"]) == 0
    out = capsys.readouterr().out
    assert "backends reference, aten" in out
    assert "on reference" in out
    assert cli.main(["explain", factory, "--backends", "reference, aten", "--train", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert problems(data) == []
    kinds = [g["kind"] for c in data["compilations"] for g in c["graphs"]]
    assert kinds == ["forward", "backward"]


def test_the_command_with_a_mistake(factory, capsys):
    assert cli.main(["explain", "my_models:nothing"]) == 2
    assert "has no function 'nothing'" in capsys.readouterr().err
    assert cli.main(["explain", factory, "--backends", "referense"]) == 2
    assert "did you mean 'reference'" in capsys.readouterr().err


def test_changes_of_layout_are_counted():
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten()).eval()
    options = {"freeze": True, "cache": False}
    with torch.no_grad():
        report = dovetail.explain(model, torch.randn(1, 3, 9, 9), backend="cpu", options=options)
    every = [line for line in str(report).splitlines() if "of layout" in line]
    assert every == ["    2 changes of layout", "    2 changes of layout"]
    counts = {g["kind"]: g["segments"] for g in report.to_dict()["compilations"][0]["graphs"]}
    assert [s["reformats"] for s in counts["inference"]] == [2]  # into the first, out of the last


def test_the_stages_down_to_code_are_shown():
    report = dovetail.explain(lambda x: (x @ x).softmax(-1), torch.randn(4, 4), backend="cpu")
    (compilation,) = report.compilations
    names = [stage.name for stage in compilation.stages if stage.graph == "inference"]
    shown = ["place", "layout", "lower", "schedule", "codegen", "encode", "compile", "link"]
    assert names[-len(shown) :] == shown
    assert all(stage.ms >= 0 for stage in compilation.stages)
