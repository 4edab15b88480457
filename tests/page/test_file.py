"""The page of a .dvt file alone: what the verified reader says of it, hostile names included."""

import json
import subprocess
import sys

import pytest
import torch
from torch import nn

import dovetail
from dovetail import cli
from dovetail.cli.inspect import describe
from dovetail.file import container
from dovetail.file.encode import encode_program
from dovetail.ir.program import Buffer, KernelCall, Program
from dovetail.ir.tensor import TensorDesc
from dovetail.page.file import file_report
from dovetail.runtime.loaded import INSPECT, open_native
from tests.page.test_html import data_in
from tests.report.schema import problems

NAME = "</script><img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A file with generated kernels and a host call."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(8, 8)

        def forward(self, x):
            y = self.linear(x).tanh().softmax(-1)
            return y, y.topk(2).values

    path = tmp_path_factory.mktemp("file") / "model.dvt"
    dovetail.export(Model().eval(), (torch.randn(4, 8),), backend="cpu").save(path)
    return path


def bytes_with(buffer, manifest=None):
    """A file whose input has a name that no compiler gives."""
    desc = TensorDesc("float32", (4,), (1,))
    buffers = (Buffer(buffer, "input", desc), Buffer("y", "output", desc))
    program = Program("hostile", buffers, (KernelCall("relu@1", ("y",), (buffer,)),), ("y",))
    made, features = encode_program(program, {}, manifest or {}, debug=False)
    return b"".join(container.chunks(*container.lay_out(made, features)))


def test_a_file_is_a_report(saved):
    report = file_report(open_native(str(saved), flags=INSPECT))
    assert problems(json.loads(json.dumps(report))) == []
    (compilation,) = report["compilations"]
    (graph,) = compilation["graphs"]
    assert len(graph["calls"]) == describe(str(saved))["instructions"]
    counts = graph["counts"]
    assert counts["host"] >= 1  # topk
    assert counts["kernel"] >= 1
    used = {c["op"] for c in graph["calls"] if c["backend"] == "generated code"}
    assert used == {kernel["name"] for kernel in compilation["kernels"]}
    assert all("bytes)" in kernel["target"] for kernel in compilation["kernels"])
    names = {c["name"] for c in graph["calls"]} | {i["name"] for i in graph["inputs"]}
    assert all(set(call["reads"]) <= names for call in graph["calls"])
    assert len(graph["outputs"]) == 2


def test_the_arena_is_what_the_runtime_takes(saved):
    loaded = dovetail.load(saved, trust=True)
    loaded(torch.randn(4, 8))
    report = file_report(open_native(str(saved), flags=INSPECT))
    memory = report["compilations"][0]["graphs"][0]["segments"][0]["program"]["memory"]
    assert (memory["peak"], memory["sum"], memory["bound"]) == loaded.native.memory()


def test_nothing_is_measured_unless_asked(saved):
    loaded = dovetail.load(saved, trust=True)
    loaded(torch.randn(4, 8))
    assert set(loaded.native.times()) == {0}
    loaded.native.measure()
    loaded(torch.randn(4, 8))
    first = loaded.native.times()
    assert all(time > 0 for time in first)
    loaded(torch.randn(4, 8))
    assert all(after <= before for before, after in zip(first, loaded.native.times(), strict=True))


def test_the_command_writes_a_page_without_torch(saved, tmp_path):
    page = tmp_path / "page.html"
    script = (
        "import sys; from dovetail import cli;"
        f"status = cli.main(['inspect', {str(saved)!r}, '--html', {str(page)!r}]);"
        "sys.exit(status or 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert data_in(page.read_text())["title"] == "model.dvt Model"


@pytest.mark.e2e
@pytest.mark.xdist_group("browser")
def test_hostile_names_of_a_file(browser, tmp_path):
    path, page = tmp_path / f"{NAME.replace('/', '')}.dvt", tmp_path / "page.html"
    path.write_bytes(bytes_with("x", {"name": NAME, "producer": NAME, "torch": NAME}))
    assert cli.main(["inspect", str(path), "--html", str(page)]) == 0
    browser.open(page)
    browser.run("dovetail.graphs[0].nodes.forEach(n => dovetail.select(n, false))")
    for tab in ("overview", "memory", "kernels"):
        browser.find(f"#tab-{tab}").click()
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert browser.text("#title").endswith(NAME)
    assert f"made by {NAME}, torch {NAME}" in browser.run(
        "return dovetail.report.compilations[0].notes"
    )
    assert browser.errors() == []
    assert browser.requests() == [f"file://{page}"]


def test_a_file_with_names_that_are_none_is_refused(tmp_path, capsys):
    path = tmp_path / "hostile.dvt"
    path.write_bytes(bytes_with(NAME))
    assert cli.main(["inspect", str(path), "--html", str(tmp_path / "page.html")]) == 2
    assert "not a name" in capsys.readouterr().err


@pytest.mark.parametrize("where", [9, 200, 700, -40])
def test_a_spoilt_file_is_one_line(saved, tmp_path, capsys, where):
    data = bytearray(saved.read_bytes())
    data[where] ^= 0xFF
    path = tmp_path / "spoilt.dvt"
    path.write_bytes(data)
    status = cli.main(["inspect", str(path), "--html", str(tmp_path / "page.html")])
    out = capsys.readouterr()
    assert status in (0, 2)  # constants are not read, so a change there is not seen
    assert len((out.err or out.out).splitlines()) == 1
    assert status == 0 or not (tmp_path / "page.html").exists()


def test_a_page_that_cannot_be_written(saved, capsys):
    assert cli.main(["inspect", str(saved), "--html", "/nowhere/page.html"]) == 2
    assert "cannot write '/nowhere/page.html'" in capsys.readouterr().err
