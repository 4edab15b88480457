"""Artifacts for the fuzzer to start from: ``python -m tests.native.seeds FOLDER``."""

import struct
import subprocess
import sys
import tempfile
from pathlib import Path

from dovetail.artifact.sign import sign_file
from dovetail.file import container
from dovetail.file.encode import code_section
from dovetail.file.kernel_encode import encode_kernels
from dovetail.file.processors import AARCH64
from dovetail.ir.kernel_text import parse_kernel
from tests.artifact.files import RELU, ROOT, file_bytes, floats
from tests.native import seeds_programs as programs
from tests.native.named_kernels import encode_named
from tests.native.seeds_kernels import kernel_file, kernel_seeds

DYNAMIC = """\
program @dynamic
symbol s0 = %x[0] in 0..9
input %x: float32[s0, 3]
constant %w: float32[3, 4]
constant %b: float32[4]
temporary %a: float32[s0, 4]
temporary %g: float32[s0, 4] of %a
temporary %n: float32[s0, 4]
temporary %mean: float32[s0, 1]
temporary %scale: float32[s0, 1]
view %t: float32[4, s0] strides [1, 4] of %n
temporary %s: float32[4, s0]
output %y: float32[s0]
output %z: float32[4, s0] strides [1, 4]
guard s0 % 1 == 0
kernel %a = matmul@1(%x, %w, %b)
kernel %g = gelu@1(%a)
kernel %n, %mean, %scale = layer_norm@1(%g, %b, %b; 1, 0x1.0p-10, 1, 1)
kernel %s = softmax@1(%t; 1)
kernel %y = sum@1(%s; 1, 0)
copy %z = %s
return %y, %z
"""

MOVES = """\
program @moves
input %i: int64[2, 2]
input %m: bool[2, 3]
constant %t: float32[4, 3]
state %total: float32[2, 3]
temporary %e: float32[2, 2, 3]
view %row: float32[2, 3] of %e at 6
temporary %w: float32[2, 3]
temporary %r: int64[6]
temporary %k: float32[4, 3]
temporary %p: float32[4, 3]
temporary %s: float32[4, 2]
temporary %o: int64[4, 2]
temporary %n: float32[3]
temporary %h: int64[3]
output %c: float32[4, 3]
output %d: float64[2, 3]
kernel %e = take@1(%t, %i; 0)
kernel %w = where@1(%m, %row, %total)
kernel %r = arange@1(; 3, 2)
kernel %k = scatter@1(%t, %i, %e; 0, 1, 1, 1, 0)
kernel %p = put@1(%k, %e, %i; 1, 0, 1, 1)
kernel %s, %o = sort@1(%p; 1, 1)
kernel %n, %h = select@1(%k; 0, -1)
kernel %c = cat@1(%w, %row; 0)
kernel %d = copy@1(%w)
copy %total = %w
return %c, %d
"""

HOST = """\
program @host
symbol s0 = %x[1] in 1..8
input %x: float32[2, s0]
host %v: float32[2, 1]
host %i: int64[2, 1]
view %f: float32[2] of %v
temporary %n: float32[2]
output %y: float32[2, 1]
call %v, %i = aten.topk.default [{"buffer": "x"}, 1, {"size": "s0 - s0"}] {}
kernel %n = neg@1(%f)
copy %x = %x
copy %y = %v
return %y
"""

INTO = """\
program @into
symbol s0 = %x[0] in 1..8
input %x: float32[s0, 2]
temporary %a: float32[s0, 2]
temporary %b: float32[s0, 2]
temporary %d: float32[s0, 2]
temporary %e: float32[s0, 2] of %d
host %c: float32[s0, 2]
output %y: float32[s0, 2]
call %a = aten.mm.default [{"buffer": "x"}, {"buffer": "x"}] {}
kernel %d = neg@1(%x)
kernel %e = neg@1(%d)
call %b = aten.mm.default [{"buffer": "a"}, {"buffer": "x"}] {}
call %c = aten.relu.default [{"buffer": "b"}] {}
call %y = aten.mm.default [{"buffer": "c"}, {"buffer": "a"}] {}
return %c, %y
"""

SMALL_CODE = b"smallxx\0" + struct.pack("<q", 4)  # as tests/plugin/small.c compiles relus
# Accelerators: tests/plugin has the plug-ins that these run on.
LAUNCHES = """\
program @launches
device accel_c {"version": "1.0", "abi": "1.0", "needs": {"memory.used": 0}}
symbol s0 = %x[0] in 1..8
input %x: float32[s0, 4]
constant %w: float32[4, 4] strides [1, 4] on accel_c
constant %b: float32[4] on accel_c
temporary %d: float32[s0, 4] on accel_c
temporary %m: float32[s0, 4] on accel_c
temporary %r: float32[s0, 4] on accel_c
temporary %s: float32[s0, 4] on accel_c
view %t: float32[4, s0] strides [1, 4] on accel_c of %s
temporary %u: float32[4, s0] on accel_c
temporary %h: float32[s0, 4]
output %y: float32[4, s0]
output %z: float32[s0, 4]
copy %d = %x
launch %m = accel_c:matmul@1 aten.addmm.default(%b, %d, %w) {"beta": 1, "alpha": {"float": "0x1.0p+0"}}
launch %r = accel_c:relu@1-3 aten.relu.default(%m) {}
copy %h = %r
kernel %z = neg@1(%h)
launch %s = accel_c:softmax@1 aten._softmax.default(%r) {"dim": -1, "half_to_float": false}
launch %u = accel_c:add@1 aten.add.Tensor(%t, %t) {"alpha": 1}
copy %y = %u
return %y, %z
"""  # noqa: E501

NORM = """\
program @norm
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[2, 4]
temporary %d: float32[2, 4] on accel_c
temporary %n: float32[2, 4] on accel_c
temporary %m: float32[2, 1] on accel_c
temporary %v: float32[2, 1] on accel_c
output %y: float32[2, 4]
copy %d = %x
launch %n, %m, %v = accel_c:layer_norm@1 aten.native_layer_norm.default(%d, _, _) \
{"normalized_shape": [4], "eps": {"float": "0x1.0p-10"}}
copy %y = %n
return %y
"""

# Operands that are more than their buffers say: quantised, of four bits, in the device's layout.
OPERANDS = """\
program @operands
device accel_c {"version": "1.0", "abi": "1.3", "needs": {}}
symbol s0 = %x[0] in 1..8
input %x: int8[s0, 4]
constant %w: uint8[8] on accel_c
constant %s: float32[4] on accel_c
constant %z: int32[4] on accel_c
constant %p: uint8[64] on accel_c
constant %f: uint8[16] on accel_c
temporary %d: int8[s0, 4] on accel_c
temporary %q: int8[s0, 4] on accel_c
temporary %r: float32[2, 2] on accel_c
output %y: float32[2, 2]
output %v: int8[s0, 4]
copy %d = %x
launch %r = accel_c:relu@1 aten.relu.default(%f) {} with {"hidden": 0, "operands": \
[{"place": 0, "as": ["float32", [2, 2], [1, 2]]}]}
launch %q = accel_c:matmul@1 aten.mm.default(%d, %w, %s, %z) {} with {"hidden": 2, "operands": \
[{"place": 0, "quantization": {"block": [0, 0], "scale": 0.5, "zero_point": -3, \
"range": [-128, 127], "real": "float32", "axes": []}}, \
{"place": 1, "as": ["int4", [4, 4], [1, 4]], "quantization": {"block": [0, 1], \
"scale": {"ref": ["s"]}, "zero_point": {"ref": ["z"]}, "range": [-8, 7], "real": "float32", \
"axes": [1]}}, {"place": 2, "as": ["float32", [1, 4], [0, 1]]}, \
{"place": 3, "as": ["int32", [1, 4], [0, 1]]}, \
{"place": 4, "quantization": {"block": [0, 0], "scale": 0.25, "zero_point": 1, \
"range": [-128, 127], "real": "float32", "axes": []}}]}
launch %q = accel_c:matmul@1 aten.mm.default(%d, %p) {} with {"hidden": 0, "operands": \
[{"place": 1, "as": ["float32", [4, 4], [4, 1]], "prepared": true}]}
copy %y = %r
copy %v = %q
return %y, %v
"""
OPERAND_BYTES = {
    "w": bytes(range(8)),
    "s": floats(1, 2, 3, 4),
    "z": struct.pack("<4i", 0, 1, -2, 3),
    "p": bytes(64),
    "f": floats(-1, 2, -3, 4),
}

BLOBS = """\
program @blobs
device small {"version": "1", "abi": "1.0", "needs": {}}
symbol s0 = %z[0] in 0..8
input %x: float32[4]
input %z: float32[s0]
temporary %d: float32[4] on small
temporary %r: float32[4] on small
host %v: float32[4]
output %y: float32[4]
copy %d = %x
blob %r = small:relus [{"buffer": "d"}]
blob %v, _ = vendor:other [{"size": "s0 * 2"}, {"buffer": "x"}, 3]
copy %y = %r
return %y, %v
"""
# Kernels as data, of every kind of instruction: what runs where native code may not.
KERNELS = """\
kernel softmax(in x: float32, inout y: float32) over [i: s0] {
  loop [j: 5] {
    a: float32 = load x[0 | i * (5) | j * (1)]
    m: float32 = reduce max(a)
  }
  loop [j: 5] {
    b: float32 = load x[0 | i * (5) | j * (1)]
    c: float32 = sub(b, m)
    e: float32 = exp(c)
    store y[0 | i * (5) | j * (1)] = e
    t: float32 = reduce sum(e)
  }
  loop [] {
    r: float32 = const 0x1.0p+0
    q: float32 = div(r, t)
  }
  loop [j: 5] {
    d: float32 = load y[0 | i * (5) | j * (1)]
    f: float32 = mul(d, q)
    store y[0 | i * (5) | j * (1)] = f
  }
}
kernel places(in y: float32, in w: float16, out k: int64, out h: bfloat16) over [j: 5] {
  loop [i: s0] {
    a: float32 = load y[0 | i * (5) | j * (1)]
    p: int64 = position [0 | i * (1)]
    m: int64 = reduce argmax(a, p)
    n: float32 = reduce sum(a)
  }
  loop [] {
    store k[0 | j * (1)] = m
    u: float32 = load w[0 | j * (1)]
    v: float32 = max(u, n)
    store h[0 | j * (1)] = v
  }
}
kernel steps(in x: float32, out c: float64, out o: int32) over [i: s0] {
  loop [j: 5] {
    a: float32 = load x[0 | i * (5) | j * (1)]
    b: float64 = cast(a)
    s: float64 = scan sum(b)
    store c[0 | i * (5) | j * (1)] = s
    p: int64 = position [0 | j * (1)]
    q: int32 = cast(p)
    m: int32 = scan max(q)
    store o[0 | i * (5) | j * (1)] = m
  }
}
kernel rows(in x: float32, in k: int64, in b: bool, out z: int32) over [j: 5, i: 3] {
  loop [] {
    a: int64 = load k[0 | j * (1)]
    s: int64 = position [s0]
    y: bool = load b[0 | i * (1)]
    p: int64 = check(a, s, y)
    v: float32 = load x[0 | i * (1) | %p * (5)] if y
    o: int64 = const 3
    q: int64 = floordiv(p, o)
    r: int32 = cast(v)
    t: int32 = cast(q)
    w: int32 = add(r, t)
    store z[0 | j * (3) | i * (1)] = w
  }
}
"""
INTERPRETED = """\
program @interpreted
symbol s0 = %x[0] in 0..9
input %x: float32[s0, 5]
input %b: bool[3]
constant %w: float16[5]
temporary %y: float32[s0, 5]
temporary %k: int64[5]
output %h: bfloat16[5]
output %z: int32[5, 3]
output %c: float64[s0, 5]
output %o: int32[s0, 5]
kernel %y = softmax@1(%x; s0)
kernel %k, %h = places@1(%y, %w; s0)
kernel %z = rows@1(%x, %k, %b; s0)
kernel %c, %o = steps@1(%x; s0)
return %h, %z, %c, %o
"""


def generated_kernels():
    """The kernels of ``KERNELS``, one text each."""
    return [f"kernel {text}" for text in KERNELS.split("kernel ")[1:]]


def compiled_here():
    """The same kernels with native code for this machine, where llvmlite is.

    ``compiled`` has functions by the kernels' names, as a file's own; ``regenerated`` those that
    are made for a file that nobody vouches for, by number, as ``dvt_use_code`` asks for them.
    """
    from dovetail.backends.cpu.code import scheduled
    from dovetail.backends.cpu.regenerate import regenerate
    from dovetail.codegen.llvm.module import generate
    from dovetail.codegen.llvm.target import missing
    from dovetail.file.processors import PROCESSORS, target_here

    if missing():
        return {}
    kernels = [parse_kernel(text) for text in generated_kernels()]
    here = target_here()
    made = generate(scheduled({k.name: k for k in kernels}, here), here)
    trusted = code_section([(PROCESSORS[here.name], made)])
    guarded, problem = regenerate(encode_kernels(kernels), False)
    assert guarded is not None, problem
    sections = {"compiled": trusted, "regenerated": container.section(container.CODE, guarded)}
    return {name: with_code(section) for name, section in sections.items()}


def with_code(section):
    """``INTERPRETED`` with a code section."""
    options = {"features": container.FEATURE_CODE, "sections": [section]}
    return kernel_file(INTERPRETED, generated_kernels(), {"w": bytes(10)}, **options)


def named():
    """The same kernels in the form of format 1.2."""
    section = container.section(
        container.KERNEL_IR, encode_named([parse_kernel(text) for text in generated_kernels()])
    )
    names = {f"{name}@1": name for name in ("softmax", "places", "rows", "steps")}
    contents = {"w": bytes(10)}
    return file_bytes(INTERPRETED, contents, generated=names, sections=[section], version=(1, 2))


def native_code():
    """An object of tests/native/seed_code.c; any x86-64 runs it."""
    flags = "-c -O1 -std=c11 -fPIC -fvisibility=hidden -ffreestanding -fno-stack-protector"
    flags += " -fcf-protection=none -fno-asynchronous-unwind-tables"
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder) / "code.o"
        command = ["cc", *flags.split(), "-I", ROOT / "native/include", "-o", made]
        subprocess.run([*command, ROOT / "tests/native/seed_code.c"], check=True)
        return made.read_bytes()


def native():
    """Code for two x86-64 levels and another kind of processor, with and without kernel IR.

    One has several objects for each.
    """
    code = native_code()
    section = code_section([(1, code), (2, code), (AARCH64, code[:64])])
    options = {"features": container.FEATURE_CODE, "sections": [section]}
    bare = file_bytes(programs.NATIVE, generated={"twice@1": "twice"}, **options)
    several = code_section([(1, code), (1, code), (AARCH64, code[:64]), (AARCH64, code[:64])])
    moody = file_bytes(
        programs.MOODY,
        generated={"moody@1": "moody"},
        features=container.FEATURE_CODE,
        sections=[several],
    )
    both = kernel_file(programs.NATIVE, [programs.TWICE], **options)
    return {"native": both, "bare": bare, "moody": moody}


def seeds():
    """Name → bytes."""
    return {
        "relu": file_bytes(RELU),
        "dynamic": file_bytes(DYNAMIC, {"w": floats(*range(12)), "b": floats(1, 2, 3, 4)}),
        "moves": file_bytes(MOVES, {"t": floats(*range(12)), "total": floats(*range(6))}),
        "host": file_bytes(HOST),
        "into": file_bytes(INTO),
        "launches": file_bytes(LAUNCHES, {"w": floats(*range(16)), "b": floats(1, 2, 3, 4)}),
        "norm": file_bytes(NORM),
        "operands": file_bytes(OPERANDS, OPERAND_BYTES),
        "blobs": file_bytes(BLOBS, blobs={"relus": SMALL_CODE, "other": b"anything"}),
        "interpreted": kernel_file(INTERPRETED, generated_kernels(), {"w": bytes(10)}),
        "values": file_bytes(programs.VALUES),
        "layouts": file_bytes(programs.LAYOUTS, {"w": floats(*range(24)), "v": floats(*range(36))}),
        "wide": file_bytes(programs.WIDE),
        "writes": file_bytes(programs.WRITES, {"seen": floats(1, 2)}),
        "empty": file_bytes(programs.EMPTY),
        "turns": file_bytes(programs.TURNS, {"k": floats(1, 2, 3, 4)}),
        "otherwise": file_bytes(programs.OTHERWISE),
        "rows": file_bytes(programs.ROWS),
        "kept": file_bytes(
            programs.KEPT, {"p": floats(1, 2, 3, 4), "q": floats(5, 6, 7, 8), "r": floats(9, 0)}
        ),
        "table": file_bytes(programs.TABLE, {"w": bytes(32)}),
        "many": file_bytes(programs.MANY),
        "symbols": file_bytes(programs.SYMBOLS),
        "named": named(),
        **kernel_seeds(),
        **native(),
        **compiled_here(),
    }


def write(folder):
    """Every seed as a file, and one of them signed."""
    paths = []
    for name, data in seeds().items():
        path = Path(folder) / f"{name}.dvt"
        path.write_bytes(data)
        paths.append(path)
    signed = Path(folder) / "signed.dvt"
    signed.write_bytes(seeds()["relu"])
    sign_file(signed, bytes(range(32)))
    return [*paths, signed]


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    print(*write(sys.argv[1]))
