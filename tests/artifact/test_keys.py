"""Ed25519, key files, the file of trusted keys, and signing as the documentation has it."""

import hashlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import dovetail
from dovetail import _native, errors
from dovetail.artifact.sign import CONTEXT, private_key, read_private_key, sign_file
from dovetail.backends.portable import PortableBackend
from dovetail.cli import main
from dovetail.file import container
from dovetail.runtime.trust import parse_keys, public_keys, trusted_keys
from tests.artifact.files import ROOT, file_bytes

SEED = bytes(range(32))
# ---- the curve, plainly, to make signatures that no signer makes ----------------------------

P = 2**255 - 19
L = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, -1, P) % P
ROOT_OF_MINUS_ONE = pow(2, (P - 1) // 4, P)
NEUTRAL = (0, 1)


def add(p, q):
    (a, b), (c, d) = p, q
    k = D * a * b * c * d
    return (
        (a * d + b * c) * pow(1 + k, -1, P) % P,
        (b * d + a * c) * pow(1 - k, -1, P) % P,
    )


def times(n, p):
    out = NEUTRAL
    for bit in bin(n)[2:]:
        out = add(out, out)
        out = add(out, p) if bit == "1" else out
    return out


def recover(y, sign):
    square = (y * y - 1) * pow(D * y * y + 1, -1, P) % P
    x = pow(square, (P + 3) // 8, P)
    x = x if x * x % P == square else x * ROOT_OF_MINUS_ONE % P
    return (P - x if x & 1 != sign else x, y)


def encode(p, lift=0):
    """A point's bytes; with ``lift`` = P its y is not reduced."""
    return (p[1] + lift | (p[0] & 1) << 255).to_bytes(32, "little")


BASE = recover(4 * pow(5, -1, P) % P, 0)
EIGHTH = times(L, recover(3, 0))  # a point of the curve less its part of order L
SMALL = [times(i, EIGHTH) for i in range(8)]


def challenge(r, key, message):
    return int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % L


def secret_scalar(seed):
    number = int.from_bytes(hashlib.sha512(seed).digest()[:32], "little")
    return number & ~7 & (2**254 - 1) | 2**254


def forged(r, s, key):
    return r + (s % L).to_bytes(32, "little"), key


def test_ed25519_vectors_of_rfc_8032():
    for seed, public, message, signature in VECTORS:
        seed, public, message, signature = map(bytes.fromhex, (seed, public, message, signature))
        assert _native.public_key(seed) == public
        assert _native.sign(seed, message) == signature
        assert _native.verify(signature, public, message)
        assert not _native.verify(signature, public, message + b"!")
        for at in range(0, 64, 5):
            damaged = bytearray(signature)
            damaged[at] ^= 4
            assert not _native.verify(bytes(damaged), public, message)


def test_an_s_that_is_not_reduced_is_refused():
    public, signature = _native.public_key(SEED), _native.sign(SEED, b"m")
    s = int.from_bytes(signature[32:], "little")
    for more in range(1, 15):
        again = (s + more * L).to_bytes(32, "little")
        assert not _native.verify(signature[:32] + again, public, b"m")


def test_the_curve_of_these_tests_is_the_curve():
    assert encode(times(secret_scalar(SEED), BASE)) == _native.public_key(SEED)
    assert len(set(SMALL)) == 8
    assert times(8, EIGHTH) == NEUTRAL


@pytest.mark.parametrize("order", range(8))
@pytest.mark.parametrize("lift", [0, P])
def test_keys_of_small_order_sign_nothing(order, lift):
    """With such a key and S = 1, R = B - k * A holds for one message in eight, whatever it says."""
    a = SMALL[order]
    if lift and a[1] + P >= 2**255:
        return  # y has but one encoding
    key = encode(a, lift)
    for number in range(64):
        message = struct.pack("<I", number)
        for r in SMALL:
            point = add(BASE, r)
            k = challenge(encode(point), key, message)
            if add(point, times(k, a)) == BASE:  # a verifier that does not look would agree
                assert not _native.verify(*forged(encode(point), 1, key), message)
                return
    pytest.fail("no message of 64 that this key signs")


@pytest.mark.parametrize("order", range(8))
@pytest.mark.parametrize("lift", [0, P])
def test_an_r_of_small_order_is_refused(order, lift):
    """Whoever has the key can make such signatures, two for one message: not canonical."""
    key, scalar = _native.public_key(SEED), secret_scalar(SEED)
    if lift and SMALL[order][1] + P >= 2**255:
        return
    r = encode(SMALL[order], lift)
    s = challenge(r, key, b"m") * scalar
    assert not _native.verify(*forged(r, s, key), b"m")


def test_an_r_that_is_no_point_or_not_reduced_is_refused():
    key, signature = _native.public_key(SEED), _native.sign(SEED, b"m")
    for r in (b"\xff" * 32, (2).to_bytes(32, "little"), P.to_bytes(32, "little")):
        assert not _native.verify(r + signature[32:], key, b"m")
    # A key with x = 0 and the sign bit set, which has no such encoding.
    assert not _native.verify(signature, (1 | 1 << 255).to_bytes(32, "little"), b"m")
    for y in range(P, 2**255):  # all that are not reduced
        assert not _native.verify(signature, y.to_bytes(32, "little"), b"m")


def test_many_signatures_agree_with_the_plain_curve():
    for number in range(12):
        seed = hashlib.sha256(struct.pack("<I", number)).digest()
        message = b"x" * number * 23
        key, signature = _native.public_key(seed), _native.sign(seed, message)
        assert key == encode(times(secret_scalar(seed), BASE))
        nonce = hashlib.sha512(hashlib.sha512(seed).digest()[32:] + message).digest()
        r = encode(times(int.from_bytes(nonce, "little") % L, BASE))
        s = int.from_bytes(nonce, "little") + challenge(r, key, message) * secret_scalar(seed)
        assert forged(r, s, key) == (signature, key)
        assert _native.verify(signature, key, message)


# ---- keys and files of keys -----------------------------------------------------------------


def test_bad_keys_are_named(tmp_path):
    with pytest.raises(errors.InvalidKey, match="32 bytes, not 3"):
        _native.public_key(b"abc")
    with pytest.raises(errors.InvalidKey, match="line 2"):
        parse_keys("# fine\nzz\n", "here")
    with pytest.raises(errors.InvalidKey, match="cannot read"):
        read_private_key(tmp_path / "none")
    (tmp_path / "short").write_text("abcd")
    with pytest.raises(errors.InvalidKey, match="64 hex digits"):
        read_private_key(tmp_path / "short")
    with pytest.raises(errors.InvalidKey, match="64 hex digits"):
        private_key(b"abcd")
    with pytest.raises(errors.InvalidKey, match="32 bytes, not 31"):
        public_keys([bytes(31)])


def test_a_key_is_the_same_however_it_is_given(tmp_path):
    (tmp_path / "my.key").write_text(SEED.hex() + "\n")
    text = (tmp_path / "my.key").read_bytes()
    for key in (SEED, tmp_path / "my.key", str(tmp_path / "my.key"), text):
        assert private_key(key) == SEED
    public = _native.public_key(SEED)
    assert public_keys([public, public.hex(), f"{public.hex()}  # mine"]) == [public] * 3


def test_saving_takes_the_key_file_that_the_command_line_writes(tmp_path, capsys):
    key = tmp_path / "my.key"
    assert main(["sign", "--new-key", "--key", str(key)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    artifact = dovetail.export(nn.ReLU(), (torch.ones(2),), backend=PortableBackend)
    for given in (key, str(key), key.read_bytes()):
        artifact.save(tmp_path / "m.dvt", key=given)
        loaded = dovetail.load(tmp_path / "m.dvt", trusted_keys=[line])
        assert loaded.native.signature() == 1


def test_signing_from_the_command_line(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("DOVETAIL_CONFIG", str(tmp_path))
    path, key = tmp_path / "m.dvt", tmp_path / "my.key"
    container.write_file(path, [file_bytes()], mode=0o640)
    assert main(["sign", str(path), "--key", str(key), "--new-key"]) == 0
    assert key.stat().st_mode & 0o777 == 0o600
    assert path.stat().st_mode & 0o777 == 0o640
    printed = capsys.readouterr().out
    assert main(["verify", "--signed", str(path)]) == 1
    (tmp_path / "trusted_keys").write_text(printed)  # all of it, word for word
    assert main(["verify", "--signed", str(path)]) == 0
    assert "trusted key" in capsys.readouterr().out
    (tmp_path / "trusted_keys").write_text(printed.splitlines()[-1])  # or its last line
    assert main(["verify", "--signed", str(path)]) == 0
    assert main(["sign", str(path), "--key", str(key), "--new-key"]) == 2  # never replaced
    assert main(["sign", str(tmp_path / "none.dvt"), "--key", str(key)]) == 2


WEIGHED = """\
program @weigh
input %x: float32[2]
constant %w: float32[2]
output %y: float32[2]
kernel %y = mul@1(%x, %w)
return %y
"""


def weighed(path, seed=None):
    """A file with constants, and where they lie in it."""
    path.write_bytes(file_bytes(WEIGHED, {"w": struct.pack("<2f", 1, 2)}))
    if seed is not None:
        sign_file(path, seed)
    with path.open("rb") as file:
        entries = container.read_header(file).entries
    return {entry.kind: entry.offset for entry in entries}


def write_at(path, offset, data):
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(data)


@pytest.mark.parametrize("kind", [container.STRINGS, container.CONSTANTS])
def test_a_damaged_file_is_not_signed(tmp_path, kind):
    path = tmp_path / "m.dvt"
    at = weighed(path)[kind]
    write_at(path, at, b"\xee")
    before = path.read_bytes()
    with pytest.raises(errors.InvalidArtifact, match="damaged"):
        sign_file(path, SEED)
    assert path.read_bytes() == before


def signed_with(path, context):
    """A file whose signature's message begins otherwise than it should."""
    weighed(path)
    made = _native.sign(SEED, context + dovetail.load(path).native.digest())
    section = container.section(container.SIGNATURE, _native.public_key(SEED) + made)
    path.write_bytes(file_bytes(WEIGHED, {"w": struct.pack("<2f", 1, 2)}, sections=[section]))


def test_a_signature_of_another_context_is_refused(tmp_path):
    signed_with(tmp_path / "m.dvt", CONTEXT)
    public = _native.public_key(SEED)
    assert dovetail.load(tmp_path / "m.dvt", trusted_keys=[public]).native.signature() == 1
    signed_with(tmp_path / "m.dvt", b"another protocol, version 1 ...\0")
    with pytest.raises(errors.InvalidArtifact, match="does not match"):
        dovetail.load(tmp_path / "m.dvt", trusted_keys=[public])


def test_a_signature_of_before_contexts_is_refused_and_can_be_renewed(tmp_path, capsys):
    path, public = tmp_path / "m.dvt", _native.public_key(SEED)
    signed_with(path, b"")
    with pytest.raises(errors.UnsupportedArtifact, match="sign it again"):
        dovetail.load(path, trusted_keys=[public])
    assert main(["verify", "--signed", str(path)]) == 1
    assert "sign it again" in capsys.readouterr().out
    sign_file(path, SEED)
    assert dovetail.load(path, trusted_keys=[public]).native.signature() == 1


# ---- the file of trusted keys ---------------------------------------------------------------


@pytest.fixture
def config(tmp_path, monkeypatch):
    folder = tmp_path / "config"
    folder.mkdir(mode=0o700)
    (folder / "trusted_keys").write_text(SEED.hex() + "\n")
    (folder / "trusted_keys").chmod(0o600)
    monkeypatch.setenv("DOVETAIL_CONFIG", str(folder))
    return folder


def test_keys_are_read_from_a_file_that_only_its_owner_can_change(config):
    assert trusted_keys() == [SEED]
    (config / "trusted_keys").unlink()
    assert trusted_keys() == []
    config.rmdir()
    assert trusted_keys() == []


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_of_keys_that_others_can_write_is_refused(config, mode):
    (config / "trusted_keys").chmod(mode)
    with pytest.raises(errors.InvalidKey, match="chmod 600"):
        trusted_keys()


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_of_keys_that_others_can_write_is_refused(config, mode):
    config.chmod(mode)
    with pytest.raises(errors.InvalidKey, match="chmod 700"):
        trusted_keys()


def test_a_folder_above_that_others_can_write_is_refused(config):
    config.parent.chmod(0o777)
    with pytest.raises(errors.InvalidKey, match="chmod go-w"):
        trusted_keys()
    config.parent.chmod(0o1777)  # as /tmp
    assert trusted_keys() == [SEED]


def test_folders_above_the_home_directory_are_not_looked_at(config, monkeypatch):
    config.parent.chmod(0o777)
    monkeypatch.setenv("HOME", str(config))
    assert trusted_keys() == [SEED]


def test_what_is_no_file_of_keys_is_refused(config):
    path = config / "trusted_keys"
    path.rename(config / "elsewhere")
    path.symlink_to(config / "elsewhere")
    with pytest.raises(errors.InvalidKey, match="symbolic link"):
        trusted_keys()
    path.unlink()
    os.mkfifo(path, 0o600)
    with pytest.raises(errors.InvalidKey, match="regular file"):
        trusted_keys()
    path.unlink()
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(errors.InvalidKey, match="not text"):
        trusted_keys()


# ---- as the documentation has it ------------------------------------------------------------


def test_the_commands_of_the_documentation(tmp_path):
    """docs/signing.md, word for word, in a home directory of its own."""
    text = (ROOT / "docs/signing.md").read_text()
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    commands = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    assert len(commands) == 7
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    weighed(tmp_path / "model.dvt")
    programs = Path(sys.executable).parent
    environment = {"HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}"}
    script = "set -e\n" + "\n".join(commands)
    done = subprocess.run(
        ["sh", "-c", script], cwd=tmp_path, env=environment, text=True, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    assert "sound, signed by a trusted key" in done.stdout
    assert "y: float32[2] = " in done.stdout
    signed = dovetail.load(tmp_path / "model.dvt", trusted_keys=[])
    assert signed(np.ones(2, "float32")).tolist() == [1, 2]


VECTORS = [  # RFC 8032, section 7.1: tests 1, 2, 3
    (
        "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
        "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a",
        "",
        (
            "e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155"
            "5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"
        ),
    ),
    (
        "4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
        "3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c",
        "72",
        (
            "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
            "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
        ),
    ),
    (
        "c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
        "fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025",
        "af82",
        (
            "6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac"
            "18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"
        ),
    ),
]
