"""Every model is exported, saved, loaded in a new process, and gives the same bits."""

import copy
import json
import subprocess
import sys

import pytest
import torch

from tests.artifact.cases import artifact_of, cases, package_of

tree_leaves = torch.utils._pytree.tree_leaves
pytestmark = pytest.mark.xdist_group("artifact")

CHILD = """
import copy, json, sys, torch, dovetail
from pathlib import Path
tree_leaves = torch.utils._pytree.tree_leaves
results = {}
for file in sorted(Path(sys.argv[1]).glob("*.dvt")):
    run, problems = dovetail.load(file), []
    calls = torch.load(file.with_suffix(".pt"))
    for args, kwargs, written, outputs in calls:
        got = tree_leaves(run(*args, **kwargs))
        for a, b in zip(got + tree_leaves((args, kwargs)), outputs + written, strict=True):
            if isinstance(b, torch.Tensor):
                same = a.dtype == b.dtype and a.shape == b.shape
                same = same and bytes(a.contiguous().flatten().view(torch.uint8).tolist()) == bytes(
                    b.contiguous().flatten().view(torch.uint8).tolist())
            else:
                same = a == b
            if not same:
                problems.append(f"{a} is not {b}")
    results[file.stem] = problems
print(json.dumps(results))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What a new process finds different, by model and backend."""
    folder = tmp_path_factory.mktemp("artifacts")
    for name, case in cases().items():
        for backend in ("portable", "aten"):
            package_of(name, backend)
            artifact = artifact_of(name, backend)
            artifact.save(folder / f"{name}-{backend}.dvt")
            calls = []
            for args in [case.args, *case.others]:
                given, before = copy.deepcopy((args, case.kwargs)), (args, case.kwargs)
                outputs = artifact(*given[0], **given[1])
                check_against_eager(case, args, given, outputs)
                calls.append((*before, tree_leaves(given), tree_leaves(outputs)))
            torch.save(calls, folder / f"{name}-{backend}.pt")
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(folder)],
        capture_output=True, text=True, timeout=170, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def check_against_eager(case, args, given, outputs):
    """A stateful model's own state is not the artifact's, so its first call alone is compared."""
    if args is not case.args:
        return
    model, copied = copy.deepcopy(case.model), copy.deepcopy(args)
    expected = model(*copied, **case.kwargs)
    torch.testing.assert_close(outputs, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(given[0], copied)


@pytest.mark.e2e
@pytest.mark.parametrize("backend", ["portable", "aten"])
@pytest.mark.parametrize("name", sorted(cases()))
def test_same_bits_in_a_new_process(results, name, backend):
    assert results[f"{name}-{backend}"] == []


WITHOUT_TORCH = """
import sys, array
there = set(sys.modules)  # what an environment's own start-up imports is not ours
import dovetail
run = dovetail.load(sys.argv[1])
values = memoryview(array.array("f", range(48))).cast("B").cast("f", (3, 16))
result = memoryview(run(values))
assert result.shape == (3, 4) and abs(sum(result.tolist()[0]) - 1) < 1e-5
slow = {"torch", "numpy", "dataclasses", "difflib", "hashlib", "importlib.abc", "tempfile"}
assert not slow & (set(sys.modules) - there), "more was imported than loading needs"
try:
    dovetail.load(sys.argv[2])
except dovetail.errors.UnsupportedArtifact as error:
    print(error)
"""


@pytest.mark.e2e
def test_a_process_without_torch(tmp_path):
    for backend in ("portable", "aten"):
        artifact_of("mlp", backend).save(tmp_path / f"{backend}.dvt")
    ran = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(tmp_path / "portable.dvt"),
         str(tmp_path / "aten.dvt")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    for op in ("aten.addmm.default", "aten.gelu.default", "import torch"):
        assert op in ran.stdout
