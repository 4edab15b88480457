"""Which candidate is taken, by made-up times, and what an entry of the cache may say."""

import json
import math

import pytest
import torch

from dovetail import cache
from dovetail.backend import Candidates
from dovetail.place.verdicts import Selection
from dovetail.schedule.way import KERNEL, LIBRARY, Way
from dovetail.tuning.decide import decide, is_steady
from dovetail.tuning.measure import ROUNDS, SECONDS, in_turns, is_near
from dovetail.tuning.remembered import REMEMBERED, recall, remember

KNOWN = Candidates("kernel", others=("library", "kernel, no panels"))


@pytest.mark.parametrize(
    ("times", "winner"),
    [
        ({"kernel": [10, 10, 10, 10], "library": [8, 9, 8, 9]}, "library"),
        ({"kernel": [10, 10, 10, 10], "library": [9.8, 9.8, 9.8, 9.8]}, "kernel"),  # no margin
        ({"kernel": [8, 8, 8, 8], "library": [9, 9, 9, 9]}, "kernel"),
        ({"kernel": [10, 30, 10, 30], "library": [9, 25, 9, 25]}, "library"),  # noise in both
        # In one half alone it was faster: something else ran meanwhile.
        ({"kernel": [10, 10, 10.5, 10.5], "library": [9.4, 9.4, 10, 10]}, "kernel"),
        ({"kernel": [10, 10, 20, 20], "library": [5, 5, 5, 5]}, ""),  # too unsteady to tell
        ({"kernel": [10, 10, 10, 10], "library": [5, 5, 8, 8]}, ""),
        (
            {"kernel": [9] * 4, "library": [7] * 4, "kernel, no panels": [6] * 4},
            "kernel, no panels",
        ),
        ({"kernel": [9] * 8, "library": [40] * 4}, "kernel"),  # hopeless ones ran less often
    ],
)
def test_a_winner_wins_by_a_margin_in_both_halves(times, winner):
    assert decide(times, "kernel") == winner


def test_times_are_steady_or_not():
    assert is_steady({"kernel": [1, 1, 1.05, 1.05]}, "kernel")
    assert not is_steady({"kernel": [1, 1, 1.2, 1.2]}, "kernel")


class Clock:
    """Time that runs by what the candidates say that they take."""

    def __init__(self):
        self.now = 0.0
        self.order = []

    def __call__(self):
        return self.now

    def taking(self, name, seconds):
        def run():
            self.order.append(name)
            self.now += seconds

        return run


def test_candidates_take_turns_until_times_are_steady():
    clock = Clock()
    runs = {name: clock.taking(name, each) for name, each in (("a", 0.01), ("b", 0.02))}
    times = in_turns(runs, "a", clock)
    assert clock.order[:4] == ["a", "b", "a", "b"]
    assert len(times["a"]) >= ROUNDS[0]
    assert clock.now <= SECONDS[0] + 0.1
    assert times["b"] == pytest.approx([0.02] * len(times["b"]))


def test_a_hopeless_candidate_is_given_up_and_a_slow_one_has_a_limit():
    clock = Clock()
    runs = {name: clock.taking(name, each) for name, each in (("a", 0.001), ("slow", 0.1))}
    times = in_turns(runs, "a", clock)
    assert len(times["slow"]) == 4
    slow = {name: clock.taking(name, 1.0) for name in ("a", "b")}
    assert [len(each) for each in in_turns(slow, "a", clock).values()] == [1, 1]


def test_results_are_compared_within_errors_of_sums():
    wanted = torch.randn(100)
    assert is_near(wanted + 1e-5, wanted)
    assert not is_near(wanted + 1e-2, wanted)
    assert not is_near(wanted.masked_fill(wanted == wanted.max(), math.nan), wanted)
    half = torch.randn(100).bfloat16()
    assert is_near(half * 1.004, half)
    assert not is_near(half * 1.1, half)


@pytest.mark.parametrize(
    ("text", "way"),
    [
        ("library", LIBRARY),
        ("kernel", KERNEL),
        ("kernel, Winograd 4 x 4", Way(winograd=4)),
        ("kernel, no panels", Way(panels=0)),
        ("kernel, panels of 64", Way(panels=64)),
        ("kernel, tiles of 8 x 3", Way(tile=(8, 3))),
    ],
)
def test_ways_are_text(text, way):
    assert Way.parse(text) == way
    assert str(way) == text


@pytest.mark.parametrize("text", ["", "kernels", "kernel, tiles of 8", "kernel, panels of 99999"])
def test_other_texts_leave_the_choice_to_the_rules(text):
    assert Way.parse(text) is None


KEY = cache.Key.of({"choice": "a problem"})


def test_what_was_chosen_is_remembered():
    remember(KEY, Selection("library", "measured", (("kernel", 2e-3), ("library", 1e-3))))
    found = recall(KEY, KNOWN)
    assert found == Selection("library", REMEMBERED, (("kernel", 2e-3), ("library", 1e-3)))


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"null",
        b'{"chosen": "library"}',
        b'{"chosen": ["library"], "seconds": []}',
        json.dumps({"chosen": "rm -rf /", "seconds": [["rm -rf /", 1.0]]}).encode(),
        json.dumps({"chosen": "library", "seconds": [["kernel", 1.0]]}).encode(),
        json.dumps({"chosen": "library", "seconds": [["library", "fast"]]}).encode(),
        json.dumps({"chosen": "library", "seconds": [["library", -1.0]]}).encode(),
        json.dumps({"chosen": "library", "seconds": [["library", 1, 2]]}).encode(),
        b'{"chosen": "library", "seconds": [["library", NaN]]}',
        b"[" * 100_000,
    ],
)
def test_an_entry_that_makes_no_sense_is_a_miss(payload):
    cache.store(KEY, payload)
    assert recall(KEY, KNOWN) is None
