"""Programs with devices: their text, the rules that both verifiers hold, and an arena a device."""

import struct

import pytest

from dovetail.errors import InvalidArtifact, InvalidProgram
from dovetail.ir.memory import plan_memory
from dovetail.ir.program import BlobCall, Launch
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.runtime.loaded import INSPECT, open_native
from tests.artifact.files import file_bytes, floats
from tests.native.seeds import BLOBS, LAUNCHES, NORM, SMALL_CODE

CONTENTS = {"w": floats(*range(16)), "b": floats(1, 2, 3, 4)}
CODE = {"relus": SMALL_CODE, "other": b"anything"}
SMALL = """\
program @small
device accel {"version": "1.0", "abi": "1.0", "needs": {"cores": 2}}
device other {"version": "", "abi": "1.3", "needs": {}}
input %x: float32[4]
constant %c: float32[4] on accel
temporary %d: float32[4] on accel
temporary %e: float32[4] on other
temporary %r: float32[4] on accel
view %v: float32[2] on accel of %r at 2
temporary %h: float32[4]
output %y: float32[4]
copy %d = %x
launch %r = accel:add@1-2 aten.add.Tensor(%d, %c) {"alpha": 2}
copy %h = %r
copy %e = %h
blob %e = other:code [{"buffer": "e"}]
copy %y = %e
return %y
"""


@pytest.mark.parametrize("text", [SMALL, LAUNCHES, NORM, BLOBS])
def test_text_and_back(text):
    program = parse_program(text)
    verify_program(program)
    assert parse_program(str(program)) == program


def test_what_the_text_says():
    program = parse_program(SMALL)
    accel, other = program.devices
    assert (accel.version, accel.abi, accel.needs) == ("1.0", 1 << 16, (("cores", 2),))
    assert other.abi == 1 << 16 | 3
    launch = next(i for i in program.instructions if isinstance(i, Launch))
    assert (launch.device, launch.kernel, launch.attributes) == (
        "accel",
        "add@1-2",
        (("alpha", 2),),
    )
    assert program.launches() == ("accel:add@1-2",)
    assert any(isinstance(i, BlobCall) for i in program.instructions)
    assert program.blob_backends() == ()
    assert parse_program(BLOBS).blob_backends() == ("vendor",)


def test_one_arena_a_device():
    program = parse_program(SMALL)
    assert plan_memory(program).total == 64  # %h
    assert plan_memory(program, device="accel").total == 128  # %d, %r
    assert plan_memory(program, device="other").total == 64  # %e


def test_the_sections_are_those_of_the_specification():
    """Read by SPEC.md alone."""
    native = open_native(
        file_bytes(SMALL, {"c": floats(1, 2, 3, 4)}, blobs={"code": b"anything"}), flags=INSPECT
    )
    body = native.section(15)
    devices, needs, operations, arguments, size, zero = struct.unpack_from("<6I", body)
    assert (devices, needs, operations, arguments, zero) == (2, 1, 1, 1, 0)
    text = body[len(body) - size :]

    def name(at):
        return text[at : text.index(b"\0", at)].decode()

    rows = [struct.unpack_from("<4I", body, 24 + 16 * n) for n in range(2)]
    assert [(name(a), name(b), abi, n) for a, b, abi, n in rows] == [
        ("accel", "1.0", 1 << 16, 1),
        ("other", "", 1 << 16 | 3, 0),
    ]
    attribute, zero, least = struct.unpack_from("<2Iq", body, 24 + 32)
    assert (name(attribute), zero, least) == ("cores", 0, 2)
    device, op, kernel, low, high, first, count, zero = struct.unpack_from("<8I", body, 24 + 48)
    assert (device, name(op), name(kernel), low, high) == (0, "aten.add.Tensor", "add", 1, 2)
    assert (first, count, zero) == (0, 1, 0)
    argument, kind, count, value = struct.unpack_from("<4I", body, 24 + 80)
    assert (name(argument), kind, count, value) == ("alpha", 1, 1, 0)
    assert len(body) == 24 + 96 + size
    blobs = native.section(10)
    count, zero, *strings, device, zero2, at, size = struct.unpack_from("<8I2Q", blobs)
    assert (count, zero, device, zero2, at % 64) == (1, 0, 2, 0, 0)
    assert blobs[at : at + size] == b"anything"
    strings_section = native.section(2)
    owner = strings_section[strings[0] : strings[0] + strings[1]]
    assert owner == b"other"


# Each breaks one rule, which the verifier in Python and the one in C both hold.
BROKEN = [
    ("launch on another device", "launch %r = accel", "launch %r = other"),
    ("host kernel on a device", "copy %h = %r", "kernel %h = neg@1(%r)"),
    ("copy between devices", "copy %e = %h", "copy %e = %r"),
    ("copy within a device", "copy %h = %r", "copy %d = %r"),
    ("copy to a view", "copy %e = %h", "copy %v = %v"),
    ("host call on a device", "copy %h = %r", 'call %h = aten.relu.default [{"buffer": "r"}] {}'),
    ("output on a device", "output %y: float32[4]", "output %y: float32[4] on accel"),
    ("input on a device", "input %x: float32[4]", "input %x: float32[4] on accel"),
    ("used before written", "copy %d = %x\n", ""),
    ("view of another device", "float32[2] on accel of %r", "float32[2] on other of %r"),
    ("launch without output", "launch %r =", "launch _ ="),
    ("blob of another device", 'blob %e = other:code [{"buffer": "e"}]',
     'blob %e = other:code [{"buffer": "d"}]'),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), [b[1:] for b in BROKEN], ids=[b[0] for b in BROKEN])
def test_a_rule_that_is_broken(old, new):
    assert old in SMALL
    text = SMALL.replace(old, new)
    with pytest.raises(InvalidProgram):
        verify_program(parse_program(text))
    contents, blobs = {"c": floats(1, 2, 3, 4)}, {"code": b"anything"}
    open_native(file_bytes(SMALL, contents, blobs=blobs), flags=INSPECT)
    with pytest.raises(InvalidArtifact):
        open_native(file_bytes(text, contents, blobs=blobs), flags=INSPECT)


def test_devices_that_are_not_declared_or_twice():
    for old, new in [
        ("device other", "device accel"),
        ("%d: float32[4] on accel", "%d: float32[4] on nowhere"),
        ("accel:add@1-2", "nowhere:add@1"),
    ]:
        with pytest.raises(InvalidProgram):
            verify_program(parse_program(SMALL.replace(old, new)))


def test_strides_must_agree_across_a_border():
    text = SMALL.replace("%d: float32[4]", "%d: float32[4] strides [2]")
    with pytest.raises(InvalidProgram, match="keeps strides"):
        verify_program(parse_program(text))


def test_a_constant_of_two_devices_lies_in_the_file_once():
    text = SMALL.replace("temporary %d: float32[4] on accel", "constant %d: float32[4] on other")
    text = text.replace("copy %d = %x\n", "").replace("(%d, %c)", "(%c, %c)")
    data = floats(*range(4))
    shared = file_bytes(text, {"c": data, "d": data}, blobs={"code": b"anything"})
    copies = file_bytes(text, {"c": data, "d": bytearray(data)}, blobs={"code": b"anything"})
    assert len(copies) - len(shared) == 64
    open_native(shared, flags=INSPECT)
