"""A second process runs what the first compiled, without a trace; or says why not, and traces."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.marks import needs_precompile

pytestmark = needs_precompile
HERE = Path(__file__).parent
NEAR = 2e-5  # float32 against float64, for sums of a hundred products


def run(folder, what, **env):
    """What a process prints, in a folder with all caches of its own."""
    keep = {k: v for k, v in os.environ.items() if not k.startswith(("DOVETAIL_", "TORCH"))}
    keep |= {
        "TORCH_CACHING_PRECOMPILE": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(folder / "torch"),
        "DOVETAIL_CACHE_DIR": str(folder / "cache"),
        **env,
    }
    done = subprocess.run(
        [sys.executable, str(folder / "process.py"), what],
        env=keep,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A folder with what a first process left, and what that printed."""
    folder = tmp_path_factory.mktemp("precompile")
    for name in ("net.py", "process.py"):
        shutil.copy(HERE / name, folder)
    text = (HERE / "net.py").read_text()
    (folder / "other.py").write_text(text.replace("* 2\n", "* 3\n"))
    return folder, run(folder, "save")[0]


@pytest.fixture
def copied(saved, tmp_path):
    """The same in a folder of the test's own."""
    folder = tmp_path / "copy"
    shutil.copytree(saved[0], folder)
    return folder


def test_the_first_process(saved):
    first = saved[1]
    assert first["inference"]["traces"] == 1
    assert first["inference"]["error"] < NEAR
    assert [each["error"] < NEAR for each in first["acts"]] == [True] * 5
    assert first["types"] == ["aot_autograd", "dovetail", "precompile"]


def test_the_second_process_traces_nothing(saved):
    second, _ = run(saved[0], "restore")
    inference = second["inference"]
    assert (inference["traces"], inference["told"]) == (0, [])
    assert inference["error"] < NEAR
    assert second["traces"] == 0  # training, and writing to an argument
    assert second["training"]["error"] < NEAR
    assert second["training"]["mean"] < NEAR
    assert second["written"]["error"] < 1e-4
    assert second["ahead"] < NEAR
    assert second["ahead_step"]["error"] < NEAR
    assert second["ahead_step"]["mean"] < NEAR
    assert second["needs_grad"] is True  # a guard on grad mode was kept: traced again
    assert (second["other_act"]["traces"], second["same_act"]["traces"]) == (1, 0)
    assert max(second["other_act"]["error"], second["same_act"]["error"]) < NEAR


def test_code_for_something_else_is_refused_in_one_line(copied):
    found, errors = run(copied, "refuse")
    assert "Traceback" not in errors
    reasons = {
        "backend": "asked for the backend eager",
        "option": "the option freeze was False and is True",
        "name": "the function was",
        "processor": "the processor was",
        "sources": "dovetail was sources",
        "module": ".F.linear was the built-in",
        "damaged": "its code is damaged",
    }
    for name, reason in reasons.items():
        case = found[name]
        assert [reason in line and "\n" not in line for line in case["told"]] == [True], name
        assert case["traces"] == 1, name
        assert case["error"] < NEAR, name
    assert (found["harmless"]["traces"], found["harmless"]["told"]) == (0, [])
    assert found["ahead"].startswith("NotRestored: compile the function again: the processor was")


def test_a_changed_model_is_traced(copied):
    path = copied / "net.py"
    path.write_text(path.read_text().replace("* 2\n", "* 4\n"))
    found, _ = run(copied, "changed")
    assert found["inference"]["traces"] == 1
    assert found["inference"]["error"] < NEAR


def test_artifacts_carry_it_to_another_machine(copied):
    """With PyTorch's precompile no trace; without, no compilation."""
    shutil.rmtree(copied / "torch")
    shutil.rmtree(copied / "cache")
    found, _ = run(copied, "artifacts")
    assert found["types"] == ["aot_autograd", "dovetail", "precompile"]
    assert (found["restored"]["traces"], found["restored"]["told"]) == (0, [])
    assert found["traced"]["traces"] == 1
    assert found["cache"] == ["hit"]
    assert max(found["restored"]["error"], found["traced"]["error"]) < NEAR
