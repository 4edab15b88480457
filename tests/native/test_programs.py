"""C programs: the example, under valgrind too. The fuzzer is a step of its own: make fuzz."""

import os
import shutil
import subprocess
import sys

import pytest
import torch

import dovetail
from dovetail.backends.portable import PortableBackend
from tests.artifact.files import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("c_programs"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def example(native_folder):
    """The example as a user would build it, in a folder of its own."""
    folder = native_folder.parent / "examples" / "c_runtime"
    shutil.copytree(ROOT / "examples" / "c_runtime", folder)
    ignored = shutil.ignore_patterns("*.so")
    shutil.copytree(ROOT / "examples" / "accel_c", folder.parent / "accel_c", ignore=ignored)
    subprocess.run(
        ["make", "-s", "run", "mlp.dvt", "accel.dvt", f"PYTHON={sys.executable} -W ignore"],
        cwd=folder, check=True, timeout=300,  # half the time of -O2
        env={**os.environ, "CFLAGS": "-O1 -g", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    return folder


def test_the_example_agrees_with_python(example):
    ran = subprocess.run(
        ["./run", "mlp.dvt"], cwd=example, capture_output=True, text=True, check=True, timeout=60
    )
    x = (torch.arange(16) * 0.01).reshape(2, 8)
    values = dovetail.load(example / "mlp.dvt")(x).flatten().tolist()
    assert ran.stdout.split(":")[1].split("(")[0].split() == [f"{v:.6f}" for v in values]


def test_the_example_names_mistakes(example):
    for file, problem in (("none.dvt", "cannot open"), ("main.c", "no DVT signature")):
        ran = subprocess.run(
            ["./run", file], cwd=example, capture_output=True, text=True, check=False, timeout=60
        )
        assert ran.returncode == 1
        assert problem in ran.stderr


VALGRIND = ["valgrind", "-q", "--leak-check=full", "--show-leak-kinds=all"]
VALGRIND += ["--errors-for-leak-kinds=all", "--error-exitcode=9"]


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
def test_the_example_under_valgrind(example, tmp_path):
    wide = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.Softmax(1)).eval()
    dovetail.export(wide, (torch.randn(64, 512),), backend=PortableBackend).save(
        example / "wide.dvt"  # large enough for threads to be started
    )
    for file, status in (("mlp.dvt", 0), ("wide.dvt", 0), ("none.dvt", 1), ("main.c", 1)):
        ran = subprocess.run(
            [*VALGRIND, "./run", file], cwd=example, capture_output=True, text=True,
            check=False, timeout=120, env={**os.environ, "DOVETAIL_NUM_THREADS": "2"},
        )  # fmt: skip
        assert ran.returncode == status, ran.stderr


@pytest.mark.skipif(shutil.which("valgrind") is None, reason="needs valgrind")
@pytest.mark.parametrize(
    ("fault", "status", "message"),
    [
        ({}, 0, ""),
        ({"ACCEL_FAIL_AT": "2"}, 1, "'accel_c' failed in the kernel 'relu' of aten.relu.default"),
        ({"ACCEL_LOSE_AT": "2"}, 1, "the device was lost"),
        ({"ACCEL_MEMORY": "500"}, 1, "failed in buffer_alloc: no room for"),
    ],
)
def test_a_model_on_an_accelerator_from_c(example, tmp_path, fault, status, message):
    """No Python in the process; nothing is lost, on the host or on the device."""
    log = tmp_path / "log"
    ran = subprocess.run(
        [*VALGRIND, "./run", "accel.dvt", "../accel_c/libaccel_c.so"], cwd=example,
        capture_output=True, text=True, check=False, timeout=120,
        env={**os.environ, **fault, "ACCEL_LOG": str(log)},
    )  # fmt: skip
    assert ran.returncode == status, ran.stderr
    assert message in ran.stderr
    lines = log.read_text().splitlines()
    if "ACCEL_LOSE_AT" not in fault:  # a lost device takes its memory with it
        assert lines[-1] == "close with 0 bytes in use"
    if not fault:
        assert sum(line.startswith("kernel ") for line in lines) == 2 * 4  # it is called twice
        assert sum(line.startswith("h2d ") for line in lines) == 6 + 2  # weights only once
