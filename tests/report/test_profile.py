"""Profiles: what each kernel took, its place under the machine's limits, traces, torch.profiler."""

import itertools
import json

import pytest
import torch
from torch import nn

import dovetail
from dovetail import history
from dovetail.capture._torch.profiler import LINES, name_kernels_in_profiles
from dovetail.cli import main
from dovetail.report import limits
from dovetail.report.report import PROFILED_RUNS
from dovetail.report.slowest import slowest
from dovetail.report.trace import COMPILER, RUNS, trace_events
from tests.differential import needs_code
from tests.report.schema import problems

pytestmark = needs_code


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(16, 32)

    def forward(self, x):
        y = self.linear(x).relu() * 2
        values, _ = y.topk(3)
        return y.softmax(-1), values


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    torch.compiler.reset()
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        found = dovetail.explain(
            Model().eval(), torch.randn(8, 16), backend="cpu", options={"profile": True}
        )
    return found.to_dict()


def instructions(data):
    (graph,) = data["compilations"][0]["graphs"]
    return [row for segment in graph["segments"] for row in segment["program"]["instructions"]]


def test_the_data_is_as_the_schema_says(data):
    assert problems(json.loads(json.dumps(data))) == []


def test_every_instruction_was_measured(data):
    for row in instructions(data):
        assert 0 < row["measured_seconds"] <= row["last_seconds"]
        assert row["bytes"] > 0
    (segment,) = data["compilations"][0]["graphs"][0]["segments"]
    assert segment["measured"]["calls"] == PROFILED_RUNS
    told = [
        (each["name"].rpartition("@")[0] or each["name"])
        for each in segment["measured"]["instructions"]
    ]
    assert told == [row["name"] for row in instructions(data)]
    least = [each["least_seconds"] for each in segment["measured"]["instructions"]]
    assert least == [row["measured_seconds"] for row in instructions(data)]


def test_the_last_run_went_in_order(data):
    rows = instructions(data)
    for before, after in itertools.pairwise(rows):
        end = before["last_started_seconds"] + before["last_seconds"]
        assert end <= after["last_started_seconds"] + 1e-9


def test_work_is_counted(data):
    relu = next(row for row in instructions(data) if "relu" in row["name"] or "max" in row["name"])
    weights, rows_in, rows_out = 16 * 32 + 32, 8 * 16, 8 * 32
    assert relu["bytes"] == 4 * (weights + rows_in + rows_out)
    # A product and a sum for each of 16, the bias, relu, times 2: a few more where they are cut.
    assert 8 * 32 * (2 * 16 + 1) <= relu["operations"] <= 8 * 32 * (2 * 16 + 8)


def test_the_roofline_is_of_the_limits_in_the_report(data):
    most = data["limits"]
    for row in instructions(data):
        found, seconds = row["roofline"], row["measured_seconds"]
        memory = row["bytes"] / most["bytes_per_second"]
        units = row["operations"] / most["operations_per_second"]
        assert found["share"] == pytest.approx(max(memory, units) / seconds)
        assert found["bound"] == ("memory" if memory >= units else "compute")
        assert found["bytes_per_second"] == pytest.approx(row["bytes"] / seconds)


def test_the_terminal_shows_the_figures_of_the_data(data, capsys):
    terminal = pytest.importorskip("dovetail.cli.terminal", reason="rich is not installed")
    terminal.show_report(data)
    out = capsys.readouterr().out
    costs = slowest(instructions(data))
    assert sum(cost.seconds for cost in costs) == pytest.approx(
        sum(row["measured_seconds"] for row in instructions(data))
    )
    for cost in costs:
        assert f"{cost.limit:.0%} {cost.bound}" in out
        assert f"{cost.bytes / cost.seconds / 1e9:.3g}" in out
    assert f"{data['limits']['bytes_per_second'] / 1e9:.3g} GB/s copied" in out


def test_the_trace_is_one_of_trace_events(data):
    trace = json.loads(json.dumps(trace_events(data)))
    assert trace["displayTimeUnit"] in ("ms", "ns")
    for event in trace["traceEvents"]:
        assert event["ph"] in ("M", "X")
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            assert event["name"] in ("process_name", "thread_name")
            assert isinstance(event["args"]["name"], str)
        else:
            assert event["ts"] >= 0
            assert event["dur"] >= 0
            assert isinstance(event["cat"], str)
            assert isinstance(event["args"], dict)


def test_the_trace_has_every_stage_and_instruction_with_its_line(data):
    events = [event for event in trace_events(data)["traceEvents"] if event["ph"] == "X"]
    stages = [e["name"] for e in events if e["pid"] == COMPILER]
    assert stages == [stage["name"] for stage in data["compilations"][0]["stages"]]
    ran = [e for e in events if e["pid"] == RUNS]
    assert [e["name"] for e in ran] == [row["name"] for row in instructions(data)]
    (topk,) = (e for e in ran if e["name"] == "aten.topk.default")
    assert topk["args"]["lines"] == [f"{__file__}:31: values, _ = y.topk(3)"]
    assert topk["dur"] == pytest.approx(instructions(data)[ran.index(topk)]["last_seconds"] * 1e6)


def test_limits_are_the_best_ever_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    measured = iter([(1e9, 5e9), (3e9, 4e9), (2e9, 2e9)])
    monkeypatch.setattr(
        limits, "_measure", lambda _: dict(zip(limits._KEYS, next(measured), strict=True))
    )
    told = [limits.machine_limits() for _ in range(3)]
    found = [tuple(each[key] for key in limits._KEYS) for each in told]
    assert found == [(1e9, 5e9), (3e9, 5e9), (3e9, 5e9)]


@pytest.mark.parametrize("text", ["", "[]", "{", '{"x": 3}', '{"x": {"bytes_per_second": -1}}'])
def test_a_spoilt_file_of_limits_is_measured_anew(text, tmp_path, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    (tmp_path / "limits.json").write_text(text)
    monkeypatch.setattr(limits, "_measure", lambda _: dict.fromkeys(limits._KEYS, 1e9))
    assert limits.machine_limits()["bytes_per_second"] == 1e9


def test_torch_profiler_knows_kernels_and_library_calls_by_name():
    torch.compiler.reset()
    compiled = torch.compile(Model().eval(), backend="cpu", options={"cache": False})
    x = torch.randn(8, 16)
    with torch.no_grad():
        compiled(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            compiled(x)
        compiled(x)  # nothing is told any more
    names = [event.name for event in profile.events()]
    generated = [name for name in names if name.startswith("generated.")]
    assert len(generated) >= 2
    assert "aten.topk.default" in names
    assert len(generated) == len(set(generated))  # one run was watched


def test_torch_profiler_shows_the_lines_of_what_option_profile_compiled():
    torch.compiler.reset()
    compiled = torch.compile(Model().eval(), backend="cpu", options={"profile": True})
    x = torch.randn(8, 16)
    compiled(x)[0].sum().backward()
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        compiled(x)[0].sum().backward()
    lines = {event.name: event.kwinputs.get(LINES, "") for event in profile.events()}
    assert f"{__file__}:31: values, _ = y.topk(3)" == lines["aten.topk.default"]
    told = "\n".join(text for name, text in lines.items() if name.startswith("generated."))
    for line in ("30: y = self.linear(x).relu() * 2", "32: return y.softmax(-1), values"):
        assert f"{__file__}:{line}" in told
    assert all(lines[name] for name in lines if name.startswith("generated."))


def test_a_profiler_that_fails_does_not_fail_the_run(monkeypatch):
    import torch.autograd.profiler as profiler

    from dovetail import _native

    class Broken:
        def __init__(self, name):
            raise RuntimeError(name)

    compiled = torch.compile(lambda x: (x * 3).sin(), backend="cpu", options={"cache": False})
    x = torch.randn(5)
    expected = compiled(x)
    try:
        _native.watch_profiler(vars(profiler), "_is_profiler_enabled", Broken)
        monkeypatch.setattr(profiler, "_is_profiler_enabled", True)
        torch.testing.assert_close(compiled(x), expected)
    finally:
        name_kernels_in_profiles.cache_clear()
        name_kernels_in_profiles()


def test_the_option_profile_measures_kernels_of_any_compiled_model():
    torch.compiler.reset()
    before = {c.number for c in history.recent()}
    options = {"profile": True, "cache": False}
    compiled = torch.compile(lambda x: (x + 1).exp(), backend="cpu", options=options)
    for _ in range(3):
        compiled(torch.randn(7))
    found = tuple(c for c in history.recent() if c.number not in before)
    (segment,) = dovetail.Report(found).to_dict()["compilations"][0]["graphs"][0]["segments"]
    assert segment["measured"]["calls"] == 3
    (kernel,) = segment["measured"]["instructions"]
    assert kernel["name"].startswith("generated.")
    assert kernel["least_seconds"] > 0


def test_run_prints_a_profile_and_writes_a_trace(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    path, trace = str(tmp_path / "m.dvt"), str(tmp_path / "trace.json")
    factory = "tests.artifact.factories:dynamic"
    assert main(["compile", factory, "-o", path, "-q", "--backend", "cpu"]) == 0
    argv = ["run", path, "--random", "--size", "5", "--repeat", "2", "--profile", "--trace", trace]
    assert main(argv) == 0
    out = capsys.readouterr().out
    assert "of limit" in out
    assert "limits measured here" in out
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert slices
    assert all(e["args"]["bytes"] > 0 for e in slices)
