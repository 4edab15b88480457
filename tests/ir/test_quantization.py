"""Parameters of quantised tensors: in text, in bytes, and refused where they cannot be."""

from dataclasses import replace

import pytest

from dovetail.errors import UnsupportedGraph
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.dtypes import bytes_of
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.quantization import InvalidQuantization, Quantization, verify_quantization
from dovetail.ir.segment_verify import InvalidSegment, verify_segment
from dovetail.ir.size import Size

SCALE, ZERO = Ref("s", None), Ref("z", None)
GROUPS = Quantization((1, 32), SCALE, ZERO, -8, 7, "float32", (0, 1))
ONE = Quantization((0, 0), 0.5, -3, -128, 127)
WEIGHT = TensorDesc("int4", (48, 64), (64, 1), quantization=GROUPS)


def segment(desc=WEIGHT):
    scales = TensorDesc("float32", (48, 2), (2, 1))
    zeros = TensorDesc("int32", (48, 2), (2, 1))
    x = TensorDesc("int8", (5, 48), (48, 1), quantization=ONE)
    inputs = (Input("x", x), Input("w", desc), Input("s", scales), Input("z", zeros))
    made = TensorDesc("float32", (5, 64), (64, 1))
    call = OpCall("y", "aten.mm.default", (Ref("x", x), Ref("w", desc)), {}, made)
    return Segment("quantised", inputs, (call,), (Ref("y", made),))


def test_a_segment_says_what_its_tensors_stand_for():
    text = str(verify_segment(segment()))
    assert "%x: i8[5, 48]{0.5 -3 in -128..127}" in text
    assert "%w: i4[48, 64]{%s %z of 1x32 in -8..7}" in text
    assert list(segment().calls[0].refs())[2:] == [SCALE, ZERO]  # they are used too


def test_bytes_of_a_segment_hold_the_parameters():
    made = segment()
    assert segment_from_bytes(segment_to_bytes(made)) == made


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-1.0", "0.0"])
def test_bytes_with_scales_that_are_none(text):
    data = segment_to_bytes(segment()).replace(b'"scale":0.5', f'"scale":{text}'.encode())
    with pytest.raises(UnsupportedGraph):
        verify_segment(segment_from_bytes(data))


def test_a_permuted_tensor_keeps_each_scale_at_its_block():
    turned = GROUPS.permuted((1, 0))
    assert (turned.block, turned.axes) == ((32, 1), (1, 0))
    assert turned.spread((64, 48), (2, 1)) == ((2, 48), (1, 2))
    assert GROUPS.spread((48, 64), (2, 1)) == ((48, 2), (2, 1))
    assert replace(GROUPS, block=(0, 1), axes=(1,)).axis == 1


@pytest.mark.parametrize(
    ("change", "desc", "said"),
    [
        ({"block": (0,)}, WEIGHT, "blocks of 1 dimensions in a tensor of 2"),
        ({"block": (1, 0)}, WEIGHT, r"scales along \(0, 1\), and blocks along \[0\]"),
        ({"block": (1, -1)}, WEIGHT, "a block of -1 elements"),
        ({"block": (1, 48)}, WEIGHT, "blocks of 48 elements in 64"),
        ({"block": (1, 2**31)}, WEIGHT, "a block of 2147483648 elements"),
        ({"axes": (0, 0)}, WEIGHT, "scales along"),
        ({"scale": 0.5}, WEIGHT, "one scale for several blocks"),
        ({"least": 8}, WEIGHT, "numbers in 8..7"),
        ({"greatest": 8}, WEIGHT, "numbers in -8..8, which int4 does not hold"),
        ({"real": "int32"}, WEIGHT, "stands for int32"),
        ({"zero_point": 2**31}, WEIGHT, "a zero point of 2147483648"),
        ({"zero_point": 9}, WEIGHT, "a zero point of 9, which is not in -8..7"),
        ({}, replace(WEIGHT, dtype="float32"), "float32 is no integer type"),
        ({}, replace(WEIGHT, dtype="int64"), "int64 is no integer type of at most 32 bits"),
        ({}, replace(WEIGHT, shape=(48, Size.symbol("n"))), "along a dynamic size"),
        ({"block": (0, 0), "axes": (), "scale": float("nan")}, WEIGHT, "a scale of nan"),
        ({"block": (0, 0), "axes": (), "scale": float("inf")}, WEIGHT, "a scale of inf"),
        ({"block": (0, 0), "axes": (), "scale": 0.0}, WEIGHT, "a scale of 0.0"),
    ],
)
def test_parameters_that_no_tensor_has(change, desc, said):
    with pytest.raises(InvalidQuantization, match=said):
        verify_quantization(replace(GROUPS, **change), desc)


def test_a_scale_that_nothing_defines():
    made = segment()
    without = replace(made, inputs=made.inputs[:2])
    with pytest.raises(InvalidSegment, match="uses %s before it is defined"):
        verify_segment(without)


@pytest.mark.parametrize("ends", [(5, 2), (-(2**63) - 1, 2), (0, 2**63)])
def test_a_range_that_no_size_has(ends):
    made = replace(segment(), ranges=(("s0", *ends),))
    with pytest.raises(InvalidSegment, match="the symbol s0 is in"):
        verify_segment(segment_from_bytes(segment_to_bytes(made)))


def test_what_is_known_of_symbols_is_kept():
    made = replace(segment(), ranges=(("s0", 2, 64),))
    assert "where s0 in 2..64 {" in str(made)
    assert segment_from_bytes(segment_to_bytes(made)) == made


def test_elements_of_four_bits_lie_two_in_a_byte():
    assert [bytes_of("int4", n) for n in range(4)] == [0, 1, 1, 2]
    assert bytes_of("float32", 3) == 12
