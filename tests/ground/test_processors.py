"""The processor that code is made for: found by all its features, or held to a smaller one."""

import os
import subprocess
import sys

import pytest

from dovetail import _native
from dovetail.errors import InvalidOption
from dovetail.file.processors import PROCESSORS, family, no_code_here, target_here

needs_x86_64 = pytest.mark.skipif(family() != "x86-64", reason="levels are of x86-64")
# The psABI's levels by LLVM's names of their features.
FEATURES = {
    2: ("cx16", "sahf", "popcnt", "sse3", "sse4.1", "sse4.2", "ssse3"),
    3: ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
    4: ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    5: ("avx512bf16",),  # of no level of the psABI
}


def level_by_llvm():
    import llvmlite.binding as llvm

    has, level = llvm.get_host_cpu_features(), 1
    while level < 5 and all(has.get(name, False) for name in FEATURES[level + 1]):
        level += 1
    return level


@needs_x86_64
def test_the_runtime_and_llvm_find_the_same_level(monkeypatch):
    monkeypatch.delenv("DOVETAIL_PROCESSOR", raising=False)
    found = runtime_levels([None])
    assert found == [level_by_llvm()]


def runtime_levels(names):
    """What the C runtime says its processor is where the variable is so set when it starts."""
    code = "from dovetail import _native; print(_native.processor())"
    rest = {k: v for k, v in os.environ.items() if k != "DOVETAIL_PROCESSOR"}
    found = []
    for name in names:
        env = rest if name is None else {**rest, "DOVETAIL_PROCESSOR": name}
        ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
        found.append(int(ran.stdout))
    return found


@needs_x86_64
@pytest.mark.e2e
def test_the_runtime_is_held_to_a_smaller_processor():
    best = level_by_llvm()
    names = ["x86-64-v1", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"]
    assert runtime_levels(names) == [min(best, PROCESSORS[name]) for name in names]


@needs_x86_64
@pytest.mark.parametrize("name", ["x86-64-v2", "x86-64-v3", "x86-64-v4", "x86-64-v4-bf16"])
def test_code_is_made_for_the_processor_it_is_held_to(monkeypatch, name):
    monkeypatch.setenv("DOVETAIL_PROCESSOR", name)
    level = min(PROCESSORS[name], _native.processor())
    made_for = target_here()
    assert PROCESSORS[made_for.name] == level
    assert made_for.vector_bytes == {2: 16, 3: 32, 4: 64, 5: 64}[level]
    monkeypatch.undo()
    assert _native.processor() >= level  # the runtime read the variable when it was imported


def test_a_processor_that_is_none_is_named(monkeypatch):
    for name in ("zen3", "armv8-a" if family() == "x86-64" else "x86-64-v3"):
        monkeypatch.setenv("DOVETAIL_PROCESSOR", name)
        with pytest.raises(InvalidOption, match=f"DOVETAIL_PROCESSOR.*{name}"):
            no_code_here()
