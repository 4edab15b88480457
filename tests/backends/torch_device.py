"""Trials of a torch device of another package, in a process of their own: python -m … LIBRARY.

PyTorch has one such device a process, and keeps it. Each trial is a line of JSON: its name, what
was counted, and what was wrong.
"""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import pytest
import torch

import dovetail
from dovetail import history

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "torch_device"))
import vault

BACKEND = "vault_accel"
WITH_CPU = {"backends": [BACKEND, "cpu"]}
TRIALS = {}


def trial(fn):
    TRIALS[fn.__name__] = fn
    return fn


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        self.norm = torch.nn.LayerNorm(8)
        self.register_buffer("calls", torch.zeros(3))

    def forward(self, x):
        self.calls.add_(1)
        return self.b(self.norm(self.a(x).relu())) * self.calls[0]


def network():
    torch.manual_seed(0)
    return Network().to("vault")


def batch(rows=3):
    return torch.randn(rows, 4, generator=torch.Generator().manual_seed(rows)).to("vault")


class Counted:
    """What the device counts within a ``with``."""

    def __enter__(self):
        self.before = vault.counters()
        return self

    def __exit__(self, *_):
        self.counts = {k: n - self.before[k] for k, n in vault.counters().items()}


def close(mine, theirs):
    torch.testing.assert_close(mine.cpu(), theirs.cpu(), rtol=1e-5, atol=1e-5)


def inference(options=None, dynamic=None, backend=BACKEND):
    """Two sizes, twice; the last call is counted."""
    model = network()
    compiled = torch.compile(network(), backend=backend, options=options, dynamic=dynamic)
    with torch.no_grad():
        for rows in (3, 5, 3, 5):
            x = batch(rows)
            with Counted() as counted:
                found = compiled(x)
            assert found.device == torch.device("vault:0")
            close(found, model(x))
    return counted.counts


@trial
def forward():
    return inference()


@trial
def forward_by_default():
    return inference(backend="dovetail")


@trial
def forward_before_the_cpu():
    return inference(WITH_CPU)


@trial
def forward_with_dynamic_sizes():
    return inference(dynamic=True)


@trial
def forward_frozen():
    return inference({"freeze": True})


@trial
def forward_compared():
    """``check`` compares on the device; what it fetches is the verdicts, a few bytes each."""
    counts = inference({"check": True})
    assert counts.pop("bytes_out") < 8 * counts.pop("to_host"), counts
    return counts


@trial
def forward_compiled_by_a_worker():
    return inference({"compile": "subprocess"})


@trial
def forward_from_the_cache():
    inference({"cache": True})
    torch.compiler.reset()
    counts = inference({"cache": True})
    graphs = [graph for each in history.recent() for graph in each.graphs]
    assert graphs
    return counts


@trial
def forward_on_the_second_device():
    model = network().to("vault:1")
    x = batch().to("vault:1")
    compiled = torch.compile(network().to("vault:1"), backend=BACKEND)
    with torch.no_grad():
        close(compiled(x), model(x))
        with Counted() as counted:
            found = compiled(x)
        assert found.device == torch.device("vault:1")
        close(found, model(x))
    return counted.counts


def training(options=None, dynamic=None):
    model, other = network(), network()
    compiled = torch.compile(model, backend=BACKEND, options=options, dynamic=dynamic)
    optimiser, theirs = (
        torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9) for m in (model, other)
    )
    for rows in (3, 3, 5, 7, 7):
        x = batch(rows)
        with Counted() as counted:
            compiled(x).pow(2).mean().backward()
            optimiser.step()
            optimiser.zero_grad()
        other(x).pow(2).mean().backward()
        theirs.step()
        theirs.zero_grad()
        for mine, expected in zip(model.parameters(), other.parameters(), strict=True):
            close(mine, expected)
    return counted.counts


@trial
def training_steps():
    return training()


@trial
def training_steps_with_dynamic_sizes():
    return training(dynamic=True)


@trial
def training_steps_before_the_cpu():
    return training(WITH_CPU)


@trial
def random_draws_are_those_of_eager():
    def draw(x):
        return torch.nn.functional.dropout(x, 0.5) + torch.rand(3, 4, device="vault").relu()

    compiled = torch.compile(draw, backend=BACKEND)
    x = batch()
    compiled(x)
    torch.manual_seed(5)
    with Counted() as counted:
        mine = compiled(x)
    torch.manual_seed(5)
    assert torch.equal(mine.cpu(), draw(x).cpu())
    return counted.counts


@trial
def the_models_own_copies_and_no_others():
    """One tensor each way, whatever is before and behind."""
    on_device, on_host = torch.nn.Linear(4, 8).to("vault"), torch.nn.Linear(8, 3)

    def run(x):
        return on_host(on_device(x).relu().cpu() * 2).to("vault").relu()

    compiled = torch.compile(run, backend=BACKEND, options=WITH_CPU)
    x = batch()
    with torch.no_grad():
        close(compiled(x), run(x))
        with Counted() as counted:
            close_later = compiled(x)
        close(close_later, run(x))
    counts = counted.counts
    assert (counts.pop("to_device"), counts.pop("to_host")) == (1, 1), counts
    assert (counts.pop("bytes_in"), counts.pop("bytes_out")) == (3 * 3 * 4, 3 * 8 * 4), counts
    return counts


@trial
def no_other_backend_is_given_its_tensors():
    """``host`` would take any call, but says that it runs on the host."""
    seen = []

    class Host(dovetail.KernelBackend):
        name = "host"

        @dovetail.kernel("aten.relu.default")
        def relu(x):
            seen.append(str(x.device))
            return torch.relu(x)

    options = {"backends": [Host, BACKEND]}
    compiled = torch.compile(lambda x, y: (x.relu(), y.relu()), backend="dovetail", options=options)
    x = batch()
    compiled(x, x.cpu())
    assert seen == ["cpu"], seen
    with Counted() as counted:
        compiled(x, x.cpu())
    assert counted.counts.pop("to_host") == 1  # the argument's
    report = str(dovetail.explain(lambda x: x.relu(), x, backend="dovetail", options=options))
    assert "a tensor is on vault:0, and it runs on cpu" in report, report
    return {"kernels": counted.counts["kernels"]}


@trial
def constants_and_inputs_that_are_written_to():
    kept = torch.zeros(3, 4, device="vault")

    def run(x):
        kept.add_(x)
        x.mul_(2)
        return (kept * 2).relu(), torch.tensor([1.0, 2, 3, 4], device="vault") * x

    compiled = torch.compile(run, backend=BACKEND)
    mine, theirs = batch(), batch()
    compiled(mine)
    with Counted() as counted:
        found = compiled(mine)
    kept.zero_()
    run(theirs)
    for a, b in zip((*found, mine), (*run(theirs), theirs), strict=True):
        close(a, b)
    return counted.counts


@trial
def saving_says_what_to_do():
    artifact = dovetail.export(network(), (batch(),), backend=BACKEND)
    with pytest.raises(dovetail.errors.CannotSave, match="on vault:0: move the model to the CPU"):
        artifact.save("never.dvt")
    return {"kernels": 1}


def run_all(library):
    vault.load(library)
    for name, fn in TRIALS.items():
        torch.compiler.reset()
        torch.manual_seed(0)
        try:
            counts, problem = fn(), ""
        except Exception:
            counts, problem = {}, traceback.format_exc()
        print(json.dumps([name, counts, problem]), flush=True)


if __name__ == "__main__":
    run_all(sys.argv[1])
