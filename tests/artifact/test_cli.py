"""``dovetail compile``, ``inspect``, ``verify`` and ``run``, as a user calls them."""

import json
import sys

import numpy as np
import pytest
import torch

from dovetail.cli import main
from dovetail.file import container
from tests.artifact import factories
from tests.artifact.files import file_bytes
from tests.differential import needs_code

HERE = "tests.artifact.factories"


@pytest.fixture
def file(tmp_path):
    path = str(tmp_path / "mlp.dvt")
    assert main(["compile", f"{HERE}:mlp", "-o", path, "-q"]) == 0
    return path


def test_compile_and_run(file, tmp_path, capsys):
    model, (x,) = factories.mlp()
    np.save(tmp_path / "x.npy", x.numpy())
    out = str(tmp_path / "y.npy")
    assert main(["run", file, "--input", str(tmp_path / "x.npy"), "--output", out]) == 0
    printed = capsys.readouterr().out
    assert "float32[2, 8] = " in printed
    assert "first call" in printed
    torch.testing.assert_close(torch.from_numpy(np.load(out)), model(x), rtol=1e-5, atol=1e-6)


def test_compile_says_what_it_made(tmp_path, capsys):
    assert main(["compile", f"{HERE}:pooled", "-o", str(tmp_path / "p.dvt")]) == 0
    printed = capsys.readouterr().out
    assert "needs PyTorch for aten.convolution.default" in printed
    assert main(["run", str(tmp_path / "p.dvt"), "--random", "--repeat", "1"]) == 0


def test_run_with_random_inputs_and_dynamic_sizes(tmp_path, capsys):
    path = str(tmp_path / "d.dvt")
    assert main(["compile", f"{HERE}:dynamic", "-o", path, "-q"]) == 0
    assert main(["run", path, "--random", "--size", "5"]) == 0
    assert "float32[5, 8] = " in capsys.readouterr().out
    assert main(["run", path, "--random", "--size", "50"]) == 2
    assert "must be" in capsys.readouterr().err


@needs_code
def test_stages(capsys):
    assert main(["explain", f"{HERE}:mlp", "--stages", "--target", "armv8-a"]) == 0
    printed = capsys.readouterr().out
    for text in ("aten.relu.default", "pointwise (d0, d1)", "kernel kernel_", "schedule armv8-a {"):
        assert text in printed
    assert "v0.4s" in printed  # a register of AArch64
    assert main(["explain", f"{HERE}:mlp", "--stages", "--target", "mips"]) == 2
    assert "the targets are" in capsys.readouterr().err


def test_inspect(file, capsys):
    assert main(["inspect", file, "--program"]) == 0
    printed = capsys.readouterr().out
    for text in ("Sequential", "float32[2, 8]", "matmul@1 x1", "constants", "not signed", "arena"):
        assert text in printed
    assert "kernel %relu = relu@1(%addmm)" in printed
    assert main(["inspect", file, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kernels"] == {"matmul@1": 1, "relu@1": 1}
    assert found["host_ops"] == []
    assert sum(s["bytes"] for s in found["sections"]) < found["bytes"]
    assert found["inputs"][0]["shape"] == [2, 8]


def test_inspect_shows_what_cannot_run_here(tmp_path, capsys):
    path = tmp_path / "later.dvt"
    text = "program @p\ninput %x: float32[2]\noutput %y: float32[2]\nkernel %y = warp@9(%x)\n"
    container.write_file(path, [file_bytes(text + "return %y\n")])
    assert main(["inspect", str(path)]) == 0
    assert main(["verify", str(path)]) == 0
    assert main(["run", str(path), "--random"]) == 2
    assert "no kernel warp@9" in capsys.readouterr().err


def test_verify_reads_the_constants_too(file, tmp_path, capsys):
    assert main(["verify", file]) == 0
    assert "sound" in capsys.readouterr().out
    data = bytearray((tmp_path / "mlp.dvt").read_bytes())
    data[-5] ^= 1  # in the constants, which loading maps and does not read
    (tmp_path / "bad.dvt").write_bytes(data)
    assert main(["verify", file, str(tmp_path / "bad.dvt"), str(tmp_path / "none.dvt")]) == 1
    printed = capsys.readouterr().out
    assert "section 11 is damaged" in printed
    assert "no file" in printed


FACTORY = """
import torch
from beside import WIDTH

class Scaled(torch.nn.Module):
    def forward(self, x, *, scale):
        return x * scale

def make():
    return Scaled(), (torch.arange(6.0).reshape(2, WIDTH),), {"scale": torch.tensor(float("inf"))}
"""


def test_a_factory_in_a_file(tmp_path, monkeypatch, capsys, recwarn):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "scaled.py").write_text(FACTORY)
    (tmp_path / "models" / "beside.py").write_text("WIDTH = 3")
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "models/scaled.py:make", "-o", "s.dvt", "-q"]) == 0
    assert [w for w in recwarn if w.category is FutureWarning] == []
    x, scale = np.arange(6, dtype=np.float32).reshape(2, 3), np.float32(2)
    np.save("x.npy", x)
    np.save("scale.npy", scale)
    assert main(["run", "s.dvt", "--input", "x.npy", "--input", "scale.npy"]) == 0
    assert "float32[2, 3] = 0, 2, 4, 6, … (from 0 to 10)\n" in capsys.readouterr().out
    np.save("scale.npy", np.float32("inf"))
    assert main(["run", "s.dvt", "--input", "x.npy", "--input", "scale.npy"]) == 0
    assert "float32[2, 3] = nan, inf, inf, inf, …, 6 not finite" in capsys.readouterr().out


def test_a_module_that_changes_the_path_or_fails(tmp_path, monkeypatch, capsys):
    (tmp_path / "pops.py").write_text("import sys; sys.path.pop(0)\ndef make(): return 3")
    (tmp_path / "half.py").write_text("x = 1\nraise RuntimeError('no')")
    monkeypatch.chdir(tmp_path)
    assert main(["compile", "pops.py:make", "-o", "x.dvt"]) == 2
    assert "returned a int" in capsys.readouterr().err
    assert main(["compile", "half.py:make", "-o", "x.dvt"]) == 2
    assert "RuntimeError: no" in capsys.readouterr().err
    assert "half" not in sys.modules


def test_outputs_that_numpy_has_no_type_for(tmp_path, capsys):
    path = str(tmp_path / "h.dvt")
    assert main(["compile", f"{HERE}:halves", "-o", path, "-q"]) == 0
    assert main(["run", path, "--random"]) == 0
    assert "shape [2, 3]" in capsys.readouterr().out


def test_run_names_bad_files(file, tmp_path, capsys):
    (tmp_path / "text.npy").write_text("hello")
    np.save(tmp_path / "x.npy", np.ones((2, 8), np.float32))
    for arguments, problem in [
        (["--input", str(tmp_path / "none.npy")], "cannot read"),
        (["--input", str(tmp_path / "text.npy")], "cannot read"),
        ([], "give --input X.npy for each"),
        (["--random", "--output", "a", "--output", "b"], "2 output files, but 1 outputs"),
        (["--random", "--output", str(tmp_path / "no" / "y.npy")], "cannot write"),
    ]:
        assert main(["run", file, *arguments]) == 2
        assert problem in capsys.readouterr().err


ONE_CALL = """
import torch
class M(torch.nn.Module):
    def forward(self, x): return x.{}()
def make(): return M(), (torch.ones(2, 2),)
"""
MISTAKES = {
    "raises": ("def make():\n    raise ValueError('no data')", "ValueError: no data"),
    "broken": ("def make(:", "SyntaxError"),
    "import_fails": ("1 / 0", "ZeroDivisionError"),
    "no_tuple": ("import torch\ndef make(): return torch.nn.ReLU(), torch.ones(2)", "no tuple"),
    "a_number": ("import torch\ndef make(): return torch.nn.ReLU(), 3", "no tuple"),
    "no_dict": ("import torch\ndef make(): return torch.nn.ReLU(), (), 3", "no dict"),
    "no_module": ("def make(): return len, ()", "torch.nn.Module is needed"),
    "wrong_shape": (
        "import torch\ndef make(): return torch.nn.Linear(2, 2), (torch.ones(1, 3),)",
        "mat1 and mat2 shapes cannot be multiplied",
    ),
    "sparse": (ONE_CALL.format("to_sparse"), "is sparse"),
    "no_such_type": (ONE_CALL.format("chalf"), "of dtype complex32"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_in_the_factory_ends_in_a_message(name, tmp_path, monkeypatch, capsys):
    code, said = MISTAKES[name]
    (tmp_path / f"mistake_{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    assert main(["compile", f"mistake_{name}:make", "-o", "m.dvt"]) == 2
    assert said in capsys.readouterr().err
    assert not (tmp_path / "m.dvt").exists()
