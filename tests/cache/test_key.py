"""Keys: canonical, complete, and able to say what differs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dovetail.cache import Key

PARTS = {"graph": "add(a, b)", "constants": b"\x00\x01", "options": "freeze=False"}


def test_the_same_parts_give_the_same_key_in_another_process():
    program = f"from dovetail.cache import Key; print(Key.of({PARTS!r}).digest)"
    printed = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in "12"
    ]
    assert printed == [Key.of(PARTS).digest] * 2


@pytest.mark.parametrize("name", PARTS)
def test_each_part_changes_the_digest_and_is_named(name):
    key, other = Key.of(PARTS), Key.of({**PARTS, name: "something else"})
    assert key != other
    assert key.differs(other) == [name] == other.differs(key)


def test_parts_do_not_run_into_each_other():
    keys = [
        Key.of({"a": "xy", "b": ""}),
        Key.of({"a": "x", "b": "y"}),
        Key.of({"ab": "xy"}),
        Key.of({"a": "xy"}),
        Key.of({"b": "", "a": "xy"}),
    ]
    assert len({key.digest for key in keys}) == len(keys)


def test_a_part_that_only_one_key_has_differs():
    key, less = Key.of(PARTS), Key.of({"graph": PARTS["graph"]})
    assert key.differs(less) == ["constants", "options"] == less.differs(key)
    assert less.text("options") == "absent"


def test_texts_are_for_people_and_change_nothing():
    plain, told = Key.of(PARTS), Key.of(PARTS, {"constants": "two\nbytes"})
    assert plain == told
    assert len({plain, told}) == 1
    assert told.text("constants") == "two bytes"
    assert plain.text("options") == "freeze=False"
    assert plain.text("constants") == plain.parts[1][1][:12]


def test_texts_stay_short():
    key = Key.of({"graph": "x" * 10_000, "long": "y"}, {"long": "y" * 10_000})
    assert key.parts[0][2] == ""
    assert len(key.text("long")) == 200


@pytest.mark.parametrize("name", ["", "two\nlines", "a\tb"])
def test_names_must_be_printable(name):
    with pytest.raises(ValueError, match="printable"):
        Key.of({name: "x"})


def test_a_text_needs_its_part():
    with pytest.raises(ValueError, match="option"):
        Key.of(PARTS, {"option": "misspelt"})
