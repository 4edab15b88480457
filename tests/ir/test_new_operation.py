"""A new operation is a row of the table and a rule: nothing else changes for any renderer."""

import filecmp
import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dovetail
from dovetail.ir.dtypes import ANY, KERNEL_DTYPES
from dovetail.ir.expand import expand
from dovetail.ir.kernel import Apply, Axis, Index, Kernel, KernelBuffer, Load, Loop, Store
from dovetail.ir.kernel_verify import verify_kernel
from dovetail.ir.ops import (
    OPERATIONS,
    OPERATIONS_BY_NUMBER,
    REDUCTIONS_BY_NUMBER,
    Operation,
)
from tests.artifact.files import ROOT
from tests.differential import needs_code

ROW = """\
    Operation("spherical_bessel_j0", 1, "float", cost=(300, 1900), instructions=36,
              expansion="where(eq(x, 0), 1, where(eq(abs(x), 1e999), 0, div(sin(x), x)))"),
"""
RULE = '''

@rule("special_spherical_bessel_j0.default")
def lower_spherical_bessel_j0(lower: Lower, call: OpCall) -> Pointwise:
    """sin(x) / x."""
    args, dtype = call.args[:1], float_type(call)
    return lower_elements(lower, call, args, dtype, simple("spherical_bessel_j0"))
'''


def differing(left, right):
    """The files that two copies of the package do not have in common."""
    compared = filecmp.dircmp(left, right, ignore=["__pycache__"])
    found = [*compared.left_only, *compared.right_only, *compared.diff_files]
    for name in compared.common_dirs:
        found += [f"{name}/{path}" for path in differing(left / name, right / name)]
    return sorted(found)


@needs_code
@pytest.mark.e2e
def test_a_row_and_a_rule_are_all(tmp_path):
    package, copy = Path(dovetail.__file__).parent, tmp_path / "dovetail"
    shutil.copytree(package, copy, ignore=shutil.ignore_patterns("__pycache__"))
    table, rules = copy / "ir/ops.py", copy / "lower/functions.py"
    rows = table.read_text()
    assert rows.count("\n)\n# fmt: on") == 1
    table.write_text(rows.replace("\n)\n# fmt: on", f"\n{ROW})\n# fmt: on"))
    rules.write_text(rules.read_text() + RULE)
    assert differing(package, copy) == ["ir/ops.py", "lower/functions.py"]

    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    command = [sys.executable, "-m", "tests.ir.run_new_operation"]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["lowered", "text", "reference", "C", "OpenCL", "file", "LLVM"]


# ---- expansions --------------------------------------------------------------------------------


def applying(op, dtype="float32"):
    """out[i] = op(a[i])."""
    here = Index(0, (("i", 1),))
    body = (Load("a", dtype, "x", here), Apply("b", dtype, op, ("a",)), Store("y", here, "b"))
    buffers = KernelBuffer("x", dtype), KernelBuffer("y", dtype, "out")
    return Kernel("k", buffers, (Axis("i", 8),), (Loop((), body),))


def operations(kernel):
    return [i.op for i in kernel.instructions() if isinstance(i, Apply)]


def test_what_is_had_stays():
    kernel = applying("sigmoid")
    assert expand(kernel, lambda _: True) is kernel
    assert operations(expand(kernel, lambda op: op != "sigmoid")) == ["neg", "exp", "add", "div"]
    assert operations(expand(applying("exp"), lambda _: False)) == ["exp"]  # has no expansion


def test_expansions_are_expanded(monkeypatch):
    row = Operation("bounded", 1, "float", expansion="max(sigmoid(x), 0.25)")
    monkeypatch.setitem(OPERATIONS, "bounded", row)
    found = expand(applying("bounded", "float64"), lambda op: op not in ("bounded", "sigmoid"))
    assert operations(verify_kernel(found)) == ["neg", "exp", "add", "div", "max"]
    assert {i.dtype for i in found.instructions() if not isinstance(i, Store)} == {"float64"}


@pytest.mark.parametrize("name", [o.name for o in OPERATIONS.values() if o.expansion])
def test_every_expansion_is_valid(name):
    row = OPERATIONS[name]
    assert row.arity == 1
    for dtype in ("float32", "float64"):
        kernel = expand(applying(name, dtype), lambda op: op != name)
        assert name not in operations(verify_kernel(kernel))


@pytest.mark.parametrize("row", OPERATIONS.values(), ids=lambda row: row.name)
def test_the_type_of_a_result_is_one_that_the_rule_admits(row):
    found = 0
    for given in itertools.product(sorted(ANY), repeat=row.arity):
        results = [dtype for dtype in ANY if row.admits(given, dtype)]
        if results and row.rule != "cast":
            assert results == [row.result(given)]
            found += 1
    assert found or row.rule == "cast"


def test_numbers_of_files_have_no_gaps():
    for table in (OPERATIONS_BY_NUMBER, REDUCTIONS_BY_NUMBER, KERNEL_DTYPES):
        assert [row.number for row in table] == list(range(len(table)))
