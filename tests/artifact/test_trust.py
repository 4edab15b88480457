"""Native code in a file: loaded by our own loader, and only where it is trusted."""

import contextlib
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

import dovetail
from dovetail import _native, errors
from dovetail.artifact.sign import new_key, sign_file
from dovetail.file import container
from dovetail.runtime.loaded import TRUST, Loaded, open_native
from dovetail.runtime.trust import trusted_keys
from tests.artifact.files import ROOT, file_bytes

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")

SOURCE = """
#include <string.h>
#include "dovetail.h"
static const float table[4] = {1.0f, 10.0f, 100.0f, 1000.0f};  /* read-only data */
static float weight(long i) { return table[i % 4]; }
dvt_status weigh(const dvt_call *call, dvt_error *error)
{
    (void)error;
    const float *in = call->inputs[0]->data;
    float *out = call->outputs[0]->data;
    memset(out, 0, 24);
    for (long i = 0; i < 6; i++)
        out[i] = in[i] * weight(i);
    return DVT_OK;
}
"""
TEXT = """\
program @weigh
input %x: float32[2, 3]
output %y: float32[2, 3]
kernel %y = NAME@1(%x)
return %y
"""
X = np.ones((2, 3), np.float32)
WEIGHED = [[1, 10, 100], [1000, 1, 10]]


def compiled(folder, source=SOURCE, *flags):
    (folder / "kernel.c").write_text(source)
    command = ["cc", "-std=c11", "-O2", "-c", "-fPIC", "-fno-stack-protector", "-mcmodel=small"]
    command += ["-fcf-protection=none", "-fno-tree-vectorize", *flags]
    command += [f"-I{ROOT / 'native/include'}", "-o", str(folder / "k.o"), str(folder / "kernel.c")]
    subprocess.run(command, check=True)
    return (folder / "k.o").read_bytes()


def code_section(*objects):
    """The code section: a level and an object for each."""
    head = struct.pack("<2I", len(objects), 0)
    at = -(-(8 + 24 * len(objects)) // 16) * 16
    body = b""
    for level, data in objects:
        head += struct.pack("<2I2Q", level, 0, at + len(body), len(data))
        body += data + bytes(-len(data) % 16)
    return container.section(container.CODE, head + bytes(at - len(head)) + body)


def artifact(code, name="weigh", symbol="weigh"):
    text = TEXT.replace("NAME", name)
    return file_bytes(text, generated={f"{name}@1": symbol}, sections=[code])


@pytest.fixture
def code(tmp_path):
    return code_section((1, compiled(tmp_path)))


@needs_compiler
def test_code_runs_where_it_is_trusted(code):
    native = open_native(artifact(code), flags=TRUST)
    assert native.code() == 1
    assert Loaded(native)(X).tolist() == WEIGHED


@needs_compiler
def test_unsigned_code_is_never_run(code):
    with pytest.raises(errors.UntrustedArtifact, match="no signature"):
        open_native(artifact(code))


@needs_compiler
def test_a_built_in_kernel_serves_where_code_is_not_trusted(code):
    data = artifact(code, name="neg")
    with pytest.warns(errors.FallbackWarning, match="not used"):
        native = open_native(data)
    assert native.code() == -1
    assert Loaded(native)(X).tolist() == (-X).tolist()
    assert Loaded(open_native(data, flags=TRUST))(X).tolist() == WEIGHED


@needs_compiler
def test_signed_code_runs_for_who_trusts_the_key(code, tmp_path, monkeypatch):
    path, key = tmp_path / "m.dvt", new_key()
    container.write_file(path, [artifact(code)])
    sign_file(path, key)
    with pytest.raises(errors.UntrustedArtifact, match="not trusted"):
        dovetail.load(path)
    public = _native.public_key(key)
    assert dovetail.load(path, trusted_keys=[bytes(32), public])(X).tolist() == WEIGHED
    with pytest.raises(errors.UntrustedArtifact):
        dovetail.load(path, trusted_keys=[_native.public_key(new_key())])

    monkeypatch.setenv("DOVETAIL_CONFIG", str(tmp_path))
    (tmp_path / "trusted_keys").write_text(f"# mine\n{public.hex()}  # me\n")
    assert trusted_keys() == [public]
    assert dovetail.load(path)(X).tolist() == WEIGHED
    (tmp_path / "trusted_keys").chmod(0o666)
    with pytest.raises(errors.InvalidKey, match="written by others"):
        dovetail.load(path)


@needs_compiler
def test_a_signature_covers_everything(code, tmp_path):
    path, key = tmp_path / "m.dvt", new_key()
    container.write_file(path, [artifact(code)])
    sign_file(path, key)
    signed = path.read_bytes()
    with path.open("rb") as file:
        header = container.read_header(file)
    keys = [_native.public_key(key)]
    assert open_native(signed, keys=keys).signature() == 1
    for entry in header.entries:  # change each section, with its digests put right
        sections = []
        for e in header.entries:
            body = bytearray(signed[e.offset : e.offset + e.size])
            if e is entry:
                if not body:
                    break
                body[len(body) // 2] ^= 1
            sections.append(container.Section(e.kind, [bytes(body)], e.required))
        else:
            layout, ordered = container.lay_out(sections, header.features)
            with pytest.raises(errors.InvalidArtifact):
                open_native(b"".join(container.chunks(layout, ordered)), keys=keys)
    layout, ordered = container.lay_out(
        [container.Section(e.kind, [signed[e.offset : e.offset + e.size]], e.required)
         for e in header.entries], header.features, version=(1, 0))  # fmt: skip
    with pytest.raises(errors.InvalidArtifact, match="signature"):
        open_native(b"".join(container.chunks(layout, ordered)), keys=keys)


@needs_compiler
def test_the_best_object_for_this_processor_is_taken(tmp_path, code):
    good = compiled(tmp_path)
    for objects in ([(1, good), (9, b"\x7fELF nonsense")], [(1, good)]):
        native = open_native(artifact(code_section(*objects)), flags=TRUST)
        assert Loaded(native)(X).tolist() == WEIGHED
    with pytest.raises(errors.UnsupportedArtifact, match="cannot run on this machine"):
        open_native(artifact(code_section((9, good))), flags=TRUST)


@needs_compiler
def test_all_objects_for_this_processor_are_loaded(tmp_path):
    """Kernels may come from several; the first that has one counts, another level never does."""
    weigh = compiled(tmp_path)
    other = compiled(tmp_path, SOURCE.replace("weigh", "other"))
    code = code_section((1, other), (1, weigh), (1, other))
    for name in ("weigh", "other"):
        native = open_native(artifact(code, name, name), flags=TRUST)
        assert Loaded(native)(X).tolist() == WEIGHED
    level = _native.processor()
    if level > 1:
        with pytest.raises(errors.InvalidArtifact, match="the code has no function other"):
            open_native(
                artifact(code_section((1, other), (level, weigh)), "other", "other"), flags=TRUST
            )
    with pytest.raises(errors.InvalidArtifact, match="not an ELF"):
        open_native(artifact(code_section((1, weigh), (1, b"\x7fELF nonsense"))), flags=TRUST)


@needs_compiler
@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("static int calls; int weigh(void) { return ++calls; }", "writable data"),
        ("int weigh(void) { return 0; } int other = 3;", "writable data"),
        ("int system(const char *); int weigh(void) { return system(0); }", "calls system"),
    ],
)
def test_code_that_wants_too_much_is_refused(tmp_path, source, problem):
    data = artifact(code_section((1, compiled(tmp_path, source))))
    with pytest.raises((errors.InvalidArtifact, errors.UnsupportedArtifact)) as error:
        open_native(data, flags=TRUST)
    assert problem in str(error.value) or "cannot run" in str(error.value)


@needs_compiler
def test_a_missing_function_is_named(code):
    with pytest.raises(errors.InvalidArtifact, match="no function weight_of"):
        open_native(artifact(code, symbol="weight_of"), flags=TRUST)


@needs_compiler
def test_damaged_objects_are_refused(tmp_path):
    import random

    rng, good = random.Random(0), compiled(tmp_path)
    for _ in range(400):
        data = bytearray(good)
        for _ in range(rng.randrange(1, 6)):  # headers and tables, not the instructions
            at = rng.choice([rng.randrange(64), rng.randrange(len(data) * 2 // 3, len(data))])
            data[at] = rng.randrange(256)
        with contextlib.suppress(errors.DovetailError):
            open_native(artifact(code_section((1, bytes(data)))), flags=TRUST)
    for size in range(0, len(good), 7):
        with contextlib.suppress(errors.DovetailError):
            open_native(artifact(code_section((1, good[:size]))), flags=TRUST)


@needs_compiler
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs /proc")
def test_no_page_is_writable_and_executable(code):
    def writable_and_executable():  # other libraries of this process may have such pages
        lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
        return {line[0] for line in lines if "w" in line[1] and "x" in line[1]}

    before = writable_and_executable()
    native = open_native(artifact(code), flags=TRUST)
    assert writable_and_executable() <= before
    assert Loaded(native)(X).tolist() == WEIGHED
