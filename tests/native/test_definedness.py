"""Nothing uninitialised is readable, by elements: what no instruction wrote reads as zero.

``cleared()`` says how many bytes a call clears. Programs that write what they read clear none.
"""

import ctypes

import numpy as np
import pytest
import torch

import dovetail
from dovetail import errors
from dovetail.ir.kernel import Axis, Index, Kernel, KernelBuffer, Load, Loop, Store
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.runtime.loaded import TRUST, open_native
from dovetail.testing.program_reference import run_program
from tests.artifact.files import file_bytes
from tests.differential import needs_code
from tests.native.interpret import ir_section

pytestmark = pytest.mark.filterwarnings("ignore::dovetail.errors.InterpretedKernels")
M_PERTURB = -6  # of glibc's mallopt: fills memory that malloc gives and free takes


@pytest.fixture(autouse=True)
def dirty_memory():
    libc = ctypes.CDLL(None)
    libc.mallopt(M_PERTURB, 0x5A)
    yield
    libc.mallopt(M_PERTURB, 0)


def memory_of(tensor):
    """All elements that can be reached through a tensor's memory, gaps included."""
    reach = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((reach,), (1,))


def check(text, *inputs, cleared=0, **options):
    """Run a program as the oracle does; what it clears is as expected."""
    native = open_native(file_bytes(text, **options))
    expected = run_program(parse_program(text), inputs, {})
    for _ in range(2):
        results = native(*inputs)
        for got, wanted in zip(results, expected, strict=True):
            assert torch.equal(torch.from_dlpack(got), wanted)
    assert native.cleared() == cleared
    return [torch.from_dlpack(r) for r in results]


ONE_ELEMENT = """\
program @one
input %x: float32[1]
output %y: float32[4096]
view %v: float32[1] of %y
kernel %v = relu@1(%x)
return %y
"""


def test_an_output_of_which_one_element_is_written():
    (y,) = check(ONE_ELEMENT, torch.ones(1), cleared=4 * 4096)
    assert y[0] == 1
    assert not y[1:].any()


def test_a_temporary_of_which_a_part_is_written():
    text = """\
program @part
input %x: float32[3]
temporary %t: float32[8]
view %v: float32[3] of %t at 2
output %y: float32[8]
kernel %v = relu@1(%x)
kernel %y = relu@1(%t)
return %y
"""
    check(text, torch.ones(3), cleared=32)
    # Only what was written is read: nothing to clear.
    read_back = text.replace("float32[8]\nkernel", "float32[3]\nkernel").replace("(%t)", "(%v)")
    check(read_back, torch.ones(3))


def test_an_output_that_is_a_view():
    text = """\
program @shown
input %x: float32[3]
output %t: float32[8]
view %v: float32[3] of %t at 2
kernel %v = relu@1(%x)
return %v
"""
    check(text, torch.ones(3), cleared=32)


def test_the_gaps_of_a_strided_output():
    text = """\
program @gaps
input %x: float32[2, 3]
output %y: float32[2, 3] strides [8, 2]
kernel %y = relu@1(%x)
return %y
"""
    (y,) = check(text, torch.ones(2, 3), cleared=4 * 13)
    assert memory_of(y).sum() == 6


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize(
    ("whole", "first", "second"),
    [
        ("[600, 7]", "[600, 3] strides [7, 1] of %y", "[600, 4] strides [7, 1] of %y at 3"),
        ("[7, 600]", "[3, 600] of %y", "[4, 600] of %y at 1800"),
        ("[600, 2]", "[600] strides [2] of %y", "[600] strides [2] of %y at 1"),
        ("[5, 600, 2]", "[5, 600] strides [1200, 2] of %y",
         "[5, 600] strides [1200, 2] of %y at 1"),
        ("[90, 70, 6]", "[90, 70, 2] strides [420, 6, 1] of %y at 4",
         "[90, 70, 4] strides [420, 6, 1] of %y"),
        ("[9, 7000, 6]", "[9, 3000, 6] strides [42000, 6, 1] of %y",
         "[9, 4000, 6] strides [42000, 6, 1] of %y at 18000"),
        ("[6, 9000] strides [1, 6]", "[2, 9000] strides [1, 6] of %y",
         "[4, 9000] strides [1, 6] of %y at 2"),
    ],
)  # fmt: skip
def test_parts_that_make_up_a_whole(whole, first, second, missing):
    """As concatenation and stacking along any dimension write them."""
    shapes = [eval(part.split("]")[0] + "]") for part in (first, second)]
    text = f"""\
program @parts
input %a: float32{shapes[0]}
input %b: float32{shapes[1]}
output %y: float32{whole}
view %first: float32{first}
view %second: float32{second}
kernel %first = relu@1(%a)
{"" if missing else "kernel %second = relu@1(%b)"}
return %y
""".replace("\n\n", "\n")
    inputs = [torch.randn(shape) for shape in shapes]
    extent = 4 * sum(t.numel() for t in inputs)
    check(text, *inputs, cleared=extent if missing else 0)


def test_a_part_is_read_before_the_rest_is_written():
    """As an unrolled recurrence does, batch first: each step's rows lie far apart."""
    text = """\
program @steps
input %x: float32[50, 4]
output %y: float32[50, 2, 4]
view %first: float32[50, 4] strides [8, 1] of %y
view %second: float32[50, 4] strides [8, 1] of %y at 4
kernel %first = relu@1(%x)
kernel %second = neg@1(%first)
return %y
"""
    check(text, torch.ones(50, 4))


def test_memory_that_is_taken_over():
    """In-place memory keeps what its instruction reads; what goes beyond it is cleared."""
    text = """\
program @in_place
input %x: float32[4]
temporary %a: float32[4]
temporary %b: float32[16] of %a
view %v: float32[4] of %b
output %y: float32[16]
kernel %a = relu@1(%x)
kernel %v = neg@1(%a)
kernel %y = relu@1(%b)
return %y
"""
    native = open_native(file_bytes(text))
    for _ in range(2):
        assert not torch.from_dlpack(native(torch.ones(4))[0]).any()
    assert native.cleared() == 48


def test_symbolic_sizes_are_decided_by_their_values():
    text = """\
program @dynamic
symbol s0 = %x[0] in 0..1000
input %x: float32[s0, 2]
input %z: float32[3]
output %y: float32[s0, 5]
view %v: float32[s0, 2] strides [5, 1] of %y
view %w: float32[s0, 3] strides [5, 1] of %y at 2
kernel %v = relu@1(%x)
kernel %w = copy@1(%z)
return %y
"""
    for rows in (0, 1, 2, 7, 1000):
        check(text, torch.ones(rows, 2), torch.ones(3))


def test_built_in_kernels_over_nothing_write_their_outputs():
    text = """\
program @empty
input %a: float32[64, 0]
input %b: float32[0, 64]
output %y: float32[64, 64]
output %sum: float32[64]
output %mean: float32[64]
kernel %y = matmul@1(%a, %b)
kernel %sum = sum@1(%a; 2, 0)
kernel %mean = mean@1(%a; 2, 0)
return %y, %sum, %mean
"""
    native = open_native(file_bytes(text))
    y, total, mean = map(torch.from_dlpack, native(torch.ones(64, 0), torch.ones(0, 64)))
    assert not y.any()
    assert not total.any()
    assert mean.isnan().all()


# ---- kernels that do not write all of their output ---------------------------------------------


def stores(*stored, role="out", first=()):
    """A kernel that stores x[i] at (offset, stride, count) each."""
    loops = tuple(
        Loop((Axis(f"i{n}", count),), (
            Load(f"a{n}", "float32", "x", Index(0, ((f"i{n}", 1),))),
            Store("out", Index(offset, ((f"i{n}", stride),)), f"a{n}"),
        ))
        for n, (offset, stride, count) in enumerate(stored)
    )  # fmt: skip
    buffers = (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", role))
    return Kernel("stores", buffers, (), (*first, *loops))


def run_kernel(kernel, shape, x, *, view=""):
    """The output of a file with one kernel, interpreted, and how many bytes were cleared."""
    text = f"""\
program @k
input %x: float32{list(x.shape)}
output %y: float32{shape}
{view}kernel {"%v" if view else "%y"} = stores@1(%x)
return %y
"""
    native = open_native(
        file_bytes(text, generated={"stores@1": "stores"}, sections=[ir_section([kernel])])
    )
    return torch.from_dlpack(native(x)[0]), native.cleared()


@pytest.mark.parametrize(
    ("stored", "cleared"),
    [
        ([(0, 1, 8)], 0),
        ([(0, 1, 3), (3, 1, 5)], 0),
        ([(0, 2, 4), (1, 2, 4)], 0),
        ([(0, 1, 3)], 32),
        ([(0, 2, 4)], 32),
        ([(0, 1, 3), (4, 1, 4)], 32),
    ],
)
def test_a_kernel_that_writes_parts(stored, cleared):
    y, found = run_kernel(stores(*stored), "[8]", torch.arange(1.0, 9.0))
    written = {offset + stride * i for offset, stride, count in stored for i in range(count)}
    assert {i for i in range(8) if y[i] != 0} == written
    assert found == cleared


def test_a_kernel_that_writes_part_of_a_view():
    view = "view %v: float32[4] of %y at 4\n"
    y, cleared = run_kernel(stores((0, 1, 4)), "[8]", torch.ones(8), view=view)
    assert y.tolist() == [0] * 4 + [1] * 4
    assert cleared == 32
    y, _ = run_kernel(stores((1, 1, 2)), "[8]", torch.ones(8), view=view)
    assert y.tolist() == [0] * 5 + [1] * 2 + [0]


def test_a_kernel_that_reads_its_output_first():
    """Also where the output is a view, of memory that nothing has been written to."""
    read = Loop((Axis("r", 4),), (
        Load("old", "float32", "out", Index(0, (("r", 1),))),
        Store("out", Index(4, (("r", 1),)), "old"),
    ))  # fmt: skip
    kernel = stores((0, 1, 4), role="inout", first=(read,))
    for view in ("", "view %v: float32[8] of %y\n"):
        y, cleared = run_kernel(kernel, "[8]", torch.ones(8), view=view)
        assert y.tolist() == [1] * 4 + [0] * 4
        assert cleared == 32


def test_a_loop_that_does_not_run_reads_nothing():
    """Its bounds are nobody's: they may be immense, and ask for no memory to be cleared."""
    idle = Loop((Axis("none", 0), Axis("far", 5)), (
        Load("b", "float32", "x", Index(2**62, (("far", -(2**62)),))),
    ))  # fmt: skip
    busy = Loop((Axis("i", 4),), (
        Load("a", "float32", "x", Index(0, (("i", 3),))),
        Store("out", Index(0, (("i", 1),)), "a"),
    ))  # fmt: skip
    kernel = Kernel(
        "k", (KernelBuffer("x", "float32"), KernelBuffer("out", "float32", "out")), (), (idle, busy)
    )
    text = """\
program @p
input %x: float32[4]
temporary %t: float32[4] strides [3]
output %y: float32[4]
kernel %t = relu@1(%x)
kernel %y = k@1(%t)
return %y
"""
    native = open_native(file_bytes(text, generated={"k@1": "k"}, sections=[ir_section([kernel])]))
    assert torch.from_dlpack(native(torch.ones(4))[0]).tolist() == [1] * 4
    assert native.cleared() == 0


@needs_code
def test_compiled_kernels_that_write_parts(tmp_path):
    """The same kernel as native code, which clears nothing of its own accord."""
    pytest.importorskip("llvmlite")
    text = """\
program @k
input %x: float32[8]
output %y: float32[64]
kernel %y = stores@1(%x)
return %y
"""
    path = tmp_path / "k.dvt"
    section = ir_section([stores((0, 2, 8))])
    path.write_bytes(file_bytes(text, generated={"stores@1": "stores"}, sections=[section]))
    run = dovetail.load(path)
    assert run.native.code() == 1
    y = torch.as_tensor(run(torch.ones(8)))
    assert y.nonzero().flatten().tolist() == list(range(0, 16, 2))


# ---- memory that is not the program's ----------------------------------------------------------

SPREAD = """\
program @spread
input %x: float32[4] strides [3]
view %all: float32[10] of %x
output %y: float32[10]
kernel %y = relu@1(%all)
return %y
"""


def test_the_gaps_of_an_input():
    secret = torch.full((4, 3), 7.0)
    x = secret[:, 0]
    y = torch.from_dlpack(open_native(file_bytes(SPREAD))(x)[0])
    assert y.tolist() == [7, 0, 0] * 3 + [7]
    dense = torch.full((4,), 7.0)  # copied to where the program wants it
    for flags in (0, TRUST):
        y = torch.from_dlpack(open_native(file_bytes(SPREAD), flags=flags)(dense)[0])
        assert y.tolist() == [7, 0, 0] * 3 + [7]


WRITTEN = """\
program @written
input %x: float32[4] strides [3]
temporary %t: float32[4]
output %y: float32[10]
kernel %t, %y = k@1(%x)
copy %x = %t
return %y
"""
READS_ON = """\
kernel k(in x: float32, out t: float32, out y: float32) over [] {
  loop [i: 10] {
    a: float32 = load x[0 | i * (1)]
    store y[0 | i * (1)] = a
  }
  loop [j: 4] {
    b: float32 = load x[0 | j * (3)]
    c: float32 = neg(b)
    store t[0 | j * (1)] = c
  }
}
"""


def test_the_gaps_of_an_input_that_is_written_to():
    sections = [ir_section([parse_kernel(READS_ON)])]
    native = open_native(file_bytes(WRITTEN, generated={"k@1": "k"}, sections=sections))
    secret = torch.full((4, 3), 7.0)
    y = torch.from_dlpack(native(secret[:, 0])[0])
    assert y.tolist() == [7, 0, 0] * 3 + [7]
    assert secret.tolist() == [[-7, 7, 7]] * 4


def test_the_gaps_of_what_a_host_call_makes():
    text = """\
program @host
input %x: float32[4, 3]
host %h: float32[4] strides [3]
view %all: float32[10] of %h
output %y: float32[10]
call %h = aten.select.int [{"buffer": "x"}, 1, 0] {}
kernel %y = relu@1(%all)
return %y
"""
    native = open_native(file_bytes(text))
    for _ in range(10):
        rubbish = [torch.full((n,), 5.0) for n in (10, 11, 12)]
        del rubbish
        y = torch.from_dlpack(native(torch.full((4, 3), 7.0))[0])
        assert y.tolist() == [7, 0, 0] * 3 + [7]


def test_the_verifier_knows_when_a_host_buffer_has_memory():
    """As the loader does: see test_fuzz_findings.py."""
    text = """\
program @unmade
input %x: float32[4]
host %h: float32[4]
output %y: float32[4]
copy %h = %x
kernel %y = relu@1(%h)
return %y
"""
    with pytest.raises(errors.InvalidProgram, match="before a host call made it"):
        verify_program(parse_program(text))


# ---- programs as they are compiled -------------------------------------------------------------


class Concatenates(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        cat = torch.cat([x.sin(), y, x.softmax(-1)], -1)
        stack = torch.stack([x, y.relu()], -1)
        padded = torch.nn.functional.pad(x, (1, 2))
        return cat, stack, padded, torch.cat([x, y], 0).cumsum(0), y.reshape(-1, 2).flip(0)


@pytest.mark.parametrize("backend", ["cpu", "portable"])
def test_compiled_programs_clear_nothing(tmp_path, backend):
    module, x = Concatenates().eval(), torch.randn(6, 8)
    with torch.no_grad():
        dovetail.export(module, (x,), backend=backend).save(tmp_path / "m.dvt")
        run = dovetail.load(tmp_path / "m.dvt", trust=True)
        for got, wanted in zip(run(x), module(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(np.asarray(got)), wanted)
    assert run.native.cleared() == 0
