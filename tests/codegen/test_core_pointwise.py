"""Every pointwise operator of core ATen runs in generated code, whatever it is given."""

import pytest
import torch

from tests.codegen.kernels import assert_generated
from tests.differential import compare_values

DTYPES = ("float32", "float64", "bfloat16", "float16")
DTYPES += ("int64", "int32", "int16", "int8", "uint8", "bool")
# Arguments that are neither tensors nor numbers, and numbers that must be something special.
GIVEN = {"rounding_mode": ("floor", "trunc", None), "approximate": ("none", "tanh")}


def core_pointwise():
    """The operators that PyTorch tags so, by name."""
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in getattr(packet, "overloads", list)():
            op = getattr(packet, overload)
            if {torch.Tag.core, torch.Tag.pointwise} <= set(op.tags) and overload != "out":
                yield f"{name}.{overload}"


def tensor(dtype, seed):
    g = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return (torch.rand(3, 37, generator=g) * 1.5 + 0.1).to(dtype)
    return torch.randint(0 if dtype == torch.bool else 1, 5, (3, 37), generator=g).to(dtype)


def calls(op, dtype):
    """Arguments, one set for each value of those that are words."""
    given, words = [], [{}]
    for n, argument in enumerate(op._schema.arguments):
        kind = str(argument.type)
        if argument.name in GIVEN:
            words = [{argument.name: value} for value in GIVEN[argument.name]]
        elif argument.name in ("condition", "mask"):
            given.append(tensor(torch.bool, n))
        elif "Tensor" in kind:
            given.append(tensor(dtype, n))
        elif not argument.has_default_value() or argument.name in ("min", "max"):
            given.append(n + 1)
    return [(tuple(given), each) for each in words]


def allowed(op, args, kwargs):
    """Whether eager has the operator for these."""
    try:
        op(*args, **kwargs)
    except (RuntimeError, NotImplementedError):
        return False
    return True


# Others that are generated, whole or taken apart.
MORE = "erfc.default hypot.default logaddexp.default floor_divide.default floor_divide.Scalar "
MORE += "frac.default exp2.default silu.default mish.default softplus.default hardswish.default "
MORE += "xlogy.Tensor lerp.Scalar addcmul.default addcdiv.default rsub.Scalar "
MORE += "isfinite.default masked_fill.Scalar square.default sinc.default deg2rad.default"


@pytest.mark.parametrize("name", [*core_pointwise(), *MORE.split()])
def test_generated(name):
    packet, overload = name.split(".")
    op = getattr(getattr(torch.ops.aten, packet), overload)
    found = [c for d in DTYPES for c in calls(op, getattr(torch, d)) if allowed(op, *c)]
    assert found

    def fn(tensors):
        return [op(*args, **kwargs) for args, (_, kwargs) in zip(tensors, found, strict=True)]

    assert_generated(fn, [args for args, _ in found], backend="dovetail", dynamic=False)


DIVISIONS = {
    "floor": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "trunc": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "fmod": torch.fmod,
    "remainder": torch.remainder,
}


@pytest.mark.parametrize("name", DIVISIONS)
@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_integers_are_divided_as_in_eager(name, dtype):
    kind = getattr(torch, dtype)
    low = torch.iinfo(kind).min + 1  # eager crashes where the least is divided by -1
    values = torch.tensor([low, -7, -3, -1, 1, 2, 3, 5, 100, 127], dtype=torch.int64).to(kind)
    x, y = torch.meshgrid(values, values[values != 0], indexing="ij")
    fn = DIVISIONS[name]
    compiled = torch.compile(fn, backend="dovetail", dynamic=False)
    assert torch.equal(compiled(x, y), fn(x, y))
    y = y.clone()
    y[2, 3] = 0
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        fn(x, y)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        compiled(x, y)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int16", "int8", "uint8"])
def test_powers_of_integers(dtype):
    kind = getattr(torch, dtype)
    values = torch.tensor([-128, -7, -3, -2, -1, 0, 1, 2, 3, 5, 63, 100, 127]).to(kind)
    x, y = torch.meshgrid(values, values, indexing="ij")
    assert torch.equal(torch.compile(torch.pow, backend="dovetail")(x, y), x**y)


@pytest.mark.parametrize("number", [1.1, 1.1015625, -3, 65519, 1e5, 2**-25, float("nan")])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_beside_half_precision(number, dtype):
    x = torch.tensor([1.1, 1.1016, -3, 65504, float("inf"), 0.0], dtype=getattr(torch, dtype))

    def fn(x):
        return x == number, x < number, x >= number

    compare_values(fn(x), torch.compile(fn, backend="dovetail")(x))
