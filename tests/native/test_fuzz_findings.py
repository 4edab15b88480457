"""What the fuzzer has found, each as the smallest file that shows it."""

import ctypes

import numpy as np
import pytest

from dovetail import errors
from dovetail.file import container
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_text import parse_kernel
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes
from tests.native.seeds_kernels import diagonal

UNMADE = """\
program @unmade
input %x: float32[4]
host %h: float32[4]
output %y: float32[4]
copy %h = %x
copy %y = %h
return %y
"""


def test_a_copy_to_a_host_buffer_that_nothing_made_is_refused():
    """It has no memory: the copy went to address zero, or to what an earlier call freed."""
    with pytest.raises(errors.InvalidArtifact, match="no host call has made"):
        open_native(file_bytes(UNMADE))


FLAT = """\
kernel flat(in x: float32, out y: float32) over [i: 4098] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    store y[0 | i * (1)] = a
  }
}
"""
GAPS = """\
program @gaps
input %x: float32[2, 2] strides [4096, 1]
output %y: float32[4098]
kernel %y = flat@1(%x)
return %y
"""


def spoil_heap(size):
    """Leave bytes that are not zero in memory that the next request of this size may get."""
    libc = ctypes.CDLL(None)
    libc.aligned_alloc.restype = ctypes.c_void_p
    held = [libc.aligned_alloc(64, size) for _ in range(8)]
    for address in held:
        ctypes.memset(address, 7, size)
    for address in held:
        libc.free(ctypes.c_void_p(address))


@pytest.mark.filterwarnings("ignore::dovetail.errors.InterpretedKernels")
def test_what_lies_between_the_elements_of_a_repacked_input_is_zero():
    """The kernel sees memory of the layout it asked for; heap contents were in its gaps."""
    section = container.section(container.KERNEL_IR, encode_kernels([parse_kernel(FLAT)]))
    native = open_native(file_bytes(GAPS, generated={"flat@1": "flat"}, sections=[section]))
    spoil_heap(16448)
    (found,) = map(np.from_dlpack, native(np.ones((2, 2), np.float32)))
    expected = np.zeros(4098, np.float32)
    expected[[0, 1, 4096, 4097]] = 1
    assert found.tobytes() == expected.tobytes()


@pytest.mark.filterwarnings("ignore::dovetail.errors.InterpretedKernels")
def test_an_axis_twice_in_an_index_is_one_walk():
    """Format 1.2 allows it. Taken for two, the store seemed to fill what was not cleared then."""
    native = open_native(diagonal())
    (found,) = map(np.from_dlpack, native(np.ones(1, np.float32)))
    assert native.cleared() == found.nbytes
    assert np.flatnonzero(found).tolist() == [0, 5, 10, 15]
