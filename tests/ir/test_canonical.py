"""Segments without their names: the same for twins, different for everything else."""

import dataclasses
import itertools
import json
import re

from dovetail.ir.canonical import canonical_bytes
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.size import UNKNOWN, Size
from tests.ir.test_encode import example


def renamed(segment, names):
    """Another segment: each name replaced wherever it stands."""
    text = json.dumps(json.loads(segment_to_bytes(segment)))
    for old, new in names.items():
        text = re.sub(rf'(?<=")({old})(?="(?!:))|\b{old}\b(?= [-+*/])', new, text)
    return segment_from_bytes(text.encode())


def test_names_do_not_matter():
    twin = renamed(example(), {"x": "primals_7", "s0": "s31", "y": "add", "u0": "u4", "n": "k"})
    twin = dataclasses.replace(twin, name="segment_12")
    assert twin != example()
    assert canonical_bytes(twin) == canonical_bytes(example())


def test_which_value_is_meant_matters():
    segment = example()
    swapped = dataclasses.replace(segment, inputs=segment.inputs[::-1])
    other = dataclasses.replace(segment, outputs=(*segment.outputs[:-1], 4))
    constant = dataclasses.replace(segment.inputs[0], kind="constant")
    kept = dataclasses.replace(segment, inputs=(constant, *segment.inputs[1:]))
    fewer = dataclasses.replace(segment, calls=segment.calls[:-1])
    forms = [canonical_bytes(s) for s in (segment, swapped, other, kept, fewer)]
    assert all(a != b for a, b in itertools.combinations(forms, 2))


def test_two_symbols_are_not_one():
    def squared(a, b):
        product = Size.binary("mul", Size.symbol(a), Size.symbol(b))
        return dataclasses.replace(example(), outputs=(product,))

    assert canonical_bytes(squared("s0", "s1")) == canonical_bytes(squared("s0", "s9"))
    assert canonical_bytes(squared("s0", "s0")) != canonical_bytes(squared("s0", "s1"))


def test_an_unknown_size_is_no_symbol():
    def sized(size):
        return dataclasses.replace(example(), outputs=(size,))

    assert canonical_bytes(sized(UNKNOWN)) != canonical_bytes(sized(Size.symbol("u9")))
    largest = Size.binary("max", Size.symbol("s0"), 2)
    assert canonical_bytes(sized(largest)) != canonical_bytes(
        sized(Size.binary("min", Size.symbol("s0"), 2))
    )
