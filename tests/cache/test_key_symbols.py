"""What enters a graph's key of symbolic sizes: ranges, hints, guards."""

import torch

from dovetail.backend import Transfer
from dovetail.backends.aten import AtenBackend
from tests.cache.graphs import capture, dynamo, keys, t


def bounded(low, high):
    x = t(8, 4)
    torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
    return x


def test_ranges_of_symbols():
    one, other = (keys(lambda x: x + 1, bounded(2, high)) for high in (64, 128))
    assert one["dynamo"].differs(other["dynamo"]) == ["symbols"]
    assert one["inference"].differs(other["inference"]) == ["symbols"]
    assert one["dynamo"].text("symbols") == "s0 in [2, 64]"


def test_hints_matter_where_they_decide():
    one, other = (keys(lambda x: x * 2, t(n, 4), dynamic=True) for n in (8, 16))
    assert one == other

    class Far(AtenBackend):
        name = "far"
        transfer = Transfer()

    at = [
        next(c for c in capture(lambda x: x * 2, t(n, 4), dynamic=True) if c.stage == "inference")
        for n in (8, 16)
    ]
    far, near = ([c.key(backends=[b()]) for c in at] for b in (Far, AtenBackend))
    assert far[0].differs(far[1]) == ["symbols"]
    assert near[0] == near[1]


def test_sizes_that_happen_to_be_equal_share_a_symbol():
    one, other = (dynamo(lambda x, y: (x + 1, y + 1), t(8), t(n), dynamic=True) for n in (8, 9))
    assert set(one.differs(other)) >= {"input 1", "symbols"}


def test_guards_enter():
    def guarded(x):
        return x + 1 if x.shape[0] > 5 else x + 2

    one = dynamo(lambda x: x + 1, t(8, 4), dynamic=True)
    other = dynamo(guarded, t(8, 4), dynamic=True)
    assert one.differs(other) == ["symbols"]
    divided = dynamo(lambda x: x + (1 if x.shape[0] % 4 == 0 else 2), t(8, 4), dynamic=True)
    assert one.differs(divided) == ["symbols"]
