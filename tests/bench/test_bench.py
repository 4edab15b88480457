"""``dovetail bench`` as a user runs it."""

import importlib.metadata
import json
import subprocess
import sys

import pytest
import torch

import dovetail
from dovetail.bench import cases, rivals
from dovetail.bench.contest import HELD
from dovetail.cli import bench as bench_command

pytestmark = pytest.mark.e2e


def bench(*arguments):
    command = [sys.executable, "-m", "dovetail.cli", "bench", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_one_case_on_two_backends(tmp_path):
    json_file, plot_file = tmp_path / "out.json", tmp_path / "out.svg"
    done = bench(
        *("softmax-64x256", "--backends", "eager,aten", "--rounds", "1", "--seconds", "0.05"),
        *("--json", str(json_file), "--plot", str(plot_file)),
    )
    assert done.returncode == 0, done.stderr
    assert "softmax-64x256" in done.stdout
    assert "kernels, steady state, aten over eager" in done.stdout
    row = json.loads(json_file.read_text())["results"]["softmax-64x256"]
    assert set(row) == {"eager", "aten"}
    assert {"first", "warm", "best", "median", "peak_mb", "error"} <= set(row["aten"])
    assert row["aten"]["error"] < 1e-5
    assert plot_file.read_text().startswith("<svg")


def test_frozen_beside_whatever_engines_are_installed(tmp_path):
    json_file = tmp_path / "out.json"
    done = bench(
        *("mlp", "--frozen", "--backends", "eager,onnxruntime,openvino,cpu", "--threads", "1"),
        *("--rounds", "1", "--seconds", "0.05", "--no-warm", "--clock", "processor"),
        *("--json", str(json_file)),
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(json_file.read_text())
    assert written["settings"]["frozen"]
    assert written["settings"]["clock"] == "processor"
    there = [name for name in ("onnxruntime", "openvino") if not rivals.missing(name)]
    for name in {"onnxruntime", "openvino"} - {*there}:
        assert f"{name} is left out: {rivals.missing(name)} is not installed" in done.stderr
    row = written["results"]["mlp"]
    assert [*row] == ["eager", *there, "cpu"]
    assert all(found["best"] > 0 and found["error"] < 1e-5 for found in row.values())
    best = min(found["best"] for name, found in row.items() if name != "cpu")
    line = next(line for line in done.stdout.splitlines() if line.startswith("mlp "))
    if there:
        assert line.endswith(f"|{row['cpu']['best'] / best:10.2f}")


def test_training_steps_are_judged_by_their_gradients(tmp_path):
    json_file = tmp_path / "out.json"
    done = bench(
        *("mlp", "--train", "--backends", "eager,aten", "--rounds", "1", "--seconds", "0.05"),
        *("--no-warm", "--json", str(json_file)),
    )
    assert done.returncode == 0, done.stderr
    written = json.loads(json_file.read_text())
    assert written["settings"]["trains"]
    assert all(0 < found["error"] < 1e-5 for found in written["results"]["mlp"].values())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["mlp", "--train", "--frozen"], "train"),
        (["softmax", "--train"], "a model with --train"),
        (["mlp", "--frozen", "--device", "cuda"], "--frozen"),
        (["nothing"], "nothing"),
        (["mlp", "--backends", "eager,no_such"], "no_such"),
        (["softmaxx", "--device", "cuda"], "softmax_4096-bfloat16"),
        (["mlp", "--threads", "0"], "'0' is not a whole number from 1 on"),
        (["mlp", "--seconds", "soon"], "'soon' is not a number of seconds"),
    ],
)
def test_a_mistake_is_answered_in_one_line(arguments, problem):
    done = bench(*arguments)
    assert done.returncode == 2
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_an_engine_that_cannot_be_held_to_a_processor_is_left_out(capsys, monkeypatch):
    monkeypatch.setattr(rivals, "missing", lambda rival: "")
    found = bench_command._present(["onnxruntime", "eager"], "x86-64-v3")
    assert found == ["eager"]
    assert "onnxruntime is left out: it cannot be held to x86-64-v3" in capsys.readouterr().err


def test_copies_that_are_held_take_part(tmp_path, monkeypatch):
    """What benchmarks/hold_rivals.py marks is found where packages are looked for first."""
    (tmp_path / "openvino").mkdir()
    (tmp_path / "openvino" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert not rivals.is_held("openvino", "x86-64-v3")
    (tmp_path / "openvino" / HELD).write_text("x86-64-v3\n")
    assert rivals.is_held("openvino", "x86-64-v3")
    assert rivals.is_held("dovetail", "x86-64-v3")


def test_versions_without_metadata(monkeypatch):
    def version(package):
        raise importlib.metadata.PackageNotFoundError(package)

    monkeypatch.setattr("importlib.metadata.version", version)
    found = rivals.versions()
    assert found["dovetail"] == dovetail.__version__
    assert found["torch"] == torch.__version__


@pytest.mark.parametrize("name", cases.names("models"))
def test_every_model_runs(name):
    model, inputs = cases.make(name)
    assert model(*inputs).isfinite().all()
