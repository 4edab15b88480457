"""Where the system refuses executable memory, kernels are interpreted and nothing fails."""

import json
import subprocess
import sys

import pytest

from tests.artifact.files import ROOT
from tests.differential import needs_code

pytestmark = [pytest.mark.xdist_group("artifact"), needs_code]

# Run in a process of its own: what it forbids itself it cannot allow again.
CHILD = """
import ctypes, json, sys, warnings
from dovetail.file import container
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_text import parse_kernel
from tests.artifact.files import file_bytes

libc = ctypes.CDLL(None, use_errno=True)
PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 65, 1
KERNEL = '''kernel k(in x: float32, out y: float32) over [i: 4] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    b: float32 = add(a, a)
    store y[0 | i * (1)] = b
  }
}
'''
PROGRAM = '''program @p
input %x: float32[4]
output %y: float32[4]
kernel %y = k@1(%x)
return %y
'''
found = {}
import numpy as np
import dovetail
from dovetail import _native, errors
from dovetail.artifact.load import _regenerate
from dovetail.codegen.llvm.target import missing
from dovetail.runtime.loaded import TRUST, open_native

described = parse_kernel(KERNEL)
plain = container.section(container.KERNEL_IR, encode_kernels([described]))
files = {"ir": file_bytes(PROGRAM, sections=[plain], generated={"k@1": "k"})}
if not missing():
    from dovetail.codegen.llvm.module import generate
    from dovetail.file.encode import code_section
    from dovetail.file.processors import PROCESSORS, target_here
    from dovetail.backends.cpu.code import scheduled

    here = target_here()
    made = generate(scheduled({"k": described}, here), here)
    code = code_section([(PROCESSORS[here.name], made)])
    files["code"] = file_bytes(PROGRAM, sections=[code, plain], generated={"k@1": "k"})
assert _native.may_execute()
if libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    print(json.dumps({"refused": ctypes.get_errno()}))
    sys.exit()
found["may_execute"] = _native.may_execute()
for name, data in files.items():
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        native = open_native(data, flags=TRUST, regenerate=_regenerate)
        made = native(np.ones(4, "float32"))
    found[name] = [np.asarray(made[0]).tolist(), [str(w.message) for w in seen]]
import torch
x = torch.arange(4.0)
found["default"] = torch.compile(lambda x: x * 2 + 1, backend="dovetail")(x).tolist()
try:
    torch.compile(lambda x: x * 3, backend="cpu")(x)
except Exception as error:
    found["cpu"] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="MDWE is Linux's")
def test_memory_that_may_not_become_code():
    ran = subprocess.run(
        [sys.executable, "-c", CHILD], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    found = json.loads(ran.stdout.splitlines()[-1])
    if "refused" in found:
        pytest.skip(f"this kernel has no MDWE: error {found['refused']}")
    assert found["may_execute"] is False
    for name in {"ir", "code"} & set(found):
        results, said = found[name]
        assert results == [2.0, 2.0, 2.0, 2.0]
        assert len(said) == 1
        assert "memory executable" in said[0]
        assert "install" not in said[0]
    assert found["default"] == [1.0, 3.0, 5.0, 7.0]
    kind, text = found["cpu"]
    assert kind == "BackendUnavailable"
    assert "memory executable" in text
