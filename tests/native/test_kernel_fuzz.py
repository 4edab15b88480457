"""Both readers of kernel IR, the interpreter and generated code agree on random kernels.

``make fuzz-kernels`` is the long form.
"""

import numpy as np
import pytest

from dovetail import errors
from dovetail.codegen.llvm.target import host, named, stored
from dovetail.file.kernel_encode import encode_kernels
from tests.native.kernel_fuzz import Case, Finding, check_pads, compare, run_seeds
from tests.native.test_kernel_ir import copy_kernel


@pytest.mark.parametrize("start", range(0, 800, 200))
def test_readers_and_the_oracle_agree(start):
    told = run_seeds(range(start, start + 200), compiles=False)
    assert told["accepted"] > 200
    assert told["sections"] - told["accepted"] > 400
    assert told["as the oracle"] > 60
    assert told["failed"] > 60


@pytest.mark.parametrize("name", ["", *stored()])
def test_code_does_what_the_interpreter_does(name):
    target = named(name) if name else host()
    if target.level > host().level:
        pytest.skip("this machine does not run such code")
    told = run_seeds(range(5000, 5025), target=target)
    assert told["compiled"] > 18


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
