"""Seeds of kernel IR: kernels with every operation, every reduction and scan, in every type."""

from dovetail.file import container
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.kernel_text import parse_kernel
from dovetail.ir.ops import OPERATIONS_BY_NUMBER, REDUCTIONS_BY_NUMBER
from tests.artifact.files import file_bytes
from tests.native.named_kernels import encode_named

TYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")
FIRST = {"float32": "0x1.8p+0", "float64": "-0x1.0p-1", "bool": "True"}


def kernel_file(program, kernels, contents=None, *, sections=(), **options):
    """A file whose kernels of the same names are kernel IR."""
    parsed = [parse_kernel(text) for text in kernels]
    return file_bytes(
        program,
        contents or {},
        generated={f"{k.name}@1": k.name for k in parsed},
        sections=[container.section(container.KERNEL_IR, encode_kernels(parsed)), *sections],
        **options,
    )


def operations(dtype):
    """A kernel that applies whatever admits values of this type, and its program."""
    lines = [
        f"a: {dtype} = load x[0 | i * (1)]",
        f"b: {dtype} = const {FIRST.get(dtype, 3)}",
        "t: bool = load m[0 | i * (1)]",
        "p: int64 = position [0 | i * (1)]",
        "q: int64 = position [s0]",
    ]
    stores, buffers = [], []
    for op in OPERATIONS_BY_NUMBER:
        given = {
            "test": [("a",)] * (op.rule == "test"),
            "select": [("t", "a", "b")],
            "check": [("p", "q", "t")] if op.name != "check_divisor" else [("p", "p", "t")],
        }.get(op.rule, [("a", "b", "a")[: op.arity]])
        types = {"a": dtype, "b": dtype, "t": "bool", "p": "int64", "q": "int64"}
        for args in given:
            for result in (dtype, "bool", "int64", "float64"):
                if op.admits(tuple(types[v] for v in args), result):
                    name = f"v{len(lines)}"
                    lines.append(f"{name}: {result} = {op.name}({', '.join(args)})")
                    stores.append((name, result))
    for name, result in stores[:: max(1, len(stores) // 12)]:
        buffers.append((f"o{len(buffers)}", result))
        lines.append(f"store {buffers[-1][0]}[0 | i * (1)] = {name}")
    outs = ", ".join(f"out {name}: {kind}" for name, kind in buffers)
    kernel = f"kernel ops(in x: {dtype}, in m: bool, {outs}) over [i: s0] {{\n  loop [] {{\n"
    kernel += "".join(f"    {line}\n" for line in lines) + "  }\n}\n"
    names = ", ".join(f"%{name}" for name, _ in buffers)
    program = "program @ops\nsymbol s0 = %x[0] in 1..9\n"
    program += f"input %x: {dtype}[s0]\ninput %m: bool[s0]\n"
    program += "".join(f"output %{name}: {kind}[s0]\n" for name, kind in buffers)
    return program + f"kernel {names} = ops@1(%x, %m; s0)\nreturn {names}\n", [kernel]


def reductions(dtype):
    """A kernel that reduces and scans values of this type in every way, and its program."""
    inner, after, buffers = [], [], []
    for fold in REDUCTIONS_BY_NUMBER:
        args = ("a", "p")[: fold.arity]
        result = "int64" if fold.arity == 2 else dtype
        types = {"a": dtype, "p": "int64"}
        if not fold.admits(tuple(types[v] for v in args), result):
            continue
        place = len(buffers)
        inner.append(f"r{place}: {result} = reduce {fold.name}({', '.join(args)})")
        after.append(f"store o{place}[0 | i * (1)] = r{place}")
        buffers.append((f"o{place}", result, "[s0]"))
        if fold.arity == 1:
            inner.append(f"s{place}: {result} = scan {fold.name}(a)")
            inner.append(f"store w{place}[0 | i * (5) | j * (1)] = s{place}")
            buffers.append((f"w{place}", result, "[s0, 5]"))
    outs = ", ".join(f"out {name}: {kind}" for name, kind, _ in buffers)
    kernel = f"kernel folds(in x: {dtype}, {outs}) over [i: s0] {{\n  loop [j: 5] {{\n"
    kernel += (
        f"    a: {dtype} = load x[0 | i * (5) | j * (1)]\n    p: int64 = position [0 | j * (1)]\n"
    )
    kernel += "".join(f"    {line}\n" for line in inner) + "  }\n  loop [] {\n"
    kernel += "".join(f"    {line}\n" for line in after) + "  }\n}\n"
    names = ", ".join(f"%{name}" for name, _, _ in buffers)
    program = "program @folds\nsymbol s0 = %x[0] in 0..9\n"
    program += f"input %x: {dtype}[s0, 5]\n"
    program += "".join(f"output %{name}: {kind}{shape}\n" for name, kind, shape in buffers)
    return program + f"kernel {names} = folds@1(%x; s0)\nreturn {names}\n", [kernel]


# Scattered stores, masks that change inside a row, gathers by two values, 16-bit types.
SCATTERS = [
    """\
kernel scatter(in x: float16, in k: int64, in m: bool, inout y: bfloat16, out z: int16) \
over [i: 4] {
  loop [j: s1] {
    v: int64 = load k[0 | j * (1)]
    c: int64 = position [0 | j * (1)]
    n: int64 = position [s1]
    t: bool = load m[0 | j * (1)]
    q: int64 = check_index(v, n, t)
    o: int64 = check_bounds(v, n, t)
    r: int64 = min(c, o)
    g: float32 = load x[0 | i * (s1) | %q * (1)] if t
    h: float32 = load x[0 | %r * (1)] if t
    d: float32 = add(g, h)
    store y[0 | i * (s1) | %r * (1)] = d
    e: int16 = cast(d)
    store z[0 | i * (s1) | j * (1)] = e
  }
  loop [l: s1] {
    w: float32 = load y[0 | i * (s1) | l * (1)]
    u: float32 = reduce max(w)
  }
}
""",
]
SCATTERED = """\
program @scattered
symbol s1 = %x[1] in 1..70
input %x: float16[4, s1]
input %k: int64[s1]
input %m: bool[s1]
output %y: bfloat16[4, s1]
output %z: int16[4, s1]
kernel %y, %z = scatter@1(%x, %k, %m; s1)
return %y, %z
"""


# Loops of several axes, of which some values vary along few; a kernel that does nothing.
NESTED = [
    """\
kernel nested(in x: int32, in b: bool, out y: int32, out z: int64, out w: bool) over [i: 3] {
  loop [j: s0, l: 4] {
    a: int32 = load x[0 | j * (1)]
    c: int32 = load x[0 | i * (1) | l * (1)]
    d: int32 = add(a, c)
    t: bool = load b[0 | l * (1)]
    e: int32 = where(t, d, a)
    r: int32 = reduce sum(e)
    q: bool = reduce any(t)
    p: int64 = position [0 | j * (4) | l * (1)]
    m: int64 = reduce argmin(d, p)
  }
  loop [k: 2, n: 2] {
    store w[0 | i * (4) | k * (2) | n * (1)] = q
    store y[0 | i * (4) | k * (2) | n * (1)] = r
    s: int32 = load x[1 | k * (1) | n * (1)]
    u: int32 = max(s, r)
    v: bool = lt(u, r)
    g: int32 = reduce prod(u)
  }
  loop [] {
    store z[0 | i * (1)] = m
  }
}
""",
    "kernel nothing(in x: int32, out o: float64) over [i: s0] {\n}\n",
]
NESTS = """\
program @nests
symbol s0 = %x[0] in 7..90
input %x: int32[s0]
input %b: bool[4]
output %y: int32[3, 2, 2]
output %z: int64[3]
output %w: bool[3, 4]
output %o: float64[3]
kernel %y, %z, %w = nested@1(%x, %b; s0)
kernel %o = nothing@1(%x; s0)
return %y, %z, %w, %o
"""


# Stores where an input says, unchecked: of whole rows, and one by one.
UNCHECKED = [
    """\
kernel unchecked(in k: int64, inout y: float32) over [i: 4] {
  loop [j: 4] {
    v: int64 = load k[0 | i * (1)]
    w: int64 = load k[0 | j * (1)]
    c: float32 = const 0x1.0p+0
    store y[0 | j * (1) | %v * (4)] = c
    store y[0 | %w * (1)] = c
  }
}
""",
]
ROWS_BY_INDEX = """\
program @by_index
symbol s0 = %x[0] in 1..9
input %x: float32[s0, 4]
input %k: int64[4]
output %y: float32[s0, 4]
kernel %y = unchecked@1(%k)
return %y
"""

# Divisors that are inputs, zero among them.
DIVIDES = [
    """\
kernel divides(in a: int64, in b: int64, out y: int64, out z: int64) over [i: s0] {
  loop [] {
    v: int64 = load a[0 | i * (1)]
    w: int64 = load b[0 | i * (1)]
    q: int64 = floordiv(v, w)
    r: int64 = floormod(v, w)
    store y[0 | i * (1)] = q
    store z[0 | i * (1)] = r
  }
}
""",
]
DIVIDED = """\
program @divided
symbol s0 = %a[0] in 1..9
input %a: int64[s0]
input %b: int64[s0]
output %y: int64[s0]
output %z: int64[s0]
kernel %y, %z = divides@1(%a, %b; s0)
return %y, %z
"""

# An axis twice in one index, which format 1.2 allows: the text has another's in its place.
DIAGONAL = """\
kernel diagonal(in x: float32, out y: float32) over [i: 4, j: 4] {
  loop [] {
    a: float32 = load x[0]
    store y[0 | i * (4) | j * (1)] = a
  }
}
"""
ON_THE_DIAGONAL = """\
program @on_the_diagonal
input %x: float32[1]
output %y: float32[16]
kernel %y = diagonal@1(%x)
return %y
"""


def diagonal():
    """A file of format 1.2 with a kernel that stores along a diagonal."""
    described = encode_named([parse_kernel(DIAGONAL)])
    i_and_j, i_twice = (bytes([2, 0, 0, 8, j, 0, 2]) for j in (1, 0))
    assert described.count(i_and_j) == 1
    section = container.section(container.KERNEL_IR, described.replace(i_and_j, i_twice))
    names = {"diagonal@1": "diagonal"}
    return file_bytes(ON_THE_DIAGONAL, generated=names, sections=[section], version=(1, 2))


def kernel_seeds():
    """Name → bytes."""
    made = {f"ops_{t}": kernel_file(*operations(t)) for t in TYPES}
    made |= {f"folds_{t}": kernel_file(*reductions(t)) for t in TYPES}
    return made | {
        "scattered": kernel_file(SCATTERED, SCATTERS),
        "nested": kernel_file(NESTS, NESTED),
        "unchecked": kernel_file(ROWS_BY_INDEX, UNCHECKED),
        "divides": kernel_file(DIVIDED, DIVIDES),
        "diagonal": diagonal(),
    }
