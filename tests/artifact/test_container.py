"""The container: versions, sections, and damage of every kind."""

import random

import numpy as np
import pytest

import dovetail
from dovetail import errors
from dovetail.file import container
from dovetail.runtime.loaded import Loaded, open_native
from tests.artifact.files import RELU, file_bytes, floats

X = np.arange(-3, 3, dtype=np.float32).reshape(2, 3)


def run(data):
    return Loaded(open_native(data))(X)


def test_a_file_runs():
    assert np.array_equal(run(file_bytes()), np.maximum(X, 0))


# ---- versions ------------------------------------------------------------------------------


def test_an_older_minor_is_read():
    assert container.MINOR >= 1
    assert np.array_equal(run(file_bytes(version=(1, 0))), np.maximum(X, 0))


NEWER = rf"1\.{container.MINOR + 1} is newer than 1\.{container.MINOR}.*upgrade"


def test_a_newer_minor_is_refused():
    with pytest.raises(errors.UnsupportedArtifact, match=NEWER):
        open_native(file_bytes(version=(1, container.MINOR + 1)))


@pytest.mark.parametrize("major", [0, 2, 65535])
def test_another_major_is_refused(major):
    with pytest.raises(errors.UnsupportedArtifact, match=rf"version {major}\.0.*reads 1\.x"):
        open_native(file_bytes(version=(major, 0)))


def test_an_unknown_optional_section_is_skipped():
    extra = container.Section(77, [b"what a later version wrote"], required=False)
    assert np.array_equal(run(file_bytes(sections=[extra])), np.maximum(X, 0))


def test_an_unknown_required_section_is_refused():
    extra = container.Section(77, [b"what a later version needs"], required=True)
    with pytest.raises(errors.UnsupportedArtifact, match="kind 77"):
        open_native(file_bytes(sections=[extra]))


def test_an_unknown_feature_is_refused():
    with pytest.raises(errors.UnsupportedArtifact, match="0x10"):
        open_native(file_bytes(features=16))


def test_an_unknown_kernel_is_refused_by_name():
    with pytest.raises(errors.UnsupportedArtifact, match="no kernel relu@99"):
        open_native(file_bytes(RELU.replace("relu@1", "relu@99")))
    with pytest.raises(errors.UnsupportedArtifact, match="no kernel warp@1"):
        open_native(file_bytes(RELU.replace("relu@1", "warp@1")))


# ---- damage --------------------------------------------------------------------------------


def test_every_byte_of_header_and_table_matters():
    data = file_bytes()
    head = container.HEADER.size + container.ENTRY.size * 6
    for at in range(head):
        for flip in (0x01, 0x80, 0xFF):
            damaged = bytearray(data)
            damaged[at] ^= flip
            with pytest.raises(errors.DovetailError):
                open_native(bytes(damaged))


def test_every_truncation_is_refused():
    data = file_bytes()
    for size in range(len(data)):
        with pytest.raises(errors.InvalidArtifact):
            open_native(data[:size])
    with pytest.raises(errors.InvalidArtifact, match="truncated or extended"):
        open_native(data + b"\0")


def test_damaged_contents_are_noticed():
    data = file_bytes()
    start = container.HEADER.size + container.ENTRY.size * 6
    for at in range(start, len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 0x10
        with pytest.raises(errors.InvalidArtifact):
            open_native(bytes(damaged))


def resealed(data, rng):
    """A file with random bytes changed whose digests are right again: past the first check."""
    import io

    header = container.read_header(io.BytesIO(data))
    sections = []
    for entry in header.entries:
        body = bytearray(data[entry.offset : entry.offset + entry.size])
        for _ in range(rng.choice([0, 0, 1, 2, 4]) if body else 0):
            at = rng.randrange(len(body))
            body[at] = rng.choice([0, 1, 255, 127, rng.randrange(256)])
        if rng.random() < 0.05:
            body = body[: rng.randrange(len(body) + 1)]
        sections.append(container.Section(entry.kind, [bytes(body)], entry.required))
    layout, ordered = container.lay_out(sections, header.features)
    return b"".join(container.chunks(layout, ordered))


GRAPH = """\
program @p
symbol s0 = %x[0] in 0..9
input %x: float32[s0, 3]
constant %w: float32[3, 3]
constant %t: float32[3]
temporary %a: float32[s0, 3]
temporary %b: float32[s0, 3] of %a
view %v: float32[3, s0] strides [1, 3] of %b
temporary %m: float32[3]
output %y: float32[3]
guard s0 % 1 == 0
kernel %a = matmul@1(%x, %w)
kernel %b = relu@1(%a)
kernel %m = sum@1(%v; 2, 0)
kernel %y = add@1(%m, %t)
return %y
"""


@pytest.mark.parametrize("seed", range(4))
def test_resealed_mutations_never_crash(seed):
    """The verifier itself, behind the digests: typed errors or a result, whatever is changed."""
    rng = random.Random(seed)
    contents = {"w": floats(*range(9)), "t": floats(1, 2, 3)}
    data = file_bytes(GRAPH, contents)
    outcomes = {"ran": 0, "refused": 0}
    for _ in range(1500):
        try:
            native = open_native(resealed(data, rng))
            native(np.ones((2, 3), np.float32))
            outcomes["ran"] += 1
        except errors.DovetailError:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


# ---- files ---------------------------------------------------------------------------------


def test_no_such_file(tmp_path):
    with pytest.raises(errors.ArtifactNotFound, match="no file"):
        dovetail.load(tmp_path / "none.dvt")
    with pytest.raises(errors.ArtifactNotFound, match="not a regular file"):
        dovetail.load(tmp_path)
    (tmp_path / "empty.dvt").write_bytes(b"")
    with pytest.raises(errors.InvalidArtifact, match="only 0 bytes"):
        dovetail.load(tmp_path / "empty.dvt")
    (tmp_path / "text.dvt").write_text("hello" * 100)
    with pytest.raises(errors.InvalidArtifact, match="no DVT signature"):
        dovetail.load(tmp_path / "text.dvt")


def test_a_file_deleted_or_replaced_while_mapped_goes_on_working(tmp_path):
    path = tmp_path / "model.dvt"
    text = "program @p\ninput %x: float32[2]\nconstant %c: float32[2]\noutput %y: float32[2]\n"
    text += "kernel %y = add@1(%x, %c)\nreturn %y\n"
    container.write_file(path, [file_bytes(text, {"c": floats(1, 2)})])
    run = dovetail.load(path)
    container.write_file(path, [file_bytes(text, {"c": floats(10, 20)})])
    x = np.zeros(2, np.float32)
    assert run(x).tolist() == [1, 2]
    assert dovetail.load(path)(x).tolist() == [10, 20]
    path.unlink()
    assert run(x).tolist() == [1, 2]


def test_writing_leaves_no_half_file(tmp_path):
    path = tmp_path / "model.dvt"
    path.write_bytes(b"old")

    def parts():
        yield b"new"
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        container.write_file(path, parts())
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(errors.ArtifactNotFound, match="cannot write"):
        container.write_file(tmp_path / "no" / "such" / "folder.dvt", [b""])


@pytest.mark.parametrize(
    "manifest",
    [
        {"inputs": {"tensor": 5}, "outputs": {"tensor": 0}},
        {"inputs": {"odd": []}, "outputs": {"tensor": 0}},
        {"outputs": {"tensor": 0}},
        [],
        {"inputs": {}, "outputs": {}},
    ],
)
def test_a_bad_manifest(manifest):
    with pytest.raises(errors.InvalidArtifact, match="manifest"):
        Loaded(open_native(file_bytes(manifest=manifest or ["x"])))
