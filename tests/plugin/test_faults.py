"""What goes wrong in a plug-in: a typed error that names it, and a process that goes on."""

import gc
import sys
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from torch import nn

from dovetail import errors, registry
from dovetail.backends.plugin.backend import plugin_backend
from tests.plugin.conftest import compile_library

pytestmark = pytest.mark.e2e
SMALL = Path(__file__).with_name("small.c")


@pytest.fixture
def small(compiler, tmp_path):
    """Builds small.c with macros that break it."""

    def build(*macros, **kwargs):
        flags = [f"-D{macro}" for macro in macros]
        return compile_library(tmp_path / "libsmall.so", SMALL, flags=flags, **kwargs)

    return build


def relu(path):
    """relu of a plug-in's backend."""
    with registry.registered_backend(plugin_backend(path)):
        x = torch.randn(3, 5)
        return torch.compile(torch.relu, backend="small")(x), torch.relu(x)


# ---- loading -----------------------------------------------------------------------------------


def test_the_smallest_plugin_works(small):
    torch.testing.assert_close(*relu(small()))


def test_a_library_is_known_by_what_was_loaded(small):
    """Not by the file that has taken its place since."""
    path = small()
    backend = plugin_backend(path)()
    loaded = sha256(path.read_bytes()).hexdigest()
    path.unlink()
    path.write_bytes(b"something else")
    assert loaded[:16] in backend.fingerprint()


def test_a_missing_library(tmp_path):
    with pytest.raises(errors.PluginNotFound, match=r"libnothing\.so cannot be opened: No such"):
        plugin_backend(tmp_path / "libnothing.so")


def test_a_file_that_is_no_library(tmp_path):
    path = tmp_path / "libtext.so"
    path.write_text("not a library")
    with pytest.raises(errors.InvalidPlugin, match=r"libtext\.so is not a library that loads"):
        plugin_backend(path)
    with pytest.raises(errors.InvalidPlugin, match="is not a library"):
        plugin_backend(tmp_path)


@pytest.mark.parametrize(
    ("macro", "error", "message"),
    [
        ("NO_SYMBOL", errors.InvalidPlugin, "does not export dovetail_plugin_query"),
        ("NO_TABLE", errors.InvalidPlugin, "gives no table of functions"),
        ("SMALL_TABLE", errors.InvalidPlugin, "a table of 24 bytes, and at least 152"),
        ("HUGE_TABLE", errors.InvalidPlugin, "a table of 4294967288 bytes"),
        ("NO_EXECUTE", errors.InvalidPlugin, "has no function execute"),
        ("TOO_OLD", errors.IncompatiblePlugin, "too old: built for plug-in ABI 0.0"),
        ("TOO_NEW", errors.IncompatiblePlugin, "too new: built for plug-in ABI 2.0"),
        ("WANTS_NEWER_HOST", errors.IncompatiblePlugin, "needs another plug-in ABI"),
        ("OVERWRITES_INFO", errors.InvalidPlugin, "wrote beyond the struct_size of dvp_info"),
        ("NO_NAME", errors.InvalidPlugin, "gives no name"),
        ("BAD_NAME", errors.InvalidPlugin, "not a usable backend name"),
    ],
)
def test_a_library_that_is_refused(small, macro, error, message):
    path = small(macro)
    with pytest.raises(error, match=message) as raised:
        plugin_backend(path)
    assert path.name in str(raised.value)


@pytest.mark.parametrize(
    ("macro", "error", "message"),
    [
        ("OVERWRITES_ANSWER", errors.BackendContract, "beyond the struct_size of dvp_answer"),
        ("WRONG_ANSWER_SIZE", errors.BackendContract, "beyond the struct_size .* aten.relu"),
        ("NO_KERNEL", errors.BackendContract, "'small' names no kernel for aten.relu.default"),
        ("KERNEL_GONE", errors.PluginFailed, "'small'.*kernel 'relu'.*this build has no relu"),
        ("KERNEL_FAILS", errors.PluginFailed, "'small' failed in the kernel 'relu' of aten.relu"),
        ("NO_MEMORY", errors.OutOfMemory, "'small' failed in buffer_alloc"),
    ],
)
def test_a_plugin_that_fails_when_it_is_used(small, macro, error, message):
    path = small(macro)
    with pytest.raises(error, match=message):
        relu(path)


def test_a_question_that_fails_leaves_the_operation_on_the_host(small):
    from dovetail import history

    torch.testing.assert_close(*relu(small("QUERY_FAILS")))
    (graph,) = history.recent()[-1].graphs
    ((name, why),) = graph.verdicts[0].refusals
    assert name == "small"
    assert "the compiler service does not answer" in why


def test_a_device_that_cannot_be_opened(small):
    path = small("NO_DEVICE")
    with pytest.raises(errors.BackendUnavailable, match=r"'small' .* no device is plugged in"):
        relu(path)


# ---- running -----------------------------------------------------------------------------------


@pytest.fixture
def model(accel):
    layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
    compiled = torch.compile(layers, backend=accel.name)
    x = torch.randn(3, 4)

    def run():
        with torch.no_grad():
            torch.testing.assert_close(compiled(x), layers(x))

    return run


@pytest.mark.parametrize(("at", "kernel"), [(1, "matmul"), (2, "relu"), (3, "matmul")])
def test_a_kernel_that_fails(accel, model, at, kernel):
    model()
    accel.native.set("fail.at", at)
    with pytest.raises(errors.PluginFailed, match=f"'accel_c' .* '{kernel}' .* fault was injected"):
        model()
    model()


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_device_that_is_lost(accel, model, at):
    model()
    accel.native.set("lose.at", at)
    with pytest.raises(errors.DeviceLost, match=r"'accel_c' .* the device was lost"):
        model()
    accel.log()
    model()  # on a device opened anew, which gets everything again
    assert accel.copies() == (5, 1)
    model()
    assert accel.copies() == (1, 1)


def test_a_device_lost_at_the_first_run(accel, model, monkeypatch):
    monkeypatch.setenv("ACCEL_LOSE_AT", "1")
    with pytest.raises(errors.DeviceLost):
        model()
    monkeypatch.delenv("ACCEL_LOSE_AT")
    model()


def test_a_plugin_that_leaks(accel, model):
    model()
    accel.native.set("leak", 1)
    torch.compiler.reset()
    gc.collect()
    with pytest.warns(errors.PluginLeak, match="'accel_c' .* leaks: .* bytes"):
        accel.library.close()


def test_a_plugin_that_does_not_leak_is_not_accused(accel, model):
    model()
    torch.compiler.reset()
    gc.collect()
    accel.library.close()  # a warning would be an error here


def test_memory_beyond_a_buffer_is_refused(accel):
    from dovetail import _native

    x = torch.randn(4)
    description = (
        "aten.relu.default",
        ((2, 32, (4,), (1,), -1, 0),),
        ((2, 32, (8,), (1,), -1, 64),),
        (),
    )
    step = (description, "relu", 1, 0)
    program = _native.PluginProgram(accel.native, (step,), ((0, 16),), (), 64, 0)
    with pytest.raises(errors.PluginFailed, match=r"relu.*bytes 64 to 96 of a buffer of 64"):
        program.run((), (x.data_ptr(),), ())


def test_wrong_arguments_of_the_native_types(accel):
    from dovetail import _native

    for steps in [((),), (("x",),), ((("op", (), (), ()), "k", 1),)]:
        with pytest.raises((TypeError, ValueError)):
            _native.PluginProgram(accel.native, steps, (), (), 0, 0)
    tensor = (2, 32, (4,), (1,), 3, 0)
    step = (("aten.relu.default", (tensor,), (), ()), "relu", 1, 0)
    with pytest.raises(ValueError, match="slot"):
        _native.PluginProgram(accel.native, (step,), (), (), 0, 1)
    program = _native.PluginProgram(accel.native, (), (), (), 0, 1)
    for slots in [(), (3,)]:
        with pytest.raises((TypeError, ValueError)):
            program.run(slots, (), ())
    with pytest.raises(errors.PluginFailed, match="no attribute 'nonsense'"):
        accel.native.get("nonsense")


def test_a_process_that_never_closed_ends_well(accel_path, tmp_path):
    import subprocess

    script = f"""
import torch, dovetail
dovetail.load_plugin({str(accel_path)!r})
dovetail.load_plugin({str(accel_path)!r})  # again: the same
assert "accel_c" in dovetail.list_backends()
layer = torch.nn.Linear(4, 4)
x = torch.randn(2, 4)
torch.testing.assert_close(torch.compile(layer, backend="accel_c")(x), layer(x))
print(dovetail.backend_info("accel_c").available)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
