"""Architectures of ``transformers`` against eager, compiled, frozen, trained and in files.

``make models`` runs these; ``make models ARGS="-k llama"`` those of a name. Weights are random.
"""

import copy
import os
import pickle
import subprocess
import sys
from importlib.util import find_spec

import pytest
import torch

import dovetail
from dovetail import errors
from tests.architectures.configurations import ARCHITECTURES, make
from tests.architectures.judged import (
    TRAINING_LEAST,
    TRAINING_TIMES,
    check,
    double,
    in_double,
    run,
    train,
)

if not os.environ.get("DOVETAIL_ARCHITECTURES"):
    pytest.skip("they take long: make models", allow_module_level=True)
if find_spec("transformers") is None:
    pytest.skip("transformers is not installed: make models", allow_module_level=True)

pytestmark = pytest.mark.e2e
# What some call has no kernel for, so that their files need PyTorch.
NEED_TORCH = {
    "mixtral": "aten.topk",
    "qwen3_moe": "aten.topk",
    "fnet": "aten._fft",
}
# What PyTorch's exporter does not take as one graph: how they go on depends on their data.
NOT_EXPORTED = ("longformer", "switch_transformers")
WITHOUT_TORCH = """
import pickle
import sys
sys.modules["torch"] = None  # an ImportError for whoever wants it
import numpy
import dovetail

file, inputs = sys.argv[1:]
made = dovetail.load(file, trust=True)(**pickle.load(open(inputs, "rb")))

def leaves(value):
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [leaf for each in value for leaf in leaves(each)]
    return [] if value is None else [numpy.array(numpy.from_dlpack(value))]

pickle.dump(leaves(made), open(inputs, "wb"))
"""


EACH = [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ARCHITECTURES]


@pytest.fixture(scope="module", params=EACH)
def case(request):
    """A model, two batches, what eager makes of them, what is exact."""
    model, inputs = make(request.param)
    torch.manual_seed(1)
    batches = [inputs(2, 16), inputs(3, 20)]
    exact = double(model)
    eager = [run(model, batch) for batch in batches]
    return model, batches, eager, [run(exact, in_double(batch)) for batch in batches]


@pytest.mark.parametrize("freeze", [False, True])
def test_the_same_as_eager(case, freeze):
    model, batches, eager, exact = case
    compiled = torch.compile(model, backend="dovetail", options={"freeze": freeze})
    for batch, expected, right in zip(batches, eager, exact, strict=True):
        check(run(compiled, batch), expected, right)


def test_three_steps_of_training(case):
    model, (first, second), _, _ = case
    batches = (first, first, second)
    eagers, ours, exact = copy.deepcopy(model), copy.deepcopy(model), double(model)
    compiled = torch.compile(ours.train(), backend="dovetail")
    check(
        train(compiled, ours, batches),
        train(eagers.train(), eagers, batches),
        train(exact.train(), exact, [in_double(batch) for batch in batches]),
        TRAINING_TIMES,
        TRAINING_LEAST,
    )


def test_a_file_runs_without_torch(case, request, tmp_path):
    model, (batch, _), (expected, _), (exact, _) = case
    name, file = request.node.callspec.params["case"], tmp_path / "model.dvt"
    if name in NOT_EXPORTED:
        with pytest.raises(errors.ExportFailed):
            dovetail.export(model, (), batch)
        return
    with torch.no_grad():
        artifact = dovetail.export(model, (), batch)
    check(run(artifact, batch), expected, exact)
    if name in NEED_TORCH:
        with pytest.raises(errors.CannotSave, match=NEED_TORCH[name]):
            artifact.save(file, without_torch=True)
        return
    artifact.save(file, without_torch=True)
    check(run(dovetail.load(file, trust=True), batch), expected, exact)
    (tmp_path / "inputs").write_bytes(pickle.dumps({k: v.numpy() for k, v in batch.items()}))
    command = [sys.executable, "-c", WITHOUT_TORCH, str(file), str(tmp_path / "inputs")]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    found = pickle.loads((tmp_path / "inputs").read_bytes())
    check([torch.from_numpy(each) for each in found], expected, exact)
