"""Artifacts with accelerator segments: saved, loaded in a new process, run over the plug-in ABI."""

import gc
import json
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from torch import nn

import dovetail
from dovetail import errors, history
from dovetail.artifact.save import pack
from dovetail.cli.inspect import describe
from dovetail.ir.memory import plan_memory
from dovetail.ir.program_text import parse_program
from dovetail.runtime.loaded import open_native
from dovetail.testing.program_reference import run_program
from tests.artifact.files import contents_as_tensors, file_bytes
from tests.plugin.test_accel import ResidualMLP, claimed, step

pytestmark = pytest.mark.e2e

# A process that cannot import torch: loads a file, runs it on each input, writes the results.
WITHOUT_TORCH = """
import json, sys
sys.modules["torch"] = None
import numpy as np, dovetail
path, plugins, inputs, outputs = json.loads(sys.argv[1])
run = dovetail.load(path, plugins=plugins)
for source, target in zip(inputs, outputs):
    np.save(target, run(np.load(source)))
assert not any(name.startswith("torch.") for name in sys.modules)
"""


def model():
    torch.manual_seed(0)
    layers = [nn.Linear(8, 16), nn.ReLU(), nn.LayerNorm(16), nn.Linear(16, 4), nn.Softmax(-1)]
    return nn.Sequential(*layers).eval()


def dynamic_model():
    torch.manual_seed(0)
    return nn.Sequential(ResidualMLP(8), nn.ReLU(), nn.Softmax(-1)).eval()


def in_new_process(tmp_path, path, plugins, tensors):
    """Results of calling a file with each of the tensors, in one process without torch."""
    inputs = [str(tmp_path / f"x{n}.npy") for n in range(len(tensors))]
    outputs = [str(tmp_path / f"y{n}.npy") for n in range(len(tensors))]
    for name, tensor in zip(inputs, tensors, strict=True):
        np.save(name, tensor.numpy())
    arguments = json.dumps([str(path), list(map(str, plugins)), inputs, outputs])
    command = [sys.executable, "-c", WITHOUT_TORCH, arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return [torch.from_numpy(np.load(name)) for name in outputs]


@pytest.fixture
def saved(accel, tmp_path):
    """Exports a model to a file."""

    def save(module, *args, **options):
        path = tmp_path / "model.dvt"
        dovetail.export(module, args, backend=accel.name, **options).save(path)
        accel.log()
        return path

    return save


# ---- what must hold ----------------------------------------------------------------------------


def test_a_new_process_without_torch_runs_it_over_the_abi(accel, accel_path, saved, tmp_path):
    module, x = model(), torch.randn(3, 8)
    path = saved(module, x)
    claims = claimed(history.recent()[-1].graphs)
    tensors = [torch.randn(3, 8) for _ in range(3)]
    found = in_new_process(tmp_path, path, [accel_path], tensors)
    torch.testing.assert_close(found, [module(t).detach() for t in tensors])
    log = accel.log()
    ran = Counter(line[2] for line in log if line[0] == "kernel")
    assert ran == Counter({op: 3 * count for op, count in claims.items()})
    launched = Counter(line[1].split("@")[0] for line in log if line[0] == "kernel")
    shown = describe(str(path))
    assert launched == Counter(
        {k.split(":")[1].split("@")[0]: 3 * n for k, n in shown["launches"].items()}
    )
    assert (shown["kernels"], shown["host_ops"]) == ({}, [])
    sent = [int(line[1]) for line in log if line[0] == "h2d"]
    weights = sorted(p.numel() * 4 for p in module.parameters())
    assert sorted(sent[: len(weights)]) == weights  # once, at the first call
    assert sent[len(weights) :] == [3 * 8 * 4] * 3  # then the input of each call
    assert [int(line[1]) for line in log if line[0] == "d2h"] == [3 * 4 * 4] * 3
    assert ["close", "with", "0", "bytes", "in", "use"] in log


def test_a_dynamic_batch_size(accel, accel_path, saved, tmp_path):
    module = dynamic_model()
    batch = torch.export.Dim("batch", min=1, max=64)
    path = saved(module, torch.randn(4, 8), dynamic_shapes=({0: batch},))
    tensors = [torch.randn(rows, 8) for rows in (2, 7, 2, 1)]
    found = in_new_process(tmp_path, path, [accel_path], tensors)
    torch.testing.assert_close(found, [module(t).detach() for t in tensors])
    sent = Counter(int(line[1]) for line in accel.log() if line[0] == "h2d")
    for parameter in module.parameters():
        assert sent[parameter.numel() * 4] >= 1
    total = sum(p.numel() * 4 for p in module.parameters()) + sum(t.numel() * 4 for t in tensors)
    assert sum(size * count for size, count in sent.items()) == total


def test_the_program_means_what_the_model_computes(accel):
    module, x = model(), torch.randn(3, 8)
    artifact = dovetail.export(module, (x,), backend=accel.name)
    package = pack(artifact.interface, artifact.linked)
    assert parse_program(str(package.program)) == package.program
    (found,) = run_program(package.program, [x], contents_as_tensors(package))
    torch.testing.assert_close(found, module(x).detach())


class Views(nn.Module):
    """Views on both sides of the border, repeated elements, a value that both sides need."""

    def forward(self, a, b):
        y = torch.bmm(a.transpose(1, 2), b[:, 1:4])
        z = torch.relu(y[:, 1].unsqueeze(1).expand(-1, 3, -1))
        return (z * y).permute(2, 0, 1), torch.softmax(y + y.mT, 1), a.view(-1), torch.sin(y) + y


@pytest.mark.parametrize("expanded", [False, True])
def test_views_strides_and_host_operations(accel, saved, expanded):
    a, b = torch.randn(2, 3, 3), torch.randn(2, 5, 3)
    if expanded:
        b = torch.randn(1, 5, 3).expand(2, 5, 3)
    run = dovetail.load(saved(Views(), a, b))
    for _ in range(2):
        torch.testing.assert_close(run(a, b), Views()(a, b))
    assert accel.ran()["aten.bmm.default"] == 2


def test_host_operations_need_torch(accel, accel_path, saved):
    module, x = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)).eval(), torch.randn(2, 4)
    path = saved(module, x)
    torch.testing.assert_close(dovetail.load(path)(x), module(x).detach())
    assert accel.ran() == Counter({"aten.addmm.default": 2})
    script = (
        "import sys; sys.modules['torch'] = None\nimport dovetail\n"
        f"dovetail.load({str(path)!r}, plugins=[{str(accel_path)!r}])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert "UnsupportedArtifact: the artifact calls PyTorch for aten.tanh.default" in done.stderr


def test_what_the_device_cannot_runs_in_the_runtimes_own_kernels(accel, accel_path, tmp_path):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)).eval()
    path, x = tmp_path / "model.dvt", torch.randn(3, 8)
    options = {"backends": [accel.name, "portable"]}
    dovetail.export(module, (x,), options=options).save(path)
    shown = describe(str(path))
    assert (set(shown["kernels"]), shown["host_ops"]) == ({"gelu@1"}, [])
    accel.log()
    (found,) = in_new_process(tmp_path, path, [accel_path], [x])
    torch.testing.assert_close(found, module(x).detach())
    assert accel.ran() == Counter({"aten.addmm.default": 2})


class Counting(nn.Module):
    """State that is kept between calls, read and computed by the device."""

    def __init__(self):
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x):
        self.total.add_(x)
        return torch.relu(self.total)


def test_state_that_the_device_computes(accel, saved):
    run, x = dovetail.load(saved(Counting(), torch.randn(3))), torch.ones(3)
    torch.testing.assert_close([run(x), run(x)], [x, 2 * x])
    assert accel.ran()["aten.add.Tensor"] == 2


def test_threads(accel, saved):
    from concurrent.futures import ThreadPoolExecutor

    module = ResidualMLP().eval()
    run = dovetail.load(saved(module, torch.randn(4, 16)))
    inputs = [torch.randn(4, 16) for _ in range(32)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(run, inputs))
    torch.testing.assert_close(found, [module(x).detach() for x in inputs])


def test_inspect_names_plugin_kernels_and_memory(accel, saved):
    shown = describe(str(saved(model(), torch.randn(3, 8))))
    assert shown["devices"] == [{"plugin": "accel_c", "version": "1.0", "abi": "1.0"}]
    assert shown["launches"]["accel_c:matmul@1"] == 2
    assert "accel_c: arena" in shown["memory"]
    from dovetail.cli.inspect import _summary

    assert "runs on the plug-in accel_c: made with version 1.0, ABI 1.0" in _summary(shown)


def test_memory_is_given_back_with_the_artifact(accel, saved):
    run = dovetail.load(saved(model(), torch.randn(3, 8)))
    run(torch.randn(3, 8))
    assert accel.native.get("memory.used") > 0
    del run
    gc.collect()
    assert accel.native.get("memory.used") == 0


@pytest.fixture
def late(accel, monkeypatch):
    """The device does nothing before it is waited for: whoever forgets to wait gets nonsense."""
    monkeypatch.setenv("ACCEL_ASYNC", "1")
    accel.library.close()
    yield accel
    accel.library.close()


@pytest.mark.parametrize("make", [model, dynamic_model])
def test_a_device_that_works_late(late, saved, make):
    module = make()
    run = dovetail.load(saved(module, torch.randn(3, 8)))
    for _ in range(3):
        x = torch.randn(3, 8)
        torch.testing.assert_close(run(x), module(x).detach())
    late.native.set("fail.at", 2)
    with pytest.raises(errors.PluginFailed, match=r"'accel_c'.*a fault was injected at"):
        run(x)
    torch.testing.assert_close(run(x), module(x).detach())


def test_a_late_device_with_the_host_in_between(late, saved):
    a, b = torch.randn(2, 3, 3), torch.randn(2, 5, 3)
    run = dovetail.load(saved(Views(), a, b))
    for _ in range(2):
        torch.testing.assert_close(run(a, b), Views()(a, b))
    state = dovetail.load(saved(Counting(), torch.randn(3)))
    x = torch.ones(3)
    torch.testing.assert_close([state(x), state(x)], [x, 2 * x])


# What is fetched lies where the next thing is sent: the copy must wait for the one before it.
REUSED = """\
program @reused
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[4]
input %p: float32[4]
input %q: float32[4]
temporary %d: float32[4] on accel_c
temporary %r: float32[4] on accel_c
temporary %e: float32[4] on accel_c
temporary %g: float32[4] on accel_c
temporary %s: float32[4] on accel_c
output %y: float32[4]
output %z: float32[4]
copy %d = %x
launch %r = accel_c:relu@1 aten.relu.default(%d) {}
copy %e = %p
copy %y = %r
copy %g = %q
launch %s = accel_c:add@1 aten.add.Tensor(%e, %g) {"alpha": 1}
copy %z = %s
return %y, %z
"""


def test_a_late_device_whose_memory_is_used_again(late, accel_path):
    program = parse_program(REUSED)
    offsets = plan_memory(program, device="accel_c").offsets
    assert offsets["r"] == offsets["g"]
    native = open_native(file_bytes(REUSED), plugins=[accel_path])
    x, p, q = (torch.randn(4) for _ in range(3))
    torch.testing.assert_close(native(x, p, q), [torch.relu(x), p + q])


def test_a_late_device_under_torch_compile(late):
    module, x = ResidualMLP(), torch.randn(4, 16)
    compiled = torch.compile(module, backend=late.name)
    torch.testing.assert_close(step(compiled, x), step(module, x))


# ---- finding the plug-in -----------------------------------------------------------------------


def run_script(script, *arguments):
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_a_missing_plugin(saved):
    path = saved(model(), torch.randn(3, 8))
    done = run_script(f"import dovetail; dovetail.load({str(path)!r})")
    assert "PluginNotFound: the artifact runs on the plug-in 'accel_c'" in done.stderr
    assert "plugins=[" in done.stderr


def test_a_plugin_that_is_loaded_already_is_found(accel, accel_path, saved):
    path = saved(model(), torch.randn(3, 8))
    script = f"""
import sys
sys.modules["torch"] = None
import dovetail
dovetail.load_plugin({str(accel_path)!r})
print(dovetail.load({str(path)!r}))
"""
    done = run_script(script)
    assert done.stdout == "<dovetail artifact 'Sequential'>\n", done.stderr


def test_a_plugin_that_a_package_brings_needs_trust(accel_path, saved, tmp_path):
    """A name in a file imports no package, unless the file is trusted or the user was first."""
    path = saved(model(), torch.randn(3, 8))
    site = tmp_path / "site"
    (site / "accel_package").mkdir(parents=True)
    (site / "accel_package" / "__init__.py").write_text(
        "from dovetail import PluginBackend\n"
        "class Accel(PluginBackend):\n"
        f"    name = 'accel_c'\n    library = {str(accel_path)!r}\n"
    )
    metadata = site / "accel_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: accel-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[dovetail.backends]\naccel_c = accel_package:Accel\n"
    )
    script = f"""
import sys
sys.modules["torch"] = None
sys.path.insert(0, {str(site)!r})
import numpy as np, dovetail
try:
    dovetail.load({str(path)!r})
except dovetail.errors.UntrustedArtifact as error:
    print(error)
print("accel_package" in sys.modules)
x = np.zeros((3, 8), "float32")
if sys.argv[1:] == ["given"]:
    print(dovetail.load({str(path)!r}, plugins=[{str(accel_path)!r}])(x).shape)
elif sys.argv[1:] == ["used"]:
    dovetail.get_backend("accel_c")
    print(dovetail.load({str(path)!r})(x).shape)
else:
    print(dovetail.load({str(path)!r}, trust=True)(x).shape)
"""
    for how in ("given", "used", "trust"):
        done = run_script(script, how)
        assert len(done.stdout.splitlines()) == 3, done.stderr
        said, imported, shape = done.stdout.splitlines()
        assert "'accel_c'" in said
        assert "get_backend('accel_c')" in said
        assert "trust=True" in said
        assert (imported, shape) == ("False", "(3, 4)"), done.stderr


def test_the_command_line_takes_plugins(accel_path, saved, tmp_path):
    path = saved(model(), torch.randn(3, 8))
    command = [sys.executable, "-m", "dovetail.cli", "run", str(path), "--random"]
    refused = subprocess.run(command, capture_output=True, text=True)
    assert refused.returncode != 0
    assert "which is not loaded" in refused.stderr
    command += ["--plugin", str(accel_path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "[3, 4] = " in done.stdout, done.stderr


# ---- faults ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attribute", "error", "message"),
    [
        ("fail.at", errors.PluginFailed, "'accel_c' failed in the kernel 'relu' of aten.relu"),
        ("lose.at", errors.DeviceLost, "kernel 'relu' .*device was lost.*opens it again"),
    ],
)
def test_a_kernel_fails_and_the_next_call_works(accel, saved, attribute, error, message):
    module, x = model(), torch.randn(3, 8)
    run = dovetail.load(saved(module, x))
    for _ in range(2):
        torch.testing.assert_close(run(x), module(x).detach())
        accel.native.set(attribute, 2)
        with pytest.raises(error, match=message):
            run(x)
    torch.testing.assert_close(run(x), module(x).detach())
    del run
    gc.collect()
    assert accel.native.get("memory.used") == 0


def test_after_a_lost_device_the_weights_are_sent_again(accel, saved):
    module, x = model(), torch.randn(3, 8)
    run = dovetail.load(saved(module, x))
    run(x)
    accel.native.set("lose.at", 1)
    with pytest.raises(errors.DeviceLost):
        run(x)
    accel.log()
    torch.testing.assert_close(run(x), module(x).detach())
    assert accel.copies() == (7, 1)  # three layers of two parameters each, and the input


def test_no_room_on_the_device(accel, saved):
    module, x = model(), torch.randn(3, 8)
    run = dovetail.load(saved(module, x))
    accel.native.set("memory.limit", 700)
    for _ in range(2):
        with pytest.raises(errors.OutOfMemory, match=r"'accel_c' failed in buffer_alloc: no room"):
            run(x)
    accel.native.set("memory.limit", 0)
    torch.testing.assert_close(run(x), module(x).detach())
    del run
    gc.collect()
    assert accel.native.get("memory.used") == 0


def test_a_device_that_is_closed_between_calls(accel, saved):
    module, x = model(), torch.randn(3, 8)
    run = dovetail.load(saved(module, x))
    torch.testing.assert_close(run(x), module(x).detach())
    accel.library.close()
    torch.testing.assert_close(run(x), module(x).detach())
