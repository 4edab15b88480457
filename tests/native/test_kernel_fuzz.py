"""Both readers of kernel IR, the interpreter and generated code agree on random kernels.

``make fuzz-kernels`` is the long form.
"""

import numpy as np
import pytest

from dovetail import errors
from dovetail.codegen.llvm.target import named
from dovetail.file.kernel_encode import encode_kernels
from dovetail.file.processors import target_here
from dovetail.ir.kernel_call import call_sizes
from dovetail.ir.kernel_text import parse_kernel
from tests.differential import needs_code
from tests.native.kernel_fuzz import (
    PAD,
    Case,
    Finding,
    check_pads,
    compare,
    compiled_code,
    oracle,
    run_seeds,
)
from tests.native.test_kernel_ir import copy_kernel
from tests.targets import family_targets


@pytest.mark.parametrize("start", range(0, 800, 200))
def test_readers_and_the_oracle_agree(start):
    told = run_seeds(range(start, start + 200), compiles=False)
    assert told["accepted"] > 200
    assert told["sections"] - told["accepted"] > 400
    assert told["as the oracle"] > 60
    assert told["failed"] > 60


@needs_code
@pytest.mark.parametrize("name", ["", *family_targets()])
def test_code_does_what_the_interpreter_does(name):
    target = named(name) if name else target_here()
    if target.vector_bytes > target_here().vector_bytes:
        pytest.skip("this machine does not run such code")
    told = run_seeds(range(5000, 5025), target=target)
    assert told["compiled"] > 18


# Positions along one axis, which are met in order, and others; along rows and down columns.
PLACES = """
kernel places(in x: int32, out y: int64) over [i: s0] {{
  loop [{axes}] {{
    a: int32 = load x[0 | {load}]
    p: int64 = position [{position}]
    m: int64 = reduce {op}(a, p)
  }}
  loop [] {{
    store y[0 | i * (1) | %m * (1)] = m
  }}
}}
"""
WALKS = {
    "in order": ("j: s1", "i * (s1) | j * (1)", "0 | j * (1)"),
    "from three": ("j: s1", "i * (s1) | j * (1)", "3 | j * (1)"),
    "columns": ("j: s1", "i * (1) | j * (s0)", "7 | j * (2)"),
    "nested": ("j: s1, k: 2", "i * (2) | k * (1)", "0 | j * (2) | k * (1)"),
    "inner": ("k: 2, j: s1", "i * (s1) | j * (1)", "4 | j * (1) | k * (1)"),
    "never": ("j: 0", "i * (1) | j * (1)", "5 | j * (1)"),
}


@pytest.mark.parametrize("op", ["argmax", "argmin"])
@pytest.mark.parametrize("walk", list(WALKS))
def test_the_position_of_no_points_is_zero(walk, op):
    axes, load, position = WALKS[walk]
    kernel = parse_kernel(PLACES.format(axes=axes, load=load, position=position, op=op))
    sizes = [{"s0": 21, "s1": 0}[str(size)] for size in call_sizes(kernel)]
    case = Case(encode_kernels([kernel]), sizes, [64, 21], np.random.default_rng(0))
    expected = oracle(case)
    (found,) = expected.values()
    assert not np.any(found[PAD:-PAD])
    compare(case, case.outcome(case.artifact()), expected, "interpreted and oracle")
    code = compiled_code(case)
    if code is not None:
        artifact = case.artifact()
        artifact.use_code(code)
        compare(case, case.outcome(artifact), expected, "compiled and oracle")


BYTES = """
kernel bytes(in x: int8, in z: int8, out y: int64, out w: int8) over [i: 3, j: 33] {
  loop [k: 2] {
    a: int8 = load x[0 | i * (2) | k * (1)]
    c: int8 = load z[0 | j * (1)]
    m: int8 = min(a, c)
    b: uint8 = cast(a)
    p: int64 = position [0 | j * (2) | k * (1)]
    r: int64 = reduce argmin(b, p)
    s: int8 = reduce min(m)
  }
  loop [] {
    store y[0 | i * (33) | j * (1)] = r
    store w[0 | i * (33) | j * (1)] = s
  }
}
"""


def test_a_byte_in_all_lanes_keeps_its_sign():
    """One number as int8 and as uint8: spread over a vector, each is compared as what it is."""
    kernel = parse_kernel(BYTES)
    case = Case(encode_kernels([kernel]), [], [6, 33, 99, 99], np.random.default_rng(0))
    given, _, _, _ = case.arrays.values()
    given[PAD:-PAD] = [-1, 1, 5, -128, -3, -2]
    expected = oracle(case)
    compare(case, case.outcome(case.artifact()), expected, "interpreted and oracle")
    code = compiled_code(case)
    if code is not None:
        artifact = case.artifact()
        artifact.use_code(code)
        compare(case, case.outcome(artifact), expected, "compiled and oracle")


def test_a_difference_is_a_finding():
    section = encode_kernels([copy_kernel("float32", "float32")])
    case = Case(section, [4], [4, 4], np.random.default_rng(0))
    results = case.outcome(case.artifact())
    compare(case, results, results, "")
    check_pads(case, results)
    (name, array), *_ = results.items()
    for wrong in ({name: array + 1}, errors.InvalidArtifact):
        with pytest.raises(Finding):
            compare(case, wrong, results, "")
    array = array.copy()
    array[-1] += 1
    with pytest.raises(Finding, match="beside"):
        check_pads(case, {name: array})
