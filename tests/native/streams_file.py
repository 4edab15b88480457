"""Files for native/tests/test_streams.c: ``python -m tests.native.streams_file FOLDER``."""

import sys
from pathlib import Path

from tests.artifact.files import file_bytes, floats

# A running sum: what is added up stays on the device, as state.
SUM = """\
program @sum
device {plugin} {{"version": "1.0", "abi": "1.0", "needs": {{}}}}
input %x: float32[256]
state %total: float32[256]
temporary %a: float32[256] on {plugin}
temporary %b: float32[256] on {plugin}
temporary %c: float32[256] on {plugin}
output %y: float32[256]
copy %a = %x
copy %b = %total
launch %c = {plugin}:{kernel}@1 aten.add.Tensor(%a, %b) {{"alpha": 1}}
copy %total = %c
copy %y = %c
return %y
"""

# The host needs the input too, and its part of the result is its own.
MIXED = """\
program @mixed
device accel_sim {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[256]
temporary %a: float32[256] on accel_sim
temporary %b: float32[256] on accel_sim
output %y: float32[256]
output %z: float32[256]
copy %a = %x
launch %b = accel_sim:unary@1 aten.neg.default(%a) {}
kernel %z = relu@1(%x)
copy %y = %b
return %y, %z
"""

# The host's kernels need what the device gives, and use memory again that the device is sent.
NEEDED = """\
program @needed
device accel_sim {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[256]
temporary %a: float32[256] on accel_sim
temporary %b: float32[256] on accel_sim
temporary %c: float32[256] on accel_sim
temporary %d: float32[256] on accel_sim
temporary %g: float32[256]
temporary %h: float32[256]
temporary %k: float32[256]
output %w: float32[256]
output %y: float32[256]
output %z: float32[256]
copy %a = %x
launch %b = accel_sim:unary@1 aten.neg.default(%a) {}
copy %h = %b
kernel %z = relu@1(%h)
kernel %g = relu@1(%x)
copy %c = %g
kernel %k = add@1(%x, %x)
kernel %w = relu@1(%k)
launch %d = accel_sim:unary@1 aten.neg.default(%c) {}
copy %y = %d
return %w, %y, %z
"""


# Kernels that follow each other, with nothing between them that the host could tell apart.
CHAIN = """\
program @chain
device accel_sim {{"version": "1.0", "abi": "1.0", "needs": {{}}}}
input %x: float32[256]
temporary %t0: float32[256] on accel_sim
{temporaries}
output %y: float32[256]
copy %t0 = %x
{launches}
copy %y = %t{count}
return %y
"""

# The host's operator needs what the first kernel gives, and the device goes on meanwhile.
CALLS = """\
program @calls
device accel_sim {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[256]
temporary %a: float32[256] on accel_sim
temporary %b: float32[256] on accel_sim
temporary %c: float32[256] on accel_sim
temporary %d: float32[256] on accel_sim
temporary %h: float32[256]
host %k: float32[256]
output %y: float32[256]
output %z: float32[256]
copy %a = %x
launch %b = accel_sim:unary@1 aten.neg.default(%a) {}
copy %h = %b
launch %c = accel_sim:unary@1 aten.neg.default(%b) {}
launch %d = accel_sim:unary@1 aten.neg.default(%c) {}
copy %y = %d
call %k = aten.relu.default [{"buffer": "h"}] {}
kernel %z = relu@1(%k)
return %y, %z
"""


def chain(count):
    """As many negations."""
    temporaries = [f"temporary %t{n + 1}: float32[256] on accel_sim" for n in range(count)]
    launches = [
        f"launch %t{n + 1} = accel_sim:unary@1 aten.neg.default(%t{n}) {{}}" for n in range(count)
    ]
    return CHAIN.format(
        temporaries="\n".join(temporaries), launches="\n".join(launches), count=count
    )


def write(folder):
    """One file for each device, and one in which the host has a part."""
    start = {"total": floats(*[0.0] * 256)}
    for plugin, kernel in (("accel_sim", "binary"), ("accel_c", "add")):
        data = file_bytes(SUM.format(plugin=plugin, kernel=kernel), start)
        (folder / f"sum_{plugin}.dvt").write_bytes(data)
    (folder / "chain.dvt").write_bytes(file_bytes(chain(20)))
    (folder / "calls.dvt").write_bytes(file_bytes(CALLS))
    (folder / "needed.dvt").write_bytes(file_bytes(NEEDED))
    (folder / "mixed.dvt").write_bytes(file_bytes(MIXED))


if __name__ == "__main__":
    write(Path(sys.argv[1]))
