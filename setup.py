"""Builds the C extension against Python's stable ABI: one binary serves 3.11 and newer."""

import sys
import sysconfig
import tempfile
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext


def flags(name: str) -> list[str]:
    """The words of a variable of native/flags.mk, which the Makefile reads too."""
    lines = Path("native/flags.mk").read_text().splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name} := ")]
    return line.split(" := ")[1].split()


if sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit(
        "dovetail does not support free-threaded Python: its extension is built on the stable ABI, "
        "which such an interpreter does not load. Use the ordinary build of this version."
    )


class Hardened(build_ext):
    """Compiles with those hardening flags that the compiler knows."""

    def build_extension(self, ext: Extension) -> None:
        """Add the flags, then build as ever."""
        for flag in flags("HARDENING"):
            # A distribution's own level is taken back first: two of them are a warning.
            words = ["-U_FORTIFY_SOURCE", flag] if "FORTIFY" in flag else [flag]
            if self._works(words, []):
                ext.extra_compile_args += words
        for flag in flags("LINKING") if sys.platform == "linux" else []:
            if self._works([], [flag]):
                ext.extra_link_args.append(flag)
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
            depends=["native/flags.mk", *sorted(str(p) for p in Path("native").glob("*/*.h"))],
            include_dirs=["native/include", "native/src"],
            extra_compile_args=flags("COMPILING"),
            libraries=["m", "pthread", "dl"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
