"""The C compiler as a device, for tests of what renderers share."""

import ctypes
import subprocess
import tempfile
from pathlib import Path

from dovetail.backends.rendered import Device


class Compiler(Device):
    """Buffers of its own on the host; kernels are functions of a shared library."""

    def build(self, source, names):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder)
            (path / "kernels.c").write_text(source)
            flags = ["-std=c11", "-O2", "-Wall", "-Werror", "-Wno-unused", "-ffp-contract=off"]
            command = ["cc", *flags, "-shared", "-fPIC", "-o", "kernels.so", "kernels.c", "-lm"]
            subprocess.run(command, cwd=path, check=True)
            library = ctypes.CDLL(str(path / "kernels.so"))
        return [getattr(library, name) for name in names]

    def allocate(self, size):
        return ctypes.create_string_buffer(size)

    def part(self, memory, offset, size):
        return (ctypes.c_char * size).from_buffer(memory, offset)

    def upload(self, memory, address, size):
        ctypes.memmove(memory, address, size)

    def download(self, memory, address, size):
        ctypes.memmove(address, memory, size)

    def launch(self, function, points, buffers, sizes, flag):
        numbers = [ctypes.c_int64(n) for n in (*sizes, points)]
        function(*map(ctypes.byref, buffers), *numbers, *([ctypes.byref(flag)] if flag else []))
