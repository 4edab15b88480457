"""Whole compilations: what matters, changed, is a miss that names it; what does not is a hit.

The parts of keys one by one are in ``test_graph_key.py``; other processes in
``test_key_processes.py``.
"""

from pathlib import Path

import pytest
import torch
from torch import nn

from dovetail import history
from dovetail.backends.aten import AtenBackend
from dovetail.cache import graph_key
from dovetail.file.processors import processor_here, processor_name
from dovetail.passes import PassManager


class Levelled(AtenBackend):
    name = "levelled"

    def __init__(self, *, level=1):
        self.level = level


def leave_alone(gm):
    return gm


class Call:
    """One compilation and call; tests change what is in it or around it."""

    def __init__(self):
        self.x, self.level, self.seed, self.options = torch.ones(3, 8), 1, 0, {}
        self.dtype, self.trains, self.slope = torch.float32, False, 0.5

    def run(self):
        """What the cache said of the Dynamo graph."""
        torch.compiler.reset()
        history.clear()
        torch.manual_seed(self.seed)
        model = nn.Sequential(nn.Linear(8, 4), nn.LeakyReLU(self.slope)).to(self.dtype)
        options = {"backends": [Levelled(level=self.level)], **self.options}
        x = self.x.to(self.dtype)
        with torch.set_grad_enabled(self.trains):
            result = torch.compile(model, backend="dovetail", options=options)(x)
            torch.testing.assert_close(result, model(x))
        if self.trains:
            result.sum().backward()
        (compilation,) = history.recent()
        (said,) = [v for v in compilation.cache if v.graph == "dynamo"]
        return said


def other_sources(call, monkeypatch):
    monkeypatch.setattr(graph_key, "own_digest", lambda: "other sources")
    graph_key._versions.cache_clear()


MATTERS = {
    "shape": (lambda call, _: setattr(call, "x", torch.ones(5, 8)), {"input 0"}),
    "dtype": (lambda call, _: setattr(call, "dtype", torch.float64), {"input 0", "parameters"}),
    "a number in the graph": (lambda call, _: setattr(call, "slope", 0.25), {"graph"}),
    "option": (lambda call, _: call.options.update(freeze=True), {"option freeze"}),
    "pass": (
        lambda call, _: call.options.update(passes=PassManager().add("post_grad", leave_alone)),
        {"passes"},
    ),
    "backend option": (lambda call, _: setattr(call, "level", 2), {"backend levelled"}),
    "processor": (
        lambda _, monkeypatch: monkeypatch.setenv("DOVETAIL_PROCESSOR", "x86-64-v2"),
        {"processor"},
    ),
    "sources": (other_sources, {"dovetail"}),
    "setting": (
        lambda _, monkeypatch: monkeypatch.setattr(
            torch.utils.deterministic, "fill_uninitialized_memory", False
        ),
        {"deterministic"},
    ),
}
DOES_NOT = {
    "seed": lambda call, monkeypatch, path: setattr(call, "seed", 7),
    "folder": lambda call, monkeypatch, path: monkeypatch.chdir(path),
    "environment": lambda call, monkeypatch, path: monkeypatch.setenv("UNRELATED", "1"),
    "values": lambda call, monkeypatch, path: setattr(call, "x", torch.randn(3, 8)),
    "report": lambda call, monkeypatch, path: call.options.update(keep_graphs=True),
}


@pytest.fixture(params=[False, True], ids=["inference", "training"])
def stored(request):
    """A call whose compilation is in the cache."""
    call = Call()
    call.trains = request.param
    assert call.run().state == "miss"
    yield call
    graph_key._versions.cache_clear()


@pytest.mark.parametrize("name", MATTERS)
def test_what_matters_is_a_miss_that_names_it(stored, name, monkeypatch):
    if name == "processor" and processor_name(processor_here()) == "x86-64-v2":
        pytest.skip("there is no smaller processor than the one this process is held to")
    change, parts = MATTERS[name]
    with monkeypatch.context() as patch:
        change(stored, patch)
        said = stored.run()
        assert said.state == "miss"
        assert set(said.nearest) == parts
        assert stored.run().state == "hit"  # now it is known too
        graph_key._versions.cache_clear()


def test_what_does_not_matter_is_a_hit(stored, monkeypatch, tmp_path):
    before = Path.cwd()
    for change in DOES_NOT.values():
        change(stored, monkeypatch, tmp_path)
    assert Path.cwd() != before
    assert stored.run().state == "hit"
