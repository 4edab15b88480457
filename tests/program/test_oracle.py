"""The C runtime against the reference executor in Python, over every model."""

import copy

import pytest
import torch

from dovetail import errors
from dovetail.ir.program_text import parse_program
from dovetail.testing.program_reference import KERNELS, run_program
from tests.artifact.cases import cases, package_of
from tests.artifact.files import contents_as_tensors, open_package

pytestmark = pytest.mark.xdist_group("artifact")


@pytest.mark.parametrize("backend", ["portable", "aten"])
@pytest.mark.parametrize("name", sorted(cases()))
def test_native_agrees_with_the_oracle(name, backend):
    case = cases()[name]
    package = package_of(name, backend)
    assert parse_program(str(package.program)) == package.program
    native = open_package(package)
    constants = contents_as_tensors(package)
    for args in [case.args, *case.others]:
        flat = list(torch.utils._pytree.tree_leaves((args, case.kwargs)))
        one, two = copy.deepcopy(flat), copy.deepcopy(flat)
        expected = [t for t in run_program(package.program, one, constants) if t is not None]
        for got, want in zip(native(*two), expected, strict=True):
            assert got.shape == want.shape
            torch.testing.assert_close(got, want, rtol=2e-5, atol=2e-6)
        torch.testing.assert_close(two, one)  # what the model writes to


def test_the_oracle_knows_every_kernel():
    from dovetail import _native

    names = {kernel.split("@")[0] for kernel in _native.kernels()}
    assert names == {*KERNELS, "arange"}


def test_the_oracle_checks_guards():
    program = parse_program(
        "program @p\nsymbol s0 = %x[0] in 2..8\ninput %x: float32[s0, 3]\n"
        "output %y: float32[s0, 3]\nguard s0 % 2 == 0\nkernel %y = neg@1(%x)\nreturn %y\n"
    )
    (y,) = run_program(program, [torch.ones(4, 3)], {})
    assert torch.equal(y, -torch.ones(4, 3))
    for shape in ((3, 3), (10, 3), (4, 2)):
        with pytest.raises(errors.GuardFailed):
            run_program(program, [torch.ones(shape)], {})
    with pytest.raises(errors.InvalidProgram, match="mystery"):
        run_program(
            parse_program(str(program).replace("neg@1", "mystery@1")), [torch.ones(4, 3)], {}
        )
