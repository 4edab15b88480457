"""Entries carried in a file: all of it or nothing, and only with a key or the caller's word."""

from __future__ import annotations

import pytest

from dovetail import cache
from dovetail.cache import Hit
from dovetail.cache.bundle import read_bundle, write_bundle
from dovetail.errors import InvalidBundle, UntrustedBundle
from tests.cache.samples import key, path_of

SECRET = bytes(range(32))
KEYS = [key(graph=str(i)) for i in range(3)]


@pytest.fixture
def bundle(local, tmp_path):
    """Writes a bundle of three entries, and empties the folder."""

    def make(secret=SECRET):
        for i, each in enumerate(KEYS):
            cache.store(each, bytes([i]) * 50, seconds=i, label=f"model {i}")
        digests = [each.digest for each in KEYS]
        path = tmp_path / "bundle"
        assert write_bundle(str(path), local, digests, secret) == 3
        local.clear()
        return path

    return make


@pytest.mark.parametrize(
    ("secret", "trust"),
    [(SECRET, False), (SECRET, True), (None, True)],
    ids=["key", "both", "word"],
)
def test_what_was_exported_is_imported(bundle, local, secret, trust):
    path = bundle(secret)
    assert read_bundle(str(path), local, secret, trust=trust) == 3
    assert [cache.lookup(each) for each in KEYS] == [
        Hit(bytes([i]) * 50, "local") for i in range(3)
    ]
    assert local.header(KEYS[2].digest).label == "model 2"


def test_a_damaged_entry_is_left_out(bundle, local, tmp_path):
    read_bundle(str(bundle()), local, SECRET)
    path_of(local, KEYS[1].digest).write_bytes(b"damaged")
    assert write_bundle(str(tmp_path / "b"), local, [each.digest for each in KEYS], None) == 2


@pytest.mark.parametrize("secret", [None, SECRET], ids=["unsealed", "sealed"])
def test_a_bundle_is_not_believed_without_key_or_word(bundle, local, secret):
    with pytest.raises(UntrustedBundle, match="--trust"):
        read_bundle(str(bundle(secret)), local, None)
    assert not local.entries()


def test_an_unsealed_bundle_is_not_believed_because_there_is_a_key(bundle, local):
    with pytest.raises(UntrustedBundle, match="has no seal"):
        read_bundle(str(bundle(None)), local, SECRET)


def test_a_bundle_of_another_key_is_refused(bundle, local):
    with pytest.raises(InvalidBundle, match=r"entry 1 is refused: .*not written with this key"):
        read_bundle(str(bundle()), local, bytes(32))
    assert not local.entries()


@pytest.mark.parametrize(("secret", "trust"), [(SECRET, False), (None, True)], ids=["key", "word"])
def test_a_flipped_bit_anywhere_refuses_the_whole_bundle(bundle, local, secret, trust):
    path = bundle(secret)
    whole = path.read_bytes()
    for at in range(0, len(whole), 3):
        flipped = bytearray(whole)
        flipped[at] ^= 1 << at % 8
        path.write_bytes(flipped)
        with pytest.raises((InvalidBundle, UntrustedBundle)):
            read_bundle(str(path), local, secret, trust=trust)
        assert not local.entries(), at


def test_every_length_of_a_truncated_bundle_is_refused(bundle, local):
    path = bundle()
    whole = path.read_bytes()
    for length in range(0, len(whole), 5):
        path.write_bytes(whole[:length])
        with pytest.raises(InvalidBundle, match="cut short"):
            read_bundle(str(path), local, SECRET)
    path.write_bytes(whole + b"\0")
    with pytest.raises(InvalidBundle, match="something follows its end"):
        read_bundle(str(path), local, SECRET)
    assert not local.entries()


def test_a_length_that_cannot_be_is_not_allocated(local, tmp_path):
    path = tmp_path / "bundle"
    path.write_bytes(b"DVTBUNDL" + bytes([1, 0, 0, 0] + [0] * 4) + b"\xff" * 8)
    with pytest.raises(InvalidBundle, match="larger than the whole cache"):
        read_bundle(str(path), local, None, trust=True)


def test_a_file_that_cannot_be_written_leaves_nothing(local, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_bundle(str(tmp_path / "folder"), local, [], None)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["folder"]
