"""Segments as bytes."""

import contextlib
import json
import random

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from dovetail.capture.from_fx import segment_of
from dovetail.capture.to_fx import graph_module
from dovetail.errors import UnsupportedGraph
from dovetail.ir import Attr, Input, OpCall, Ref, ScalarDesc, Segment, Size, TensorDesc
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes


def example():
    desc = TensorDesc("float32", (Size.symbol("s0"), 4), (4, 1))
    x = Input("x", desc)
    size = Input("s0", ScalarDesc("int", Size.symbol("s0")), "size")
    inner = Segment("branch", (Input("a", desc),), (), (Ref("a", desc),))
    calls = (
        OpCall("y", "aten.add.Tensor", (x.ref, float("inf")), {"alpha": -0.0}, desc),
        OpCall(
            "z",
            "aten.full.default",
            ((Size.symbol("s0"), 2), 1 + 2j),
            {"dtype": Attr("dtype", "complex64")},
            None,
        ),
        OpCall("c", "higher_order.cond", (True, inner, inner, (Ref("y", desc),)), {}, (desc,)),
        OpCall(
            "n",
            "aten.nonzero.default",
            (Ref("c", desc, (0,)),),
            {},
            desc,
            (("u0", (("size", 0),)),),
        ),
    )
    return Segment("main", (x, size), calls, (Ref("c", desc, (0,)), None, Size.symbol("s0"), 3))


def test_round_trip():
    segment = example()
    again = segment_from_bytes(segment_to_bytes(segment))
    assert again == segment
    assert str(again) == str(segment)
    assert segment_to_bytes(again) == segment_to_bytes(segment)


def test_references_get_their_descriptors_back():
    again = segment_from_bytes(segment_to_bytes(example()))
    assert again.calls[0].inputs == (example().inputs[0].desc,)
    assert again.calls[3].args[0].desc == example().inputs[0].desc


def test_any_damage_is_a_typed_error():
    good = segment_to_bytes(example())
    rng = random.Random(0)
    for _ in range(2000):
        data = bytearray(good)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        cut = rng.randint(0, len(data)) if rng.random() < 0.3 else len(data)
        with contextlib.suppress(UnsupportedGraph):  # anything else would fail the test
            segment_from_bytes(bytes(data[:cut]))


def test_other_formats_are_refused():
    with pytest.raises(UnsupportedGraph, match="dovetail-segment-1"):
        segment_from_bytes(json.dumps({"format": "other", "segment": {}}).encode())


def test_fx_and_back():
    def fn(x, w):
        a, b = (x @ w).split(2, 1)
        return a.relu(), b.sum(0)

    args = torch.randn(3, 4), torch.randn(4, 4)
    gm = make_fx(fn, tracing_mode="fake")(*args)
    again = graph_module(segment_of(gm, "g"))
    torch.testing.assert_close(again(*args), fn(*args))
