"""The simulator of examples/accel_sim: built once, registered, and what its device counted."""

import subprocess
from contextlib import contextmanager

from dovetail import registry
from dovetail.backends.plugin.backend import plugin_backend
from tests.plugin.conftest import ROOT


def build(folder):
    """Build the driver and the device's program with their own Makefile."""
    command = ["make", "-s", "-C", str(ROOT / "examples" / "accel_sim"), f"FOLDER={folder}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return folder / "libaccel_sim.so"


class Simulator:
    """A registered device: its counters, and faults on demand."""

    def __init__(self, backend):
        self.backend, self.name = backend, backend.name
        self.library = backend().opened
        self.native = self.library.native

    def reset(self):
        """Count from 0."""
        self.native.set("reset", 0)

    def counted(self, *names):
        """Attributes of the device."""
        found = tuple(self.native.get(name) for name in names)
        return found if len(found) > 1 else found[0]

    @property
    def moved(self):
        """Bytes that came from the host and went to it, as the device counted them."""
        return self.counted("bytes.in", "bytes.out")


@contextmanager
def simulator(path, device=0):
    """The simulator as a backend."""
    backend = plugin_backend(path, device=device)
    backend().opened.close()  # a device opened now reads this test's environment
    with registry.registered_backend(backend):
        yield Simulator(backend)
    backend().opened.close()
