"""What happens to a loaded file afterwards: it is read once, or the change is reported."""

import itertools
import os
import struct
import subprocess
import sys
import threading
from collections import Counter

import numpy as np
import pytest

import dovetail
from dovetail import _native, errors
from dovetail.artifact.sign import sign_file
from dovetail.file import container
from dovetail.runtime.loaded import CHECK_CONSTANTS, COPY, INSPECT, TRUST, open_native
from tests.artifact import changing
from tests.artifact.files import ROOT, file_bytes

X = np.ones(changing.ELEMENTS, np.float32)
KEYS = [_native.public_key(changing.KEY)]


def place(path, kind):
    with path.open("rb") as file:
        return next(e for e in container.read_header(file).entries if e.kind == kind)


def write_at(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


def spoil_constants(path):
    """Another weight in the middle, the file's time as it was."""
    info, entry = path.stat(), place(path, container.CONSTANTS)
    write_at(path, entry.offset + entry.size // 2, struct.pack("<f", -666))
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


# ---- constants are what was signed, or what their digest says --------------------------------


@pytest.mark.parametrize("version", [(1, 2), (1, 3)])
def test_weights_replaced_after_signing_are_an_error(tmp_path, version):
    for name, text, size in (("small", SMALL, 2), ("large", changing.TEXT, changing.ELEMENTS)):
        path = tmp_path / f"{name}.dvt"
        data = struct.pack("<2f", 1, 2) * (size // 2)
        path.write_bytes(file_bytes(text, {"w": data}, version=version))
        sign_file(path, changing.KEY)
        assert dovetail.load(path, trusted_keys=KEYS).native.signature() == 1
        spoil_constants(path)
        with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
            dovetail.load(path, trusted_keys=KEYS)
        assert open_native(str(path), flags=INSPECT).signature() == -1
        with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
            open_native(str(path), flags=INSPECT | CHECK_CONSTANTS)


SMALL = changing.TEXT.replace(str(changing.ELEMENTS), "2")


@pytest.mark.parametrize("version", [(1, 2), (1, 3)])
def test_damaged_constants_of_an_unsigned_file_give_no_result(tmp_path, version):
    path = tmp_path / "m.dvt"
    changing.write(path, 3, version=version)
    assert (dovetail.load(path)(X) == 3).all()
    spoil_constants(path)
    loaded = dovetail.load(path)
    for _ in range(2):
        with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
            loaded(X)
    assert loaded.native.section(container.CONSTANTS) is None
    for flags in (CHECK_CONSTANTS, TRUST | COPY, TRUST | CHECK_CONSTANTS):
        with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
            open_native(str(path), flags=flags)
    with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
        open_native(path.read_bytes(), flags=CHECK_CONSTANTS)
    with pytest.raises(errors.InvalidArtifact, match="section 11 is damaged"):
        open_native(path.read_bytes())(X)


@pytest.mark.parametrize("size", [1, 65535, 65536, 65537, 1 << 20, (1 << 20) + 1, 3_000_000])
def test_the_digest_of_constants_has_leaves(tmp_path, size):
    """Written in Python in pieces of any size, read in C; a change of any byte is found."""
    size = -(-size // 4) * 4
    text = changing.TEXT.replace(str(changing.ELEMENTS), str(size // 4))
    data = np.random.default_rng(0).integers(0, 255, size, np.uint8).tobytes()
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(text, {"w": data}))
    pieces = [data[:7], data[7:70000], data[70000:70001], b"", data[70001:]]
    whole = container.Section(container.CONSTANTS, [data]).digest()
    assert container.Section(container.CONSTANTS, pieces).digest() == whole
    open_native(str(path), flags=CHECK_CONSTANTS | INSPECT)
    for at in {0, size // 2, size - 1}:
        offset = place(path, container.CONSTANTS).offset + at
        write_at(path, offset, bytes([data[at] ^ 1]))
        with pytest.raises(errors.InvalidArtifact, match="damaged"):
            open_native(str(path), flags=CHECK_CONSTANTS | INSPECT)
        write_at(path, offset, data[at : at + 1])


def test_threads_that_all_run_first_agree(tmp_path):
    path = tmp_path / "m.dvt"
    changing.write(path, 3)
    loaded, seen = dovetail.load(path), []
    threads = [threading.Thread(target=lambda: seen.append(loaded(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 4
    assert all((result == 3).all() for result in seen)


# ---- a file is opened once and read once -----------------------------------------------------


SIZES = """\
program @p
symbol s0 = %x[0] in 1..900
input %x: float32[s0]
output %y: float32[s0]
kernel %y = relu@1(%x)
return %y
"""


@pytest.mark.parametrize("options", [{}, {"trust": True}, {"trusted_keys": KEYS}])
def test_a_file_written_or_cut_afterwards_changes_nothing(tmp_path, options):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes(SIZES))
    sign_file(path, changing.KEY)
    loaded = dovetail.load(path, **options)
    assert loaded(np.ones(3, np.float32)).tolist() == [1] * 3
    write_at(path, 128, b"\xff" * (path.stat().st_size - 128))
    assert loaded(np.ones(5, np.float32)).tolist() == [1] * 5
    path.write_bytes(b"")
    assert loaded(np.ones(7, np.float32)).tolist() == [1] * 7
    assert loaded.native.section(container.STRINGS)


def test_what_is_opened_again_is_not_read_again(tmp_path):
    path = tmp_path / "m.dvt"
    path.write_bytes(file_bytes())
    source = _native.Source(str(path))
    path.write_bytes(file_bytes().replace(b"relu", b"gelu"))
    for flags in (INSPECT, 0, TRUST):
        native = _native.Artifact(source, flags)
        assert b"relu" in native.section(container.STRINGS)
    del source
    assert native(np.full((2, 3), -1, np.float32))[0].tolist() == [[0] * 3] * 2


# ---- mapped constants ------------------------------------------------------------------------


@pytest.fixture
def mapped(tmp_path):
    """A file, and what it is loaded as."""
    path = tmp_path / "m.dvt"
    changing.write(path, 3)
    loaded = dovetail.load(path, trust=True)
    assert (loaded(X) == 3).all()
    return path, loaded


def test_a_mapped_file_that_is_written_is_reported(mapped):
    path, loaded = mapped
    write_at(path, place(path, container.CONSTANTS).offset, struct.pack("<f", 4))
    for _ in range(2):
        with pytest.raises(errors.ArtifactChanged, match="load it again"):
            loaded(X)


def test_a_change_whose_time_was_put_back_is_reported(mapped):
    path, loaded = mapped
    spoil_constants(path)
    with pytest.raises(errors.ArtifactChanged):
        loaded(X)
    with pytest.raises(errors.ArtifactChanged):
        loaded(X)


def test_a_mapped_file_that_is_renamed_deleted_or_replaced_goes_on(mapped):
    path, loaded = mapped
    path.chmod(0o600)
    assert (loaded(X) == 3).all()
    changing.write(path.with_suffix(".new"), 4)
    path.with_suffix(".new").rename(path)
    assert (loaded(X) == 3).all()
    assert (dovetail.load(path)(X) == 4).all()
    path.unlink()
    assert (loaded(X) == 3).all()


def test_a_file_written_a_moment_ago_is_copied(tmp_path):
    """A second change in the same tick of the clock would not show."""
    path = tmp_path / "m.dvt"
    changing.write(path, 3)
    os.utime(path)
    loaded = dovetail.load(path, trust=True)
    write_at(path, place(path, container.CONSTANTS).offset, struct.pack("<f", 4))
    assert (loaded(X) == 3).all()


def test_a_copy_of_a_trusted_file_is_its_own(tmp_path):
    path = tmp_path / "m.dvt"
    changing.write(path, 3)
    loaded = dovetail.load(path, trust=True, copy=True)
    path.write_bytes(b"")
    assert (loaded(X) == 3).all()


IN_A_CHILD = """
import os, sys
import numpy as np
import dovetail
from dovetail import errors
from pathlib import Path
from tests.artifact import changing

X = np.ones(changing.ELEMENTS, np.float32)
folder = Path(sys.argv[1])

changing.write(folder / "cut.dvt", 3)
loaded = dovetail.load(folder / "cut.dvt", trust=True)
os.truncate(folder / "cut.dvt", 8192)
for _ in range(2):
    try:
        loaded(X)
    except errors.ArtifactChanged:
        print("cut: reported")

changing.write(folder / "fork.dvt", 3)  # forked before its constants are there
for options in ({}, {"trust": True}):
    loaded = dovetail.load(folder / "fork.dvt", **options)
    child = os.fork()
    if child == 0:
        os._exit(not (loaded(X) == 3).all())
    print("fork:", os.waitpid(child, 0)[1], (loaded(X) == 3).all())
"""


def test_a_mapped_file_cut_short_is_reported_and_forks_read_for_themselves(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", IN_A_CHILD, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == ["cut: reported"] * 2 + ["fork: 0 True"] * 2 + [""]


def test_files_spoilt_at_random_moments(tmp_path):
    """Thirty times here; ``make spoil`` does it a thousand times."""
    count = int(os.environ.get("DOVETAIL_SPOILT_FILES", "30"))
    seen = Counter()
    for mode, way, what in changing.rounds(tmp_path, count):
        assert what in changing.may_see(mode, way), (mode, way.__name__, what)
        seen[mode, what] += 1
    print(dict(seen))


def test_a_file_with_holes_is_not_taken_for_memory(tmp_path):
    """Constants that are copied count as memory: a file may say that it has more than there is."""
    path = tmp_path / "m.dvt"
    changing.write(path, 3)
    assert (dovetail.load(path, max_memory=1 << 25)(X) == 3).all()
    for trust in (False, True):
        with pytest.raises(errors.LimitExceeded, match="copies of constants"):
            dovetail.load(path, max_memory=1 << 20, trust=trust, copy=True)


@pytest.mark.parametrize("first", [container.CONSTANTS, container.BUFFERS])
@pytest.mark.parametrize("size", [0, 4, 64, 68, 5000])
def test_constants_may_lie_anywhere_in_a_file(tmp_path, monkeypatch, first, size):
    """All but them is copied, whatever stands before and behind; gaps are still looked at."""
    order = [first, container.CONSTANTS] if first != container.CONSTANTS else [first]
    monkeypatch.setattr(
        container, "_rank", lambda item: (item.kind not in order, item.kind), raising=True
    )
    path, text = tmp_path / "m.dvt", changing.TEXT.replace(str(changing.ELEMENTS), str(size // 4))
    path.write_bytes(file_bytes(text, {"w": np.full(size // 4, 3, np.float32).tobytes()}))
    loaded = dovetail.load(path)
    assert loaded(np.ones(size // 4, np.float32)).tolist() == [3] * (size // 4)
    with path.open("rb") as file:
        entries = container.read_header(file).entries
    assert entries[-1].kind != container.CONSTANTS
    for before, after in itertools.pairwise(entries):
        if after.offset > before.offset + before.size:
            write_at(path, after.offset - 1, b"\1")
            with pytest.raises(errors.InvalidArtifact, match="padding"):
                dovetail.load(path)
            write_at(path, after.offset - 1, b"\0")
    sign_file(path, changing.KEY)
    assert dovetail.load(path, trusted_keys=KEYS).native.signature() == 1
