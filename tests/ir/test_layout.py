"""Layouts: every element has a place, everything else is padding, the text parses back."""

import itertools
import math

import pytest

from dovetail.errors import InvalidLayout
from dovetail.ir.layout import Layout, LayoutPart, parse_layout, verified
from dovetail.ir.size import Size

ROW_MAJOR = Layout.strided((4, 6), (6, 1))
CHANNELS_LAST = Layout.strided((2, 3, 4, 5), (60, 1, 15, 3))
GAPS = Layout.strided((4, 6), (8, 1))
HALOED = Layout.of((2, 3, 4, 5), [(0, 1), (2, 1), (3, 1), (1, 1)], {2: (1, 1), 3: (1, 2)})
PACKED = Layout.of((5, 19), [(1, 8), (0, 1), (1, 1)])
WEIGHTS = Layout.of((10, 3, 3, 2), [(0, 4), (2, 1), (3, 1), (1, 1), (0, 1)])
TWICE = Layout.of((30, 7), [(0, 12), (1, 4), (0, 3), (1, 1), (0, 1)])
BOTH = Layout.of((9, 7), [(0, 4), (1, 1), (0, 1)], {0: (2, 1)})
EACH = {
    "[4, 6] as [d0: 4, d1: 6]": ROW_MAJOR,
    "[2, 3, 4, 5] as [d0: 2, d2: 4, d3: 5, d1: 3]": CHANNELS_LAST,
    "[4, 6] as [d0: 4, d1: 6] strides [8, 1]": GAPS,
    "[2, 3, 4, 5] as [d0: 2, d2 + 1: 6, d3 + 1: 8, d1: 3]": HALOED,
    "[5, 19] as [d1 / 8: 3, d0: 5, d1: 8]": PACKED,
    "[10, 3, 3, 2] as [d0 / 4: 3, d2: 3, d3: 2, d1: 3, d0: 4]": WEIGHTS,
    "[30, 7] as [d0 / 12: 3, d1 / 4: 2, d0 / 3: 4, d1: 4, d0: 3]": TWICE,
    "[9, 7] as [(d0 + 2) / 4: 3, d1: 7, d0 + 2: 4]": BOTH,
    "[] as []": Layout.strided((), ()),
}
each = pytest.mark.parametrize("layout", EACH.values(), ids=EACH)


def indices(shape):
    return itertools.product(*map(range, shape))


@pytest.mark.parametrize(("text", "layout"), EACH.items(), ids=EACH)
def test_the_text_parses_back(text, layout):
    assert str(layout) == text
    assert parse_layout(text) == layout
    assert hash(parse_layout(text)) == hash(layout)


@each
def test_every_element_has_a_place_and_the_rest_is_padding(layout):
    def at(position):
        return sum(map(math.prod, zip(position, layout.strides, strict=True)))

    held = {at(p): layout.element(p) for p in indices(layout.extents)}
    found = {layout.offset(index): index for index in indices(layout.shape)}
    assert found == {place: index for place, index in held.items() if index is not None}
    assert len(found) == math.prod(layout.shape)
    assert list(held.values()).count(None) == layout.padding
    assert max(held) + 1 == layout.size


def test_what_is_strided():
    strided = [text for text, layout in EACH.items() if layout.is_strided]
    assert strided == [*[*EACH][:3], "[] as []"]
    assert [part.step for part in TWICE.along(0)] == [12, 3, 1]


def test_expanded_tensors_are_strided():
    assert str(Layout.strided((2, 3), (0, 1))) == "[2, 3] as [d1: 3, d0: 2] strides [1, 0]"


def test_sizes_may_vary():
    s = Size.symbol("s0")
    layout = Layout.of((s, 20), [(0, 8), (1, 1), (0, 1)], {1: (1, 0)})
    assert str(layout) == "[s0, 20] as [d0 / 8: (s0 + 7) // 8, d1 + 1: 21, d0: 8]"
    assert parse_layout(str(layout)) == layout
    assert layout.size.evaluate({"s0": 9}) == 2 * 21 * 8


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[4]",
        "[4] as [4]",
        "[4] as [d1: 4]",
        "[4] as [d0: 3]",
        "[4] as [d0 + 1: 4]",
        "[4] as [(d0: 4]",
        "[4] as [d0: 4, d0: 1]",
        "[4] as [d0 / 2: 2]",
        "[4] as [d0: 2, d0 / 2: 2]",
        "[5] as [d0 / 2: 2, d0: 2]",
        "[4] as [d0 / 2: 2, d0: 1]",
        "[4, 4] as [d0: 4]",
        "[4, 4] as [d0 + 1: 5, d1: 4] strides [3, 1]",
        "[8] as [d0 + 1 / 4: 3, d0 + 1: 4]",
        "[8] as [(d0 + 1) / 4: 3, d0: 4]",
        "[4] as [d0: 4] strides [1]",
        "[4] as [d0: 4] strides [1, 2]",
        "[-4] as [d0: 4]",
        "[x.y] as [d0: 4]",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidLayout):
        parse_layout(text)


@pytest.mark.parametrize("order", [[(0, 1)], [(0, 1), (2, 1)], [(0, 4), (1, 1)], [(0, 0), (1, 1)]])
def test_orders_that_leave_something_out_are_refused(order):
    with pytest.raises(InvalidLayout):
        Layout.of((4, 6), order)


@pytest.mark.parametrize(
    "part", [LayoutPart(0, 4, 1, 0), LayoutPart(1, 4, 1), LayoutPart(-1, 4, 1)]
)
def test_parts_of_no_axis_are_refused(part):
    with pytest.raises(InvalidLayout):
        verified(Layout((4,), (part,), (0,)))


def test_other_ranks_are_refused():
    with pytest.raises(InvalidLayout):
        verified(Layout((4,), (LayoutPart(0, 4, 1),), ()))
