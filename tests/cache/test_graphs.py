"""Whole compilations through the cache: the second time nothing is compiled, results are the same.

Each case runs in this process with Dynamo reset in between; ``test_another_process`` has the real
thing.
"""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import nn

import dovetail
from dovetail import cache, history
from dovetail.cache import flight
from dovetail.compiled import decode, encode
from tests.differential import needs_code
from tests.held_here import REASON, HeldHere


@pytest.fixture(autouse=True)
def _counted(monkeypatch):
    """Counts what is compiled: each segment that a backend is asked for code of."""
    from dovetail.compilers import segments

    compiled.clear()
    original = segments.compile_segment

    def count(backend, segment):
        compiled.append(backend.name)
        return original(backend, segment)

    monkeypatch.setattr(segments, "compile_segment", count)


compiled = []


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.down = nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4)

    def forward(self, x):
        return self.down(self.norm(nn.functional.gelu(self.up(x)))) + torch.arange(4.0)


def states():
    return [verdict.state for verdict in history.recent()[-1].cache]


def twice(fn, args, *, backend="cpu", dynamic=None, **options):
    """Results of a function compiled twice; the second compilation finds all in the cache."""
    results = []
    for expected in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        call = torch.compile(fn, backend=backend, dynamic=dynamic, options=options)
        before = len(compiled)
        results.append(call(*args))
        verdicts = [v for c in history.recent() for v in c.cache]
        assert {v.state for v in verdicts} == {expected}, verdicts
        assert (len(compiled) > before) == (expected == "miss")
    return results


@pytest.mark.parametrize("freeze", [False, True])
@pytest.mark.parametrize("backend", ["cpu", "portable", "aten", "reference"])
def test_inference(backend, freeze):
    model, x = Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        first, second = twice(model, (x,), backend=backend, freeze=freeze)
        torch.testing.assert_close(first, model(x))
    assert torch.equal(first, second)
    assert [v.graph for v in history.recent()[-1].cache] == ["dynamo"]  # before AOTAutograd


def test_a_model_cut_into_many_segments():
    model, x = Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        first, second = twice(model, (x,), backend="portable", backends=["portable", "cpu"])
    assert torch.equal(first, second)
    assert len(history.recent()[-1].graphs[-1].segments) > 1


def test_training():
    model, x = Block(), torch.randn(3, 8)

    def step():
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad.clone() for p in model.parameters()]

    expected = step()
    for state in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        call = torch.compile(model, backend="cpu")
        model.zero_grad()
        call(x).square().sum().backward()
        assert states() == [state] * 3
        graphs = {v.graph for v in history.recent()[-1].cache}
        assert graphs == {"dynamo", "forward", "backward"}
        for p, grad in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(p.grad, grad)


def test_what_is_written_in_place():
    def fn(x, y):
        x.mul_(2)
        return x.view(-1)[1:] + y

    for state in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        x, other = torch.ones(2, 2), torch.ones(2, 2)
        result = torch.compile(fn, backend="cpu")(x, torch.ones(3))
        assert torch.equal(result, fn(other, torch.ones(3)))
        assert torch.equal(x, other)
        assert [v.state for v in history.recent()[-1].cache] == ["miss", state]


def test_sizes_that_vary():
    def fn(x):
        return (x * 2).softmax(-1).sum(0), x.shape[0]

    torch.compiler.reset()
    for state in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        call = torch.compile(fn, backend="cpu", dynamic=True)
        for rows in (3, 5, 17):
            x = torch.randn(rows, 6)
            result, count = call(x)
            torch.testing.assert_close(result, fn(x)[0])
            assert count == rows
        assert len(history.recent()) == 1
        assert states()[-1] == state, history.recent()[-1].cache


def test_a_frozen_model_found_in_the_cache_follows_its_weights():
    model, x = Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        twice(model, (x,), freeze=True)
        call = torch.compile(model, backend="cpu", options={"freeze": True})
        call(x)
        for p in model.parameters():
            p.mul_(0.5)
        torch.testing.assert_close(call(x), model(x))


def test_another_model_of_the_same_form_has_its_own_weights():
    first, second, x = Block().eval(), Block().eval(), torch.randn(3, 8)
    with torch.no_grad():
        for freeze in (False, True):
            for model, state in ((first, "miss"), (second, "hit")):
                torch.compiler.reset()
                history.clear()
                result = torch.compile(model, backend="cpu", options={"freeze": freeze})(x)
                assert states() == [state]
                torch.testing.assert_close(result, model(x))


def test_export_finds_what_export_stored():
    model, x = Block().eval(), torch.randn(3, 8)
    first = dovetail.export(model, (x,), backend="cpu")
    before = len(compiled)
    second = dovetail.export(model, (x,), backend="cpu")
    assert len(compiled) == before
    assert second.compiled == first.compiled
    assert torch.equal(first(x), second(x))


def test_random_numbers_are_drawn_anew():
    dropout = nn.Dropout(0.5)
    results = []
    for state in ("miss", "hit"):
        torch.compiler.reset()
        history.clear()
        torch.manual_seed(3)
        with torch.no_grad():
            results.append(torch.compile(lambda x: dropout(x) + 1, backend="cpu")(torch.ones(64)))
        assert history.recent()[-1].cache[-1].state == state
    torch.manual_seed(3)
    assert torch.equal(results[0], dropout(torch.ones(64)) + 1)
    assert torch.equal(results[0], results[1])


class Broken(HeldHere):
    name = "broken_compiler"

    def compile(self, segment):
        raise RuntimeError("no licence")


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        (HeldHere, REASON),
        (Broken, "the backend 'broken_compiler' failed to compile a segment"),
    ],
)
@pytest.mark.filterwarnings("ignore::dovetail.errors.FallbackWarning")
def test_what_is_not_stored_says_why(backend, reason):
    x = torch.randn(5)
    for _ in range(2):
        torch.compiler.reset()
        history.clear()
        options = {"backends": [backend(), "cpu"], "strict": False}
        result = torch.compile(lambda x: x.sin() + 1, backend="dovetail", options=options)(x)
        torch.testing.assert_close(result, x.sin() + 1)
        assert states() == ["miss", "bypass"]
        assert history.recent()[-1].cache[-1].reason == reason
    assert cache.stats().bypasses[reason] == 2


def test_a_constant_that_cannot_be_written_costs_nothing_but_the_entry():
    """A constant whose elements lie far apart has no form in an entry."""

    def fn(x):
        return x + torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0])[::4]

    x = torch.randn(3)
    for backend in ("cpu", "aten"):
        torch.compiler.reset()
        history.clear()
        torch.testing.assert_close(torch.compile(fn, backend=backend)(x), fn(x))
        assert history.recent()[-1].cache[-1].state == "bypass"
        assert "it cannot be written" in history.recent()[-1].cache[-1].reason


def test_an_entry_that_does_not_load_is_compiled_again(monkeypatch):
    x = torch.randn(5)
    stored = {}
    monkeypatch.setattr(cache, "lookup", lambda key: cache.Hit(stored.get("x", b"junk"), "local"))
    result = torch.compile(lambda x: x.sin() + 1, backend="cpu")(x)
    torch.testing.assert_close(result, x.sin() + 1)
    assert "does not load" in history.recent()[-1].cache[0].reason


def _of_nobody(graph):
    segments = tuple(replace(each, backends=("nobody",)) for each in graph.every.segments)
    return replace(graph, every=replace(graph.every, segments=segments))


def _with_an_input_more(graph):
    more = replace(graph.every.inputs[0], name="another")
    return replace(graph, every=replace(graph.every, inputs=(*graph.every.inputs, more)))


@pytest.mark.parametrize(
    ("change", "reason"),
    [(_of_nobody, "nobody"), (_with_an_input_more, "it takes 2 inputs, not 1")],
)
def test_an_entry_of_another_graph_is_compiled_again(monkeypatch, change, reason):
    def fn(x):
        return x.sin() * torch.tensor([1.0, 2.0])

    x = torch.randn(2)
    torch.compiler.reset()
    torch.compile(fn, backend="cpu")(x)
    for module, name in ((cache, "lookup"), (flight, "_stored")):
        original = getattr(module, name)

        def changed(*args, original=original):
            found = original(*args)
            payload = getattr(found, "payload", found)
            made = encode(change(decode(payload)))
            return cache.Hit(made, "local") if isinstance(found, cache.Hit) else made

        monkeypatch.setattr(module, name, changed)
    torch.compiler.reset()
    torch.testing.assert_close(torch.compile(fn, backend="cpu")(x), fn(x))
    assert reason in history.recent()[-1].cache[0].reason


def test_explain_asks_the_cache_and_shows_every_stage_all_the_same():
    fn, x = (lambda x: x.sin() + 1), torch.randn(5)
    for state in ("miss", "hit"):
        torch.compiler.reset()
        report = dovetail.explain(fn, x, backend="cpu")
        assert f"cache, dynamo graph: {state}" in str(report)
        (compilation,) = report.to_dict()["compilations"]
        assert compilation["cache"][0]["state"] == state
        assert "codegen" in [stage["name"] for stage in compilation["stages"]]
        torch.compiler.reset()
        torch.compile(fn, backend="cpu")(x)


def test_what_was_compiled_elsewhere_can_be_reported():
    fn, x = (lambda x: x.sin() + 1), torch.randn(5)
    twice(fn, (x,))
    (segment,) = history.recent()[-1].graphs[0].segments
    assert segment.ops == {"aten.sin.default": 1, "aten.add.Tensor": 1}
    assert history.recent()[-1].graphs[0].backend_counts() == {"cpu": 2}


_PROCESS = """
import torch
from torch import nn
import dovetail
from dovetail import cache, history
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4)).eval()
with torch.no_grad():
    result = torch.compile(model, backend="dovetail", options={"freeze": True})(torch.ones(3, 8))
    assert torch.allclose(result, model(torch.ones(3, 8)), atol=1e-6)
import sys
print([v.state for v in history.recent()[-1].cache], "llvmlite.binding" in sys.modules)
"""


@needs_code
def test_another_process_finds_it_and_loads_no_compiler(tmp_path):
    runs = [
        subprocess.run(
            [sys.executable, "-c", _PROCESS],
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert runs == ["['miss'] True", "['hit'] False"]
