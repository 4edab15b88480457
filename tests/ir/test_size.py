"""Size expressions: printing, parsing, evaluation in Python and in C."""

import random

import pytest

from dovetail.errors import SizeError
from dovetail.ir import Size, SizeProgram, parse_size
from dovetail.ir.real import Real, real, whole
from dovetail.ir.size import INT64_MAX, INT64_MIN, bits_of, evaluate, real_of

OPS = ("add", "sub", "mul", "floordiv", "mod", "max", "min")
REALS = tuple(f"real_{op}" for op in ("add", "sub", "mul", "div", "pow", "max", "min"))
ROUNDINGS = ("floor", "ceil", "trunc", "round")


def random_size(rng, depth=4):
    if depth <= 0 or rng.random() < 0.2:
        if rng.random() < 0.5:
            return rng.choice([0, 1, 2, 7, -3, 1 << 40])
        return Size.symbol(rng.choice(["s0", "s1", "u0"]))
    if rng.random() < 0.2:
        return Size(rng.choice(ROUNDINGS), (random_real(rng, depth - 1),))
    return Size(rng.choice(OPS), (random_size(rng, depth - 1), random_size(rng, depth - 1)))


def random_real(rng, depth):
    if depth <= 0 or rng.random() < 0.3:
        if rng.random() < 0.5:
            return bits_of(rng.choice([0.0, -0.0, 1.0, 2.5, -0.75, 1e300, 1e-5]))
        return Size("real", (random_size(rng, depth - 1) if depth > 0 else Size.symbol("s0"),))
    if rng.random() < 0.2:
        return Size("real_sqrt", (random_real(rng, depth - 1),))
    return Size(rng.choice(REALS), (random_real(rng, depth - 1), random_real(rng, depth - 1)))


@pytest.mark.parametrize("seed", range(20))
def test_text_parses_back_to_the_same_expression(seed):
    rng = random.Random(seed)
    for _ in range(50):
        size = random_size(rng)
        assert parse_size(str(size)) == size


@pytest.mark.parametrize("seed", range(20))
def test_c_and_python_agree(seed):
    rng = random.Random(seed)
    names = ("s0", "s1", "u0")
    for _ in range(50):
        sizes = [random_size(rng) for _ in range(3)]
        values = [rng.choice([0, 1, 2, 5, -4, 1 << 33, INT64_MAX, INT64_MIN]) for _ in names]
        program = SizeProgram(names, sizes)
        assert program._native is not None, "the extension is not built"
        try:
            expected = program.evaluate_python(values)
        except SizeError:
            with pytest.raises(SizeError):
                program.evaluate(values)
        else:
            assert program.evaluate(values) == expected


@pytest.mark.parametrize(
    ("text", "values", "expected"),
    [
        ("s0 * 2 + 1", {"s0": 3}, 7),
        ("(s0 + 1) // 2", {"s0": -4}, -2),
        ("-7 % 3", {}, 2),
        ("max(s0, 4) - min(s0, 4)", {"s0": 9}, 5),
        ("s0 - (s1 - 2)", {"s0": 9, "s1": 4}, 7),
        ("floor(real_mul(real(s0), 1.5))", {"s0": 3}, 4),
        ("round(real_div(real(s0), 2.0))", {"s0": 5}, 2),
        ("trunc(real_mul(real(s0), -1e-05)) + ceil(real_sqrt(real(s0)))", {"s0": 5}, 3),
    ],
)
def test_evaluate(text, values, expected):
    assert evaluate(parse_size(text), values) == expected


@pytest.mark.parametrize(
    "text",
    ["", "s0 +", "__import__('os')", "s0 ** 2", "s0.real", "1.5", "True", "f(s0)", "max(s0)",
     "[s0]", "s0 if s1 else 2", "max(s0, key=1)", "(" * 500 + "s0" + ")" * 500],
)  # fmt: skip
def test_anything_else_is_refused(text):
    with pytest.raises(SizeError):
        parse_size(text)


def test_errors_say_what_was_computed():
    program = SizeProgram(["s0"], [Size("floordiv", (10, Size.symbol("s0")))])
    with pytest.raises(SizeError, match=r"divided by zero \(10 // s0 with s0=0\)"):
        program.evaluate([0])
    with pytest.raises(SizeError, match="no value for the symbol 's1'"):
        SizeProgram(["s0"], [Size.symbol("s1")])
    with pytest.raises(SizeError, match="no value for the symbol 's0'"):
        Size.symbol("s0").evaluate({})


def test_native_programs_are_verified():
    from dovetail import _native

    good = SizeProgram(["s0"], [Size.symbol("s0")]).code()
    assert _native.SizeProgram(good, 1, 1).run([5]) == (5,)
    for code, symbols, outputs in [(good[:-1], 1, 1), (good, 0, 1), (good, 1, 2), (good, 1, -1)]:
        with pytest.raises(ValueError, match="malformed"):
            _native.SizeProgram(code, symbols, outputs)
    with pytest.raises(ValueError, match="takes 1 symbols, not 2"):
        _native.SizeProgram(good, 1, 1).run([1, 2])
    with pytest.raises(TypeError):
        _native.SizeProgram(good, 1, 1).run(["x"])
    with pytest.raises(OverflowError):
        _native.SizeProgram(good, 1, 1).run([1 << 70])


def test_a_value_whose_index_runs_the_program():
    from dovetail import _native

    code = SizeProgram(["a", "b"], [Size.binary("add", Size.symbol("a"), Size.symbol("b"))]).code()
    program = _native.SizeProgram(code, 2, 1)

    class Meddler:
        def __index__(self):
            assert program.run([100, 200]) == (300,)
            return 7

    assert program.run([1, Meddler()]) == (8,)
    assert program.run([Meddler(), 2]) == (9,)


def test_numbers_of_floating_point_are_rounded_as_pythons():
    size = Size.symbol("s0")
    momentum = real("div", size, Size.binary("sub", size, 1))
    scale = real("mul", real("pow", size, -0.5), 0.1)
    assert isinstance(momentum, Real)
    assert isinstance(scale, Real)
    program = SizeProgram(("s0",), [momentum.bits, scale.bits])
    for n in (2, 3, 7, 49, 1000, 12345):
        found = tuple(map(real_of, program.evaluate([n])))
        assert found == (n / (n - 1), n**-0.5 * 0.1)
        assert momentum.evaluate({"s0": n}) == n / (n - 1)


def test_known_numbers_of_floating_point_are_folded():
    assert real("div", 1, 3) == 1 / 3
    assert whole("floor", real("mul", 3, 1.5)) == 4


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("real_div(1.0, real(s0))", 0),
        ("real_sqrt(real(s0))", -1),
        ("real_pow(real(s0), -1.0)", 0),
        ("floor(real_mul(real(s0), 1e+300))", 5),
    ],
)
def test_what_has_no_number_is_an_error_of_the_call(text, value):
    program = SizeProgram(("s0",), [parse_size(text)])
    for evaluate_it in (program.evaluate, program.evaluate_python):
        with pytest.raises(SizeError):
            evaluate_it([value])
