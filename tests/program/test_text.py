"""A Program prints and parses back to an equal one; what is wrong is named."""

import pytest

from dovetail import errors
from dovetail.ir.program import VALUE, Program
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program

TEXT = """\
program @mlp
symbol s0 = %x[0] in 1..64
symbol s1 = %n in -3..9
input %x: float32[s0, 8]
input %n: int64[]
constant %w: float32[8, 4] strides [1, 8]
state %total: float32[s0 * 2 + 1, 4] strides [4, 1]
temporary %h: float32[s0, 4]
temporary %g: float32[s0, 4] of %h
view %v: float32[s0 - 1, 4] of %h at 4
host %k: float32[2]
host %i: int64[2]
output %y: float32[s0, 4]
guard s0 % 2 == 0
kernel %h = matmul@1(%x, %w)
kernel %g = clamp@1(%h; -0x1.0000000000000p+0, inf, 3, s0 * 4)
call %k, %i, _ = aten.topk.default [{"buffer": "x"}, {"size": "s0"}, -1, null, ["a"]] {"o": true}
copy %y = %g
return %y, {"size": "s0 * 2"}, 3, null, {"float": "0x1.0000000000000p-1"}
"""


def test_prints_and_parses_back():
    program = parse_program(TEXT)
    assert isinstance(program, Program)
    assert parse_program(str(program)) == program
    again = str(parse_program(str(program)))
    assert again == str(program)
    assert [b.kind for b in program.buffers].count("input") == 2
    assert program.symbols[1].axis == VALUE
    assert program.by_name["v"].offset == 4
    assert program.instructions[1].attributes[2] == 3
    assert program.outputs[2:] == (3, None, 0.5)
    assert program.host_ops() == ("aten.topk.default",)


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("input x: float32[2]", "not understood"),
        ("frobnicate %x", "frobnicate"),
        ("kernel %y = matmul(%x)", "not understood"),
        ("kernel y = matmul@1(%x)", "starts with %"),
        ("input %x: float32[2 +]", "size expression"),
        ("call %y = aten.add {oops} {}", "not understood"),
        ('call %y = aten.add [{"strange": 1}] {}', "strange"),
        ("copy %a = ", "not understood"),
        ("guard 1", "unpack"),
        ("symbol s0 = 4", "not understood"),
    ],
)
def test_a_bad_line_is_named(line, problem):
    with pytest.raises(errors.InvalidProgram, match=problem) as error:
        parse_program(f"program @p\n{line}\nreturn\n")
    assert "line 2" in str(error.value)


def test_needs_a_head_and_an_end():
    with pytest.raises(errors.InvalidProgram, match="starts with"):
        parse_program("input %x: float32[1]\n")
    with pytest.raises(errors.InvalidProgram, match="starts with"):
        parse_program("program @p\n")


GOOD = """\
program @p
symbol s0 = %x[0] in 0..9
input %x: float32[s0, 4]
constant %c: float32[4]
temporary %a: float32[s0, 4]
temporary %b: float32[s0, 4] of %a
view %v: float32[4] of %c
output %y: float32[s0, 4]
kernel %a = relu@1(%x)
kernel %b = add@1(%a, %v)
kernel %y = neg@1(%b)
return %y
"""


def test_a_good_program_is_accepted():
    verify_program(parse_program(GOOD))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("kernel %a = relu@1(%x)\n", "", "used before it is written"),
        ("relu@1(%x)", "relu@1(%b)", "used before it is written"),
        ("relu@1(%x)", "relu@1(%zzz)", "names no buffer: %zzz"),
        ("return %y", "return %zzz", "no buffer"),
        ("return %y", "return %a", "temporary buffer"),
        ("return %y", "return %y, %y", "handed out twice"),
        ("kernel %y = neg@1(%b)\n", "", "never written"),
        ("kernel %y = neg@1(%b)", "kernel %y = neg@1(%a)", "needed later"),
        ("kernel %a = relu@1(%x)", "kernel %c = relu@1(%x)", "writes to %c"),
        ("kernel %a = relu@1(%x)", "copy %c = %x", "different shape"),
        ("constant %c: float32[4]", "constant %x: float32[4]", "one name"),
        ("constant %c: float32[4]", "constant %c: float32[s7]", "unknown symbol s7"),
        ("constant %c: float32[4]", "constant %c: float32[(-4)]", "negative size"),
        ("view %v: float32[4] of %c", "view %v: float32[5] of %c", "reaches beyond"),
        ("view %v: float32[4] of %c", "view %v: float32[4] of %c at 1", "reaches beyond"),
        ("view %v: float32[4] of %c", "view %v: int32[4] of %c", "dtype"),
        ("view %v: float32[4] of %c", "view %v: float32[4]", "view of nothing"),
        ("view %v: float32[4] of %c", "view %v: float32[4] of %y", "not declared before"),
        ("view %v: float32[4] of %c", "view %v: float32[4] strides [1, 1] of %c", "strides"),
        ("symbol s0 = %x[0]", "symbol s0 = %x[1]", "not dimension 1"),
        ("symbol s0 = %x[0]", "symbol s0 = %c[0]", "no input"),
        ("in 0..9", "in 9..0", "empty range"),
        ("temporary %b: float32[s0, 4] of %a", "output %b: float32[s0, 4] of %a", "only a temp"),
    ],
)
def test_a_bad_program_is_refused(old, new, problem):
    assert old in GOOD
    with pytest.raises(errors.InvalidProgram, match=problem):
        verify_program(parse_program(GOOD.replace(old, new)))
