"""Vendors' blobs in files, and what a file may ask of a plug-in that it does not have."""

import struct

import numpy as np
import pytest
import torch
from torch import nn

import dovetail
from dovetail import Backend, Blob, Support, _native, errors, registry
from dovetail.backends.plugin.backend import plugin_backend
from dovetail.cli.inspect import describe
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.runtime.loaded import TRUST, open_native
from tests.artifact.files import file_bytes
from tests.native.seeds import seeds
from tests.plugin.conftest import compile_library
from tests.plugin.test_artifact import run_script
from tests.plugin.test_faults import SMALL, small

pytestmark = pytest.mark.e2e
__all__ = ["small"]
X = np.array([-1, 2, -3, 4], "float32")
KEY = bytes(range(32))

ON_ACCEL = """\
program @on_accel
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[4]
temporary %d: float32[4] on accel_c
temporary %r: float32[4] on accel_c
output %y: float32[4]
copy %d = %x
launch %r = accel_c:relu@1 aten.relu.default(%d) {}
copy %y = %r
return %y
"""
BLOB = """\
program @blob
device small {"version": "1", "abi": "1.0", "needs": {}}
input %x: float32[4]
temporary %d: float32[4] on small
temporary %r: float32[4] on small
output %y: float32[4]
copy %d = %x
blob %r = small:relus [{"buffer": "d"}]
copy %y = %r
return %y
"""
CODE = {"relus": b"smallxx\0" + struct.pack("<q", 4)}


def opened(text, path, **options):
    return open_native(file_bytes(text, **options), flags=TRUST, plugins=[path])


# ---- what a file asks of a plug-in -------------------------------------------------------------


def test_a_program_of_text(accel, accel_path):
    (y,) = opened(ON_ACCEL, accel_path)(X)
    np.testing.assert_array_equal(y, np.maximum(X, 0))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"abi": "1.0"', '"abi": "1.9"', r"'accel_c' is too old .* ABI 1\.\d, and 1\.9 is needed"),
        ('"abi": "1.0"', '"abi": "2.0"', r"too old .* 2\.0 is needed; upgrade the plug-in"),
        ('"abi": "1.0"', '"abi": "0.3"', r"too new .* 0\.3 is needed; export the model again"),
        ("relu@1 ", "relu@7 ", r"'accel_c' \(version '1.0'\) has no kernel 'relu' of version 7"),
        ("relu@1 ", "gelu@1 ", r"no kernel 'gelu' of version 1 or later for aten.relu.default"),
        ('"needs": {}', '"needs": {"memory.limit": 8}', r"has memory.limit 0, .* needs 8"),
    ],
)
def test_a_plugin_that_does_not_serve(accel, accel_path, old, new, message):
    assert old in ON_ACCEL
    with pytest.raises(errors.IncompatiblePlugin, match=message):
        opened(ON_ACCEL.replace(old, new), accel_path)


def test_an_attribute_that_the_device_does_not_have(accel, accel_path):
    text = ON_ACCEL.replace('"needs": {}', '"needs": {"cores": 8}')
    with pytest.raises(errors.PluginFailed, match="there is no attribute 'cores'"):
        opened(text, accel_path)


def test_shapes_that_the_plugin_refuses(accel, accel_path):
    text = ON_ACCEL.replace("%r: float32[4]", "%r: float32[2]").replace(
        "%y: float32[4]", "%y: float32[2]"
    )
    with pytest.raises(errors.IncompatiblePlugin, match=r"refuses aten.relu.*do not fit together"):
        opened(text, accel_path)(X)


def test_a_plugin_of_another_major_version_is_refused_when_it_is_named(small):
    with pytest.raises(errors.IncompatiblePlugin, match="too new"):
        opened(BLOB, small("TOO_NEW"), blobs=CODE)


def test_a_path_that_is_no_plugin(tmp_path):
    with pytest.raises(errors.PluginNotFound, match=r"libnothing\.so cannot be opened"):
        opened(ON_ACCEL, tmp_path / "libnothing.so")


def test_the_seeds_of_the_fuzzer_run(accel_path, small):
    files = seeds()
    x = np.array([[1, 2, 3, 4], [-9, 2, -1, 0]], "float32")
    y, z = open_native(files["launches"], plugins=[accel_path])(x)
    assert (y.shape, z.shape) == ((4, 2), (2, 4))
    assert open_native(files["norm"], plugins=[accel_path])(x)[0].shape == (2, 4)
    refused = pytest.raises(errors.UnsupportedArtifact, match="not the vendor's code")
    with registry.registered_backend(Vendor), refused:
        open_native(files["blobs"], flags=TRUST, plugins=[small("COMPILES")])


# ---- blobs of plug-ins -------------------------------------------------------------------------


@pytest.mark.parametrize("state", [0, 1])
def test_a_blob_runs_over_the_abi(small, monkeypatch, state):
    monkeypatch.setenv("SMALL_BLOB_STATE", str(state))
    native = opened(BLOB, small("COMPILES"), blobs=CODE)
    for _ in range(2):
        np.testing.assert_array_equal(native(X)[0], np.maximum(X, 0))


def test_a_blob_that_would_better_be_compiled_again(small, monkeypatch):
    monkeypatch.setenv("SMALL_BLOB_STATE", "2")
    with pytest.warns(errors.FallbackWarning, match="'small' would run the model better"):
        native = opened(BLOB, small("COMPILES"), blobs=CODE)
    np.testing.assert_array_equal(native(X)[0], np.maximum(X, 0))


def test_a_blob_that_the_plugin_cannot_run(small, monkeypatch):
    path = small("COMPILES")
    monkeypatch.setenv("SMALL_BLOB_STATE", "3")
    message = r"'small' \(version '1'\) cannot run the compiled segment.*export the model again"
    with pytest.raises(errors.IncompatiblePlugin, match=message):
        opened(BLOB, path, blobs=CODE)
    monkeypatch.delenv("SMALL_BLOB_STATE")
    with pytest.raises(errors.IncompatiblePlugin, match=message):
        opened(BLOB, path, blobs={"relus": b"something else"})


def test_a_plugin_that_compiles_nothing_refuses_blobs(compiler, tmp_path):
    path = compile_library(tmp_path / "libsmall.so", SMALL)
    with pytest.raises(errors.IncompatiblePlugin, match="cannot run the compiled segment"):
        opened(BLOB, path, blobs=CODE)


class Relus(nn.Module):
    def forward(self, x):
        return torch.relu(torch.relu(x).view(4, 4))


def test_a_segment_that_a_plugin_compiled_is_saved_as_its_blob(small, tmp_path):
    backend = plugin_backend(small("COMPILES"))
    path, x = tmp_path / "model.dvt", torch.randn(16)
    dovetail.export(Relus(), (x,), backend=backend).save(path)
    with pytest.raises(errors.UntrustedArtifact, match="'small' compiled"):
        dovetail.load(path)
    run = dovetail.load(path, trust=True)
    torch.testing.assert_close(run(x), Relus()(x))
    shown = describe(str(path))
    assert shown["blobs"] == [{"owner": "small", "on_device": True, "bytes": 16}]
    assert shown["launches"] == {}


# ---- blobs of backends in Python ---------------------------------------------------------------


class Vendor(Backend):
    """Compiles a segment to bytes; what it loads is the interpreter of those."""

    name = "vendor"

    def fingerprint(self):
        return "vendor 1"

    def supports(self, call):
        return Support.yes() if call.op.startswith("aten.relu") else Support.no("only relu")

    def compile(self, segment):
        return Blob(b"vendor" + segment_to_bytes(segment))

    def load(self, blob):
        from dovetail.runtime.interpreter import Interpreter

        if not blob.data.startswith(b"vendor"):
            raise errors.UnsupportedGraph("not the vendor's code")
        return Interpreter(segment_from_bytes(blob.data[6:]))


class Mixed(nn.Module):
    def forward(self, x):
        y = torch.relu(x)
        return torch.sin(y), torch.relu(y * 2)


def test_the_code_of_a_backend_in_python(tmp_path):
    path = tmp_path / "model.dvt"
    rows = torch.export.Dim("rows", min=1, max=9)
    with registry.registered_backend(Vendor):
        made = dovetail.export(
            Mixed(), (torch.randn(3, 4),), backend="vendor", dynamic_shapes=({0: rows},)
        )
        made.save(path)
        run = dovetail.load(path, trust=True)
        for count in (3, 5):
            x = torch.randn(count, 4)
            torch.testing.assert_close(run(x), Mixed()(x))
    shown = describe(str(path))
    assert {b["owner"] for b in shown["blobs"]} == {"vendor"}
    assert not any(b["on_device"] for b in shown["blobs"])
    with pytest.raises(errors.UnsupportedArtifact, match=r"backend 'vendor'.*install the package"):
        dovetail.load(path, trust=True)
    done = run_script(
        f"import sys; sys.modules['torch'] = None\nimport dovetail\ndovetail.load({str(path)!r})"
    )
    assert "UnsupportedArtifact: the artifact" in done.stderr


def test_a_model_that_onnx_runtime_runs(tmp_path):
    for package in ("onnx", "onnxruntime"):
        pytest.importorskip(package)
    path, x = tmp_path / "model.dvt", torch.randn(3, 8)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    dovetail.export(module, (x,), backend="onnxruntime").save(path)
    assert [b["owner"] for b in describe(str(path))["blobs"]] == ["onnxruntime"]
    np.save(tmp_path / "x.npy", x.numpy())
    files = [str(tmp_path / name) for name in ("x.npy", "y.npy")]
    done = run_script(
        "import numpy as np, torch, dovetail\n"
        f"x = torch.from_numpy(np.load({files[0]!r}))\n"
        f"np.save({files[1]!r}, dovetail.load({str(path)!r}, trust=True)(x).numpy())"
    )
    assert done.returncode == 0, done.stderr
    found = torch.from_numpy(np.load(tmp_path / "y.npy"))
    torch.testing.assert_close(found, module(x).detach(), rtol=1e-4, atol=1e-5)


CLOSED = """\
program @closed
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[4]
temporary %d: float32[4] on accel_c
temporary %r: float32[4] on accel_c
temporary %s: float32[4] on accel_c
temporary %h: float32[4]
host %v: float32[4]
output %y: float32[4]
copy %d = %x
launch %r = accel_c:relu@1 aten.relu.default(%d) {}
copy %h = %r
blob %v = vendor:code [{"buffer": "h"}]
launch %s = accel_c:add@1 aten.add.Tensor(%r, %r) {"alpha": 1}
copy %y = %s
return %y
"""


def test_a_device_that_is_closed_while_the_host_has_its_turn(accel, accel_path):
    """What lay on it is gone: an error, not whatever the new device holds."""
    closes = []

    class Closer(Vendor):
        def load(self, blob):
            def run(inputs):
                for _ in range(len(closes)):
                    closes.pop()
                    accel.library.close()
                return [torch.clone(inputs[0])]

            return run

    with registry.registered_backend(Closer):
        native = open_native(
            file_bytes(CLOSED, blobs={"code": b""}), flags=TRUST, plugins=[accel_path]
        )
    x = torch.randn(4)
    for _ in range(2):
        torch.testing.assert_close(native(x)[0], 2 * torch.relu(x))
        closes.append(True)
        with pytest.raises(errors.DeviceLost, match="closed or lost while the program ran"):
            native(x)
    torch.testing.assert_close(native(x)[0], 2 * torch.relu(x))


def test_code_that_its_backend_refuses():
    text = BLOB.replace("temporary %r: float32[4] on small", "host %r: float32[4]")
    text = text.replace("temporary %d: float32[4] on small\n", "").replace("copy %d = %x\n", "")
    text = "\n".join(line for line in text.splitlines() if not line.startswith("device"))
    text = text.replace("small:relus", "vendor:relus").replace('"d"', '"x"')
    refused = pytest.raises(errors.UnsupportedArtifact, match="not the vendor's code")
    with registry.registered_backend(Vendor), refused:
        open_native(file_bytes(text, blobs={"relus": b"other"}), flags=TRUST)


def test_code_of_strangers_reaches_no_backend(tmp_path):
    """Not even one of our own, which would trust a file in a file."""
    loaded = []

    class Curious(Vendor):
        def load(self, blob):
            loaded.append(blob)
            return super().load(blob)

    path, x = tmp_path / "model.dvt", torch.randn(3, 4)
    with registry.registered_backend(Curious):
        made = dovetail.export(Mixed(), (x,), backend="vendor")
        loaded.clear()
        made.save(path)
        with pytest.raises(errors.UntrustedArtifact, match=r"'vendor' compiled.*sign it"):
            dovetail.load(path)
        assert not loaded
        made.save(path, key=KEY)
        with pytest.raises(errors.UntrustedArtifact):
            dovetail.load(path, trusted_keys=[bytes(32)])
        assert not loaded
        run = dovetail.load(path, trusted_keys=[_native.public_key(KEY)])
        assert loaded
        torch.testing.assert_close(run(x), Mixed()(x))
