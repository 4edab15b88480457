"""Builds the C extension against Python's stable ABI: one binary serves 3.11 and newer."""

from pathlib import Path

from setuptools import Extension, setup

setup(
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
