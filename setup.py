"""Builds the C extension against Python's stable ABI: one binary serves 3.11 and newer."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension(
            "dovetail._native",
            sources=["native/python/module.c", "native/src/size.c"],
            include_dirs=["native/include"],
            extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-fvisibility=hidden"],
            py_limited_api=True,
        )
    ],
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
