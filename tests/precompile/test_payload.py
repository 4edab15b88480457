"""The bytes that PyTorch keeps for us: read back whole, or not at all."""

import random

import pytest

from dovetail.errors import NotRestored
from dovetail.precompile.made_for import difference, keepable
from dovetail.precompile.payload import Payload

PAYLOAD = Payload(
    parts={"PyTorch": "2.13", "the option freeze": "False"},
    guards=(("builtins['len']", "the built-in builtins.len"),),
    backend="cpu",
    device="cpu",
    graph=bytes(range(256)),
    options={"strict": True},
)


def test_round_trip():
    assert Payload.decode(PAYLOAD.encode()) == PAYLOAD


def test_any_change_is_noticed():
    data = PAYLOAD.encode()
    numbers = random.Random(0)
    for _ in range(300):
        changed = bytearray(data)
        changed[numbers.randrange(len(data))] ^= 1 << numbers.randrange(8)
        with pytest.raises(NotRestored):
            Payload.decode(bytes(changed))
    for length in range(0, len(data), 7):
        with pytest.raises(NotRestored):
            Payload.decode(data[:length])


@pytest.mark.parametrize("data", [b"", b"dvtpre01", b"\x80\x04N.", "text", None])
def test_other_things_are_refused(data):
    with pytest.raises(NotRestored, match="none of this format"):
        Payload.decode(data)


def test_a_difference_is_named():
    now = {**PAYLOAD.parts, "the option freeze": "True"}
    assert difference(PAYLOAD.parts, PAYLOAD.parts) == ""
    assert difference(PAYLOAD.parts, now) == "the option freeze was False and is True"
    assert difference({"a": "1"}, {}) == "a was 1 and is absent"


def test_options_that_another_process_can_have():
    from dovetail.backends.reference import ReferenceBackend
    from dovetail.errors import NotKept
    from dovetail.options import Options

    given = {"strict": True, "backends": ["cpu"], "backend_options": {"level": 1}}
    assert keepable(Options.resolve(given)).items() >= given.items()
    with pytest.raises(NotKept, match="backends"):
        keepable(Options.resolve({"backends": [ReferenceBackend()]}))
    with pytest.raises(NotKept, match="backend_options"):
        keepable(Options.resolve({"backend_options": {"hook": print}}))
