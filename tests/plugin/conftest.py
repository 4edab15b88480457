"""A C compiler, the accelerator of examples/accel_c, and its own log of what it ran."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEADER = ROOT / "native" / "include" / "dovetail_plugin.h"
FLAGS = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]


def compile_library(output, *sources, include=HEADER.parent, flags=()):
    """Build a shared library with the C compiler."""
    command = ["cc", *FLAGS, *flags, f"-I{include}", "-o", str(output), *map(str, sources), "-lm"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


@pytest.fixture(scope="session")
def compiler():
    if shutil.which("cc") is None:
        pytest.skip("no C compiler")


@pytest.fixture(scope="session")
def accel_path(compiler, tmp_path_factory):
    """libaccel_c.so, built by its own Makefile."""
    output = tmp_path_factory.mktemp("accel") / "libaccel_c.so"
    command = ["make", "-s", "-C", str(ROOT / "examples" / "accel_c"), f"OUTPUT={output}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return output


@pytest.fixture(scope="session")
def sim_path(compiler, tmp_path_factory):
    """libaccel_sim.so, with its device's program beside it."""
    from tests.plugin.sim import build

    return build(tmp_path_factory.mktemp("sim"))


@pytest.fixture
def sim(sim_path):
    from tests.plugin.sim import simulator

    with simulator(sim_path) as found:
        yield found


class Accelerator:
    """The registered backend, its library, and its log."""

    def __init__(self, backend, log):
        self.backend, self.name, self.log_path = backend, backend.name, log
        self.library = backend().opened
        self.native = self.library.native

    def log(self):
        """What the device did since the last call of this."""
        lines = self.log_path.read_text().splitlines() if self.log_path.exists() else []
        self.log_path.write_text("")
        return [line.split() for line in lines]

    def ran(self):
        """How often each operator ran on the device since the log was last read."""
        return Counter(line[2] for line in self.log() if line[0] == "kernel")

    def copies(self):
        """How many copies went to the device and back since the log was last read."""
        found = Counter(line[0] for line in self.log())
        return found["h2d"], found["d2h"]


@pytest.fixture
def accel(accel_path, tmp_path, monkeypatch):
    from dovetail import registry
    from dovetail.backends.plugin.backend import plugin_backend

    log = tmp_path / "accel.log"
    monkeypatch.setenv("ACCEL_LOG", str(log))
    backend = plugin_backend(accel_path)
    backend().opened.close()  # a device opened now reads this test's environment
    with registry.registered_backend(backend):
        yield Accelerator(backend, log)
    backend().opened.close()
