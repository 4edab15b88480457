"""What lies in a device's memory, or between the elements of an input, is nobody's to see."""

import pytest
import torch

from dovetail.runtime.loaded import TRUST, open_native
from tests.artifact.files import file_bytes

pytestmark = pytest.mark.e2e

PART = """\
program @part
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[4]
temporary %a: float32[4] on accel_c
temporary %d: float32[600] on accel_c
view %v: float32[4] on accel_c of %d at 2
output %y: float32[600]
copy %a = %x
launch %v = accel_c:relu@1 aten.relu.default(%a) {}
copy %y = %d
return %y
"""


def test_device_memory_of_which_a_part_is_written(accel_path):
    native = open_native(file_bytes(PART), plugins=[accel_path])
    fill = PART.replace("%x: float32[4]", "%x: float32[600]").replace(
        "%a: float32[4]", "%a: float32[600]"
    )
    fill = fill.replace("%v: float32[4] on accel_c of %d at 2", "%v: float32[600] on accel_c of %d")
    filling = open_native(file_bytes(fill), plugins=[accel_path])
    for _ in range(5):
        assert torch.from_dlpack(filling(torch.full((600,), 7.0))[0]).eq(7).all()
        y = torch.from_dlpack(native(torch.ones(4))[0])
        assert y.nonzero().flatten().tolist() == [2, 3, 4, 5]
    assert native.cleared() == 2400
    assert filling.cleared() == 0


WRITES_INPUT = """\
program @writes
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[3] strides [2]
temporary %d: float32[3] strides [2] on accel_c
temporary %r: float32[3] strides [2] on accel_c
output %y: float32[1]
view %first: float32[1] of %x
copy %d = %x
launch %r = accel_c:relu@1 aten.relu.default(%d) {}
copy %x = %r
kernel %y = relu@1(%first)
return %y
"""


@pytest.mark.parametrize("flags", [0, TRUST])
def test_a_copy_from_the_device_leaves_the_gaps_of_an_input(accel_path, flags):
    native = open_native(file_bytes(WRITES_INPUT), flags=flags, plugins=[accel_path])
    memory = torch.tensor([-1.0, 5.0, 2.0, 6.0, -3.0, 8.0])
    native(memory[::2])
    assert memory.tolist() == [0, 5, 2, 6, 0, 8]
