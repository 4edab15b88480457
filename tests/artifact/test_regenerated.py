"""Code made here of a file's kernel IR: what nobody vouches for gets no further than C's check."""

import warnings

import numpy as np
import pytest

import dovetail
from dovetail import _native, errors
from dovetail.artifact.load import _regenerate
from dovetail.file import container
from dovetail.file.kernel_encode import encode_kernels
from dovetail.ir.dtypes import COMPUTE
from dovetail.ir.kernel_text import parse_kernel
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes
from tests.differential import needs_code
from tests.native.named_kernels import encode_named

pytestmark = needs_code
COPY = """\
kernel k(in x: float32, out y: float32) over [i: 4] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    store y[0 | i * (1)] = a
  }
}
"""
SIZED = COPY.replace("[i: 4]", "[i: s0]")
ROWS = """\
kernel k(in x: float32, out y: float32) over [i: 2] {
  loop [j: 3, q: 50000000] {
    a: float32 = load x[0 | j * (1)]
    s: float32 = reduce sum(a)
  }
  loop [] {
    store y[0 | i * (1)] = s
  }
}
"""


def file_of(described, program, generated=None):
    """The bytes of a file with this section of kernel IR."""
    section = container.section(container.KERNEL_IR, described)
    return file_bytes(program, sections=[section], generated=generated or {"k@1": "k"})


def opened(described, program, generated=None):
    """Such a file as ``dovetail.load`` opens it: unsigned, compiled where that is safe."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", errors.FallbackWarning)
        return open_native(file_of(described, program, generated), regenerate=_regenerate)


def program_of(call="k@1(%x)", x="4", y="4", more=""):
    text = f"program @p\n{more}input %x: float32[{x}]\noutput %y: float32[{y}]\n"
    return text + f"kernel %y = {call}\nreturn %y\n"


# ---- names have no meaning ---------------------------------------------------------------------


@pytest.mark.parametrize("text", ["s0", "100000000", "s0 * 2", "s1", "", "1", "x", "(((", "\0"])
def test_the_text_of_a_size_means_nothing(text):
    """Where there still is one, in a file of format 1.2: a size is an attribute of the call."""
    program = program_of("k@1(%x; s0)", "s0", "s0", "symbol s0 = %x[0] in 1..9\n")
    run = opened(encode_named([parse_kernel(SIZED)], {"s0": text}), program)
    assert run.code() == -2
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], np.ones(4))
    run = opened(encode_kernels([parse_kernel(SIZED)]), program)
    assert run.code() == 1
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], np.ones(4))


def test_two_axes_of_one_name_are_two():
    kernel = parse_kernel(ROWS.replace("50000000", "5"))
    for described in (encode_named([kernel], {"q": "j", "i": "j"}), encode_kernels([kernel])):
        run = opened(described, program_of(x="3", y="2"))
        np.testing.assert_array_equal(run(np.ones(3, "float32"))[0], [15, 15])


def test_values_and_buffers_of_one_name_are_two():
    text = COPY.replace("store", "b: float32 = neg(a)\n    store").replace("= a", "= b")
    called = {"a": "n", "b": "n", "x": "n", "y": "n", "i": "n"}
    run = opened(encode_named([parse_kernel(text)], called), program_of())
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], -np.ones(4))


SIZES = """\
kernel k(in x: float32, out y: float32) over [i: n, j: m] {
  loop [] {
    a: float32 = load x[0 | i * (m) | j * (p)]
    store y[0 | i * (q) | j * (1)] = a
  }
}
"""


def test_a_size_is_an_attribute_by_its_number():
    """Four sizes, two of them alike at every call: code and check read the same attributes."""
    program = program_of("k@1(%x; 2, 3, 1, 3)", "6", "6")
    x = np.arange(6, dtype="float32")
    run = opened(encode_kernels([parse_kernel(SIZES)]), program)
    assert run.code() == 1
    np.testing.assert_array_equal(run(x)[0], x)
    for wrong in ("2, 3, 1, 4", "3, 3, 1, 3", "2, 3, 1, -3", "2, 3, 9223372036854775807, 3"):
        run = opened(
            encode_kernels([parse_kernel(SIZES)]), program_of(f"k@1(%x; {wrong})", "6", "6")
        )
        with pytest.raises(errors.InvalidArtifact, match="reaches outside"):
            run(x)


def test_an_attribute_may_be_a_float():
    """Its bits are what code and check both take for the size."""
    kernel = parse_kernel(SIZED)
    run = opened(encode_kernels([kernel]), program_of(f"k@1(%x; {(4.0).hex()})"))
    with pytest.raises(errors.DovetailError):
        run(np.ones(4, "float32"))
    tiny = float(np.int64(4).view("float64"))
    run = opened(encode_kernels([kernel]), program_of(f"k@1(%x; {tiny.hex()})"))
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], np.ones(4))


# ---- functions of generated code ---------------------------------------------------------------


@pytest.mark.parametrize(
    "symbol", ["k.body", "k0.body", "k0", "k1", ".Lk0", "", "memcpy", "reach", "k\0"]
)
def test_only_kernels_of_the_section_are_functions(symbol):
    """What a file calls by a name that is no kernel's IR is a built-in kernel, or an error."""
    described = encode_kernels([parse_kernel(COPY)])
    text = """\
program @p
input %x: float32[4]
temporary %t: float32[4]
output %y: float32[4]
kernel %t = k@1(%x)
kernel %y = {}@1(%t)
return %y
"""
    run = opened(described, text.format("relu"), {"k@1": "k", "relu@1": symbol})
    assert run.code() == 1
    np.testing.assert_array_equal(run(-np.ones(4, "float32"))[0], np.zeros(4))
    with pytest.raises(errors.DovetailError, match=r"cannot run|no function|no kernel"):
        opened(described, text.format("z"), {"k@1": "k", "z@1": symbol})


def test_code_is_given_once_before_the_first_run():
    described = encode_kernels([parse_kernel(COPY)])
    code, problem = _regenerate(described, False)
    assert problem == ""
    native = _native.Artifact(file_of(described, program_of()), 0, b"")
    with pytest.raises(errors.InvalidArtifact):
        native.use_code(code[:40])
    assert native.code() == -2
    native.use_code(code)
    assert native.code() == 1
    with pytest.raises(errors.DovetailError, match="once"):
        native.use_code(code)
    native = _native.Artifact(file_of(described, program_of()), 0, b"")
    native(np.ones(4, "float32"))
    with pytest.raises(errors.DovetailError, match="before the first run"):
        native.use_code(code)


def test_a_kernel_without_kernel_ir_is_not_looked_for_in_made_code():
    """Code that was made here never serves a name of the file's choice."""
    other = encode_kernels([parse_kernel(COPY.replace("kernel k(", "kernel other("))])
    with pytest.raises(errors.DovetailError, match="cannot run"):
        opened(other, program_of(), {"k@1": "k0"})


# ---- what code takes for granted ---------------------------------------------------------------

EMPTY = """\
kernel k(in x: float32, out y: float32) over [i: 4] {
  loop [j: s0] {
    a: float32 = load x[1000000000000 | i * (1)]
    s: float32 = reduce sum(a)
  }
  loop [] {
    store y[0 | i * (1)] = s
  }
}
"""


def test_nothing_is_read_for_a_loop_of_no_points():
    """What a loop needs is not fetched before it is known to run: its places were not checked."""
    program = program_of("k@1(%x; 0)")
    run = opened(encode_kernels([parse_kernel(EMPTY)]), program)
    assert run.code() == 1
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], np.zeros(4))
    run = opened(encode_kernels([parse_kernel(EMPTY)]), program_of("k@1(%x; 1)"))
    with pytest.raises(errors.InvalidArtifact, match="reaches outside"):
        run(np.ones(4, "float32"))


PARTLY = COPY.replace("[i: 4]", "[i: 2]")
TWICE = """\
kernel k(in x: float32, inout t: float32, out y: float32) over [i: 64, j: s0] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    store t[0 | i * (1)] = a
  }
  loop [] {
    b: float32 = load t[0 | i * (1)]
    store y[0 | i * (1)] = b
  }
}
"""
TWO = """\
program @p
input %x: float32[64]
output %t: float32[64]
output %y: float32[64]
kernel %t, %y = k@1(%x; 1)
return %t, %y
"""


def test_code_shows_nothing_of_what_lay_in_its_memory():
    run = opened(encode_kernels([parse_kernel(PARTLY)]), program_of(y="64"))
    assert run.code() == 1
    for _ in range(20):
        rubbish = [np.full(64, 7, "float32") for _ in range(8)]
        del rubbish  # so that new memory is not zero
        np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], [1, 1] + 62 * [0])


def test_what_is_written_then_read_is_read_after_it_is_written():
    """Also where it does not differ along the vectors: such loads come before the others."""
    run = opened(encode_kernels([parse_kernel(TWICE)]), TWO)
    assert run.code() == 1
    x = np.arange(64, dtype="float32")
    for _ in range(20):
        rubbish = [np.full(64, 7, "float32") for _ in range(8)]
        del rubbish
        for result in run(x):
            np.testing.assert_array_equal(result, x)


ACROSS = """\
kernel k(in x: float32, inout t: float32, out y: float32, out z: float32) over [i: 64, j: 64] {
  loop [] {
    a: float32 = load x[0 | i * (64) | j * (1)]
    store t[0 | i * (1) | j * (64)] = a
    store z[0 | i * (64) | j * (1)] = a
  }
  loop [] {
    b: float32 = load t[0 | i * (1) | j * (64)]
    store y[0 | i * (64) | j * (1)] = b
  }
}
"""


def test_a_tile_reads_nothing_that_the_kernel_writes():
    """Loads that lie across the vectors are brought first, but not of what is yet to be written."""
    text = """\
program @p
input %x: float32[4096]
output %t: float32[4096]
output %y: float32[4096]
output %z: float32[4096]
kernel %t, %y, %z = k@1(%x)
return %t, %y, %z
"""
    run = opened(encode_kernels([parse_kernel(ACROSS)]), text)
    assert run.code() == 1
    x = np.arange(4096, dtype="float32")
    _, y, z = run(x)
    np.testing.assert_array_equal(z, x)
    np.testing.assert_array_equal(y, x)


ONE_PLACE = COPY.replace("[i: 4]", "[i: 1000]").replace("y[0 | i * (1)]", "y[5]")


def test_points_that_write_one_place_write_no_other():
    """A value that differs along a vector, stored where the place does not."""
    run = opened(encode_kernels([parse_kernel(ONE_PLACE)]), program_of(x="1000", y="64"))
    assert run.code() == 1
    (y,) = run(np.ones(1000, "float32"))
    np.testing.assert_array_equal(y, [0] * 5 + [1] + [0] * 58)


SAME_STORES = """\
kernel k(in x: float32, out y: float32) over [i: 1] {
  loop [] {
    a: float32 = load x[0]
    b: float32 = load x[1]
  }
  loop [j: 64] {
    store y[0 | j * (2)] = a
    store y[1 | j * (2)] = b
  }
  loop [j: 64, q: 64] {
    store y[0 | j * (2)] = a
    store y[1 | j * (2)] = b
  }
}
"""


def test_stores_that_are_dense_in_one_loop_are_not_in_another():
    """The same two stores in a loop whose vectors do not run along their axis."""
    run = opened(encode_kernels([parse_kernel(SAME_STORES)]), program_of(y="300"))
    assert run.code() == 1
    (y,) = run(np.arange(1, 5, dtype="float32"))
    np.testing.assert_array_equal(y, [1, 2] * 64 + [0] * 172)


# ---- what is checked while it runs -------------------------------------------------------------

GATHER = """\
kernel k(in x: float32, in p: int64, out y: float32) over [i: 50] {
  loop [] {
    q: int64 = load p[0 | i * (1)]
    a: float32 = load x[INDEX]MASK
    store y[0 | i * (1)] = a
  }
}
"""
SCATTER = """\
kernel k(in x: float32, in p: int64, out y: float32) over [i: 50] {
  loop [] {
    q: int64 = load p[0 | i * (1)]
    a: float32 = load x[0 | i * (1)]
    store y[INDEX] = a
  }
}
"""
MASKED = GATHER.replace("    a:", "    z: int64 = const 50\n    m: bool = lt(q, z)\n    a:")
FIRST = ("p[0 | i * (1)]", "p[0]")  # one place for all points


def filled(text, index, mask="", *changes):
    for old, new in (("INDEX", index), ("MASK", mask), *changes):
        text = text.replace(old, new)
    return text


KERNELS = {
    "gather": filled(GATHER, "0 | %q * (1)"),
    "dense": filled(GATHER, "0 | i * (1) | %q * (1)", "", FIRST),
    "backwards": filled(GATHER, "49 | i * (-1) | %q * (1)", "", FIRST),
    "strided": filled(GATHER, "0 | i * (3) | %q * (-2)"),
    "one": filled(GATHER, "3 | %q * (1)", "", FIRST),
    "masked": filled(MASKED, "0 | %q * (1)", " if m"),
    "masked_dense": filled(MASKED, "-3 | i * (1)", " if m"),
    "masked_one": filled(MASKED, "7", " if m"),
    "scatter": filled(SCATTER, "0 | %q * (1)"),
    "scatter_dense": filled(SCATTER, "0 | i * (1) | %q * (1)", "", FIRST),
    "scatter_one": filled(SCATTER, "0 | %q * (1)", "", FIRST, ("x[0 | i * (1)]", "x[0]")),
}
PLACES = {
    "zeros": [0] * 50,
    "in_range": list(range(50)),
    "last_outside": [*range(49), 50],
    "negative": [*range(49), -1],
    "far": [0] * 25 + [2**62] + [0] * 24,
    "least": [0] * 25 + [-(2**63)] + [0] * 24,
    "first_far": [2**63 - 1] + [0] * 49,
    "first_least": [-(2**63)] + [0] * 49,
    "first_negative": [-3] + [0] * 49,
    "first_one": [1] + [0] * 49,
    "late": [100] * 3 + [0] * 47,
}


def outcome(run, *args):
    """The results, or the class of the error."""
    try:
        return [np.asarray(result).copy() for result in run(*args)]
    except errors.DovetailError as error:
        return type(error)


@pytest.mark.parametrize("length", [50, 0, 1])
@pytest.mark.parametrize("name", KERNELS)
def test_code_reaches_no_further_than_the_interpreter(name, length):
    """And reports what it leaves out as the interpreter does."""
    text = f"""\
program @p
input %x: float32[{length}]
input %p: int64[50]
output %y: float32[50]
kernel %y = k@1(%x, %p)
return %y
"""
    described = encode_kernels([parse_kernel(KERNELS[name])])
    compiled = opened(described, text)
    interpreted = _native.Artifact(file_of(described, text), 0, b"")
    assert (compiled.code(), interpreted.code()) == (1, -2)
    x, kinds = np.arange(1, length + 1, dtype="float32"), set()
    for places in PLACES.values():
        got = outcome(compiled, x, np.array(places))
        wanted = outcome(interpreted, x, np.array(places))
        kinds.add(isinstance(wanted, list))
        if isinstance(wanted, list):
            np.testing.assert_array_equal(got, wanted)
        else:
            assert got is wanted
    assert length != 50 or kinds == {True, False} or name == "masked_one"


DIVIDE = """\
kernel k(in x: {t}, in d: {t}, out y: {t}) over [i: 50] {{
  loop [] {{
    a: {t} = load x[0 | i * (1)]
    b: {t} = load d[0 | i * (1)]
    c: {t} = {op}(a, b)
    store y[0 | i * (1)] = c
  }}
}}
"""


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
@pytest.mark.parametrize("op", ["div_int", "floordiv", "floormod"])
def test_code_divides_as_the_interpreter(op, dtype):
    described = encode_kernels([parse_kernel(DIVIDE.format(op=op, t=dtype))])
    text = f"program @p\ninput %x: {dtype}[50]\ninput %d: {dtype}[50]\noutput %y: {dtype}[50]\n"
    text += "kernel %y = k@1(%x, %d)\nreturn %y\n"
    compiled = opened(described, text)
    interpreted = _native.Artifact(file_of(described, text), 0, b"")
    assert compiled.code() == 1
    least, most = np.iinfo(dtype).min, np.iinfo(dtype).max
    x = np.array(5 * [least, most, 0, 1, 7, 100, most - 1, least + 1, 3, 5]).astype(dtype)
    for odd in (1, most, least or 2, (-1 if least else 3)):
        d = np.array([*([odd, 3] * 25)]).astype(dtype)
        np.testing.assert_array_equal(compiled(x, d), interpreted(x, d))
    for place in (0, 17, 49):
        d = np.ones(50, dtype)
        d[place] = 0
        assert outcome(compiled, x, d) is outcome(interpreted, x, d)
        assert not isinstance(outcome(compiled, x, d), list)


PAST_THE_END = """\
kernel k(in x: float32, out y: float32) over [i: 17] {
  loop [] {
    p: int64 = position [0 | i * (1)]
    c: int64 = const 20
    d: int64 = sub(c, p)
    q: int64 = OP(c, d)
    f: float32 = cast(q)
    store y[0 | i * (1)] = f
  }
}
"""


@pytest.mark.parametrize("op", ["div_int", "floordiv", "floormod"])
def test_a_divisor_may_be_zero_past_the_end_of_an_axis(op):
    """In lanes of the last vector that are not in use."""
    described = encode_kernels([parse_kernel(PAST_THE_END.replace("OP", op))])
    run = opened(described, program_of(y="17"))
    assert run.code() == 1
    divisors = 20 - np.arange(17)
    wanted = 20 % divisors if op == "floormod" else 20 // divisors
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], wanted)


ONE_MASKED = """\
kernel k(in x: DTYPE, out y: DTYPE) over [i: 40] {
  loop [] {
    p: int64 = position [0 | i * (1)]
    n: int64 = const 25
    m: bool = lt(p, n)
    a: COMPUTED = load x[1] if m
    store y[0 | i * (1)] = a
  }
}
"""


@pytest.mark.parametrize("dtype", ["float32", "float16", "int16", "uint8", "bool", "float64"])
def test_one_element_for_some_lanes(dtype):
    text = ONE_MASKED.replace("DTYPE", dtype).replace("COMPUTED", COMPUTE[dtype])
    program = program_of(y="40").replace("float32", dtype)
    run = opened(encode_kernels([parse_kernel(text)]), program)
    assert run.code() == 1
    (found,) = run(np.arange(4).astype(dtype))
    np.testing.assert_array_equal(found, (np.arange(40) < 25).astype(dtype))


# ---- what the user is told ---------------------------------------------------------------------


def reasons(described):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        open_native(file_of(described, program_of()), regenerate=_regenerate)
    return [str(w.message) for w in caught]


def test_the_warning_says_what_would_help(monkeypatch):
    kernel = parse_kernel(COPY)
    assert reasons(encode_kernels([kernel])) == []
    (told,) = reasons(encode_named([kernel]))
    assert "holds no native code" in told
    assert "format 1.2" in told
    assert "export the model again" in told
    monkeypatch.setattr(
        "dovetail.backends.cpu.regenerate.missing",
        lambda: "it needs llvmlite: pip install 'dovetail[cpu]'",
    )
    (told,) = reasons(encode_kernels([kernel]))
    assert "pip install 'dovetail[cpu]'" in told


def test_a_kernel_of_nothing_takes_no_time():
    """Its points are not walked, however many there are."""
    text = "kernel k(in x: float32, out y: float32) over [i: 4611686018427387903, j: 2] {\n}\n"
    run = opened(encode_kernels([parse_kernel(text)]), program_of())
    assert run.code() == 1
    np.testing.assert_array_equal(run(np.ones(4, "float32"))[0], np.zeros(4))


def test_immense_kernels_are_not_compiled():
    """LLVM's time is not a stranger's to spend."""
    steps = "".join(f"    v{n}: float32 = neg({f'v{n - 1}' if n else 'a'})\n" for n in range(3000))
    kernel = parse_kernel(COPY.replace("    store", steps + "    store").replace("= a", "= v2999"))
    (told,) = reasons(encode_kernels([kernel]))
    assert "1 of 1 are too large" in told
    code, problem = _regenerate(encode_kernels([kernel]), True)
    assert code
    assert not problem


@pytest.mark.parametrize(
    ("op", "dtype", "length"), [("pow", "float64", 1), ("floordiv", "int32", 1000)]
)
def test_few_instructions_that_become_many_are_not_compiled(op, dtype, length):
    """Functions of numbers that do not vary are written out; no vectors of integers are divided."""
    steps = "".join(f"    v{n + 1}: {dtype} = {op}(v{n}, v0)\n" for n in range(200))
    text = f"""\
kernel k(in x: {dtype}, out y: {dtype}) over [i: {length}] {{
  loop [j: 5] {{
    v0: {dtype} = load x[0 | i * (1)]
{steps}    s: {dtype} = reduce max(v200)
  }}
  loop [] {{
    store y[0 | i * (1)] = s
  }}
}}
"""
    (told,) = reasons(encode_kernels([parse_kernel(text)]))
    assert "1 of 1 are too large" in told


def test_what_the_compiler_cannot_do_is_interpreted(monkeypatch):
    def fail(*_args, **_kwargs):
        raise RuntimeError("no such thing")

    monkeypatch.setattr("dovetail.backends.cpu.regenerate.assemble", fail)
    (told,) = reasons(encode_kernels([parse_kernel(COPY)]))
    assert "no such thing" in told


def test_a_file_is_opened_once(tmp_path, monkeypatch):
    """What is compiled is what was verified: the file is not read a second time for it."""
    path = tmp_path / "m.dvt"
    path.write_bytes(file_of(encode_kernels([parse_kernel(COPY)]), program_of()))

    def once(described, trusted):
        path.unlink()
        return _regenerate(described, trusted)

    monkeypatch.setattr("dovetail.artifact.load._regenerate", once)
    run = dovetail.load(path, trusted_keys=[])
    assert run.native.code() == 1
    np.testing.assert_array_equal(run(np.ones(4, "float32")), np.ones(4))
