"""A torch device of another package (examples/torch_device) through ``torch.compile``, no copies.

The device's memory is shut but while its own kernels run: code of ours that touched it would end
the process.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dovetail.file.processors import no_code_here

ROOT = Path(__file__).parents[2]
# Read, not imported: that would register its backend in this process.
TRIALS = re.findall(r"@trial\ndef (\w+)", Path(__file__).with_name("torch_device.py").read_text())
pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("torch_device")]
COPIES = ("to_device", "to_host", "bytes_in", "bytes_out")


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The extension, built against this PyTorch's headers."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    output = tmp_path_factory.mktemp("vault") / "libvault.so"
    make = ["make", "-s", "-C", str(ROOT / "examples" / "torch_device"), f"OUTPUT={output}"]
    subprocess.run([*make, f"PYTHON={sys.executable}"], check=True, capture_output=True, text=True)
    return output


@pytest.fixture(scope="module")
def outcomes(library, tmp_path_factory):
    """What each trial counted, and what was wrong; weights are not fetched to compare them."""
    cache = tmp_path_factory.mktemp("cache")
    env = os.environ | {"DOVETAIL_CHECK_WEIGHTS": "0", "DOVETAIL_CACHE_DIR": str(cache)}
    command = [sys.executable, "-m", "tests.backends.torch_device", str(library)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    found = {name: (counts, problem) for name, counts, problem in map(json.loads, lines)}
    for name in TRIALS:
        found.setdefault(name, ({}, f"it did not come to that: {done.stderr[-3000:]}"))
    return found


@pytest.mark.parametrize("name", TRIALS)
def test_a_torch_device(outcomes, name):
    counts, problem = outcomes[name]
    reason = no_code_here()
    if reason and reason in problem:
        pytest.skip(reason)
    assert not problem, problem
    assert not any(counts.get(each) for each in COPIES), counts
    assert counts["kernels"] > 0


def test_the_host_cannot_touch_its_memory(library):
    """Else the trials would show nothing."""
    code = f"""
        import ctypes, sys
        sys.path.insert(0, {str(ROOT / "examples" / "torch_device")!r})
        import torch, vault
        vault.load({str(library)!r})
        x = torch.ones(4, device="vault")
        assert (x + 1).cpu().tolist() == [2, 2, 2, 2]
        print("reading", flush=True)
        ctypes.string_at(x.data_ptr(), 1)
        print("read", flush=True)
    """
    code = "\n".join(line.strip() for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-11, "reading\n"), done.stderr
