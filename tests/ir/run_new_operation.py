"""Runs the operation that ``test_new_operation`` added by every way there is, and names each."""

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import dovetail
from dovetail import history
from dovetail.capture.from_fx import segment_of
from dovetail.codegen.c import CRenderer
from dovetail.codegen.opencl.render import OpenCLRenderer
from dovetail.ir.kernel_text import parse_kernel, print_kernel
from dovetail.ir.target import TARGETS
from dovetail.ir.verify import verifying
from dovetail.schedule.plan import make_plan
from dovetail.testing.kernel_reference import run_kernel
from tests.native.interpret import interpret

NAME = "spherical_bessel_j0"


def function(x):
    return torch.special.spherical_bessel_j0(x) + 1


def assert_close(found, x):
    exact = function(x.double()).numpy()
    found = found.numpy() if isinstance(found, torch.Tensor) else found
    np.testing.assert_allclose(found, exact, rtol=2e-7 if x.dtype == torch.float32 else 1e-15)


def in_c(kernel, given, result):
    """The kernel compiled by this machine's C compiler, and called."""
    Path("k.c").write_text(CRenderer.prelude + CRenderer(kernel).render())
    flags = ["-O1", "-std=c11", "-ffp-contract=off", "-shared", "-fPIC"]
    subprocess.run(["cc", *flags, "k.c", "-o", "./k.so", "-lm"], check=True)
    pointers = [ctypes.c_void_p(a.ctypes.data) for a in (given, result)]
    getattr(ctypes.CDLL("./k.so"), kernel.name)(*pointers, ctypes.c_int64(result.size))


def main():
    assert Path(dovetail.__file__).is_relative_to(Path.cwd()), dovetail.__file__
    x = torch.cat([torch.tensor([0.0, -0.0, torch.inf, -torch.inf]), torch.randn(96) * 3])
    (step,) = make_plan(segment_of(make_fx(function)(x), "new"), TARGETS["x86-64-v4"]).steps
    kernel = step.kernel
    names = [b.name for b in kernel.buffers]
    assert [b.role for b in kernel.buffers] == ["in", "out"]
    print("lowered")
    assert f"{NAME}(" in print_kernel(kernel)
    assert parse_kernel(print_kernel(kernel)) == kernel
    print("text")
    arrays = dict(zip(names, (x.numpy(), np.zeros(100, "float32")), strict=True))
    run_kernel(kernel, arrays)
    assert_close(arrays[names[1]], x)
    print("reference")
    result = np.zeros(100, "float32")
    in_c(kernel, x.numpy(), result)
    assert_close(result, x)
    print("C")
    assert "sin(v_" in OpenCLRenderer(kernel).render()
    print("OpenCL")
    assert_close(interpret(kernel, arrays)[names[1]], x)
    print("file")
    options = {"debug": True, "strict": True, "cache": False}
    for given in (x, x.double()):
        assert_close(torch.compile(function, backend="cpu", options=options)(given), given)
    placed = {v.backend for c in history.recent() for g in c.graphs for v in g.verdicts}
    assert placed == {"cpu"}
    print("LLVM")


if __name__ == "__main__":
    with verifying():
        main()
