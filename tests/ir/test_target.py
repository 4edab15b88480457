"""Targets: a text form that parses back, equality by what they say, canonical names."""

import dataclasses
import subprocess
import sys

import pytest

from dovetail.codegen.llvm.target import NAMED
from dovetail.errors import InvalidTarget
from dovetail.file.processors import PROCESSORS, target_here
from dovetail.ir.target import TARGETS, parse_target

EACH = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)


@EACH
def test_the_text_parses_back(target):
    again = parse_target(str(target))
    assert again == target
    assert hash(again) == hash(target)
    assert again.digest() == target.digest()


@EACH
def test_every_field_tells_targets_apart(target):
    digests = {target.digest()}
    for field in dataclasses.fields(target):
        old = getattr(target, field.name)
        new = (*old, "more") if isinstance(old, tuple) else old + type(old)("1")
        other = dataclasses.replace(target, **{field.name: new})
        assert other != target
        assert parse_target(str(other)) == other
        digests.add(other.digest())
    assert len(digests) == 1 + len(dataclasses.fields(target))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "kernel k",
        "target t",
        "target t\n  kind: cpu\n",
        "target t\n  unknown: 1\n",
        str(TARGETS["x86-64-v3"]).replace("32768", "many"),
        str(TARGETS["x86-64-v3"]) + "  kind: gpu\n",
    ],
)
def test_other_texts_are_refused(text):
    with pytest.raises(InvalidTarget):
        parse_target(text)


def test_every_processor_of_a_file_is_a_target():
    assert TARGETS.keys() >= PROCESSORS.keys()
    assert set(NAMED) <= PROCESSORS.keys()
    assert all(name == target.name for name, target in TARGETS.items())


def test_this_machine_is_a_canonical_one():
    assert TARGETS[target_here().name] is target_here()


def test_nothing_of_a_target_is_loaded_to_find_the_version_of_llvm():
    code = (
        "import sys\nfrom dovetail.codegen.llvm.target import missing, version\n"
        "missing(), version()\nassert 'dovetail.ir.target' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
