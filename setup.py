"""Builds the C extension against Python's stable ABI: one binary serves 3.11 and newer."""

import sys
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

# Files from anywhere are parsed in here. Each flag is used where the compiler offers it; a test
# reads the binary (tests/native/test_hardening.py).
HARDENING = [
    ["-fstack-protector-strong"],
    ["-fstack-clash-protection"],
    ["-fcf-protection=full"],
    ["-U_FORTIFY_SOURCE", "-D_FORTIFY_SOURCE=2"],
]
# Addresses are resolved when the library is loaded and read-only from then on; no stack that
# can be executed.
LINKING = [["-Wl,-z,relro,-z,now"], ["-Wl,-z,noexecstack"]]


class Hardened(build_ext):
    """Compiles with those hardening flags that the compiler knows."""

    def build_extension(self, ext: Extension) -> None:
        """Add the flags, then build as ever."""
        for flags in HARDENING:
            if self._works(flags, []):
                ext.extra_compile_args += flags
        for flags in LINKING if sys.platform == "linux" else []:
            if self._works([], flags):
                ext.extra_link_args += flags
        super().build_extension(ext)

    def _works(self, compiling: list[str], linking: list[str]) -> bool:
        """Whether a small library builds with these flags, and without a warning."""
        with tempfile.TemporaryDirectory() as folder:
            source = Path(folder) / "try.c"
            source.write_text("#include <string.h>\nint f(char *p) { return (int)strlen(p); }\n")
            strict = ["-O2", "-Werror", "-fPIC", *compiling]
            try:
                objects = self.compiler.compile(
                    [str(source)], output_dir=folder, extra_postargs=strict
                )
                self.compiler.link_shared_object(
                    objects, str(Path(folder) / "try.so"), extra_postargs=linking
                )
            except Exception:
                return False
        return True


setup(
    cmdclass={"build_ext": Hardened},
    ext_modules=[
        Extension(
            "dovetail._native",
            sources=sorted(str(p) for p in Path("native").glob("[ps]*/*.c")),
            depends=sorted(str(p) for p in Path("native").glob("*/*.h")),
            include_dirs=["native/include", "native/src"],
            # -ffp-contract: fused multiply-add where the processor has it. Nobody reads errno or
            # the floating-point exception flags, so loops over them may be vectorised.
            extra_compile_args=[
                "-std=c11",
                "-O3",
                "-ffp-contract=fast",
                "-fno-math-errno",
                "-fno-trapping-math",
                "-Wall",
                "-Wextra",
                "-fvisibility=hidden",
                "-pthread",
            ],
            libraries=["m", "pthread", "dl"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
