"""``dovetail new``: from nothing to a running backend."""

import re
import subprocess
import sys

import pytest

from dovetail import errors
from dovetail.cli import main
from dovetail.cli.new import KINDS, write_package
from tests.ground.environments import ROOT, TemporaryEnvironment
from tests.plugin.conftest import HEADER

# Kind → how many tests its package has, and how many files.
PACKAGES = {"c": (8, 9), "python": (3, 5), "segment": (9, 6), "renderer": (4, 5)}


def add_the_kernel_of_the_docs(source):
    """docs/plugins.md: a function above the table of kernels, a row of it, a row of operations."""
    blocks = re.findall(r"```c\n(.*?)```", (ROOT / "docs" / "plugins.md").read_text(), re.S)
    function, kernel, operation, *_ = blocks
    text = source.read_text()
    for mark, added in (
        ("const dvp_kernel KERNELS[]", f"{function}\n"),
        ("    {NULL, 0, NULL},", kernel),
        ('    {"aten.mm.default"', operation),
    ):
        assert text.count(mark) == 1
        text = text.replace(mark, added + mark)
    source.write_text(text)


@pytest.mark.e2e
def test_packages_as_written_install_pass_their_tests_and_run_a_model(compiler, tmp_path):
    """One of each kind, in one environment: starting processes takes most of the time."""
    names = {kind: f"{kind}_chip" for kind in PACKAGES}
    for kind, name in names.items():
        assert main(["new", name, "--kind", kind, "--output", str(tmp_path / name)]) == 0
    add_the_kernel_of_the_docs(tmp_path / names["c"] / "csrc" / "kernels.c")
    environment = TemporaryEnvironment(tmp_path)
    folders = [str(tmp_path / name) for name in names.values()]
    environment.pip("install", "--no-index", "--no-deps", "--no-build-isolation", *folders)
    tests = [f"{folder}/tests" for folder in folders]
    passed = environment.run("-m", "pytest", "-v", "-p", "no:cacheprovider", *tests)
    for kind, name in names.items():
        lines = [line for line in passed.splitlines() if f"test_{name}.py::" in line]
        assert sum("PASSED" in line for line in lines) == PACKAGES[kind][0], passed
    answers = environment.answer(f"""
        import json, torch, dovetail
        layer, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
        answers = {{}}
        for name in {list(names.values())}:
            torch.testing.assert_close(torch.compile(layer, backend=name)(x), layer(x))
            info = dovetail.backend_info(name)
            answers[name] = [info.distribution, info.available, name in dovetail.list_backends()]
        report = dovetail.explain(lambda x: -layer(x), x, backend="c_chip")
        answers["on the device"] = report.placements()
        print(json.dumps(answers))
    """)
    assert answers.pop("on the device") == {"c_chip": 3}
    assert answers == {name: [name.replace("_", "-"), True, True] for name in names.values()}


def test_a_name_with_a_dash(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-chip", "--kind", "python"]) == 0
    assert 'backend="my_chip"' in capsys.readouterr().out
    assert "my_chip" in (tmp_path / "my-chip" / "pyproject.toml").read_text()


@pytest.mark.e2e
def test_its_c_has_no_warnings(compiler, tmp_path):
    write_package("my_chip", "c", tmp_path / "package")
    sources = [str(tmp_path / "package" / "csrc" / f"{name}.c") for name in ("device", "kernels")]
    flags = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-Wshadow",
        "-Wconversion",
        "-Wpedantic",
        "-fsyntax-only",
    ]
    done = subprocess.run(["cc", *flags, *sources], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", PACKAGES)
def test_nothing_of_the_template_is_left(tmp_path, kind):
    write_package("my_chip", kind, tmp_path / "package")
    files = [path for path in (tmp_path / "package").rglob("*") if path.is_file()]
    assert len(files) == PACKAGES[kind][1]
    for path in files:
        assert "accel" not in path.name
        assert path.name == HEADER.name or "accel" not in path.read_text()
        if path.suffix == ".py":
            compile(path.read_text(), path, "exec")
    if kind == "c":
        header = tmp_path / "package" / "csrc" / HEADER.name
        assert header.read_text() == HEADER.read_text()


def test_every_kind_is_tested():
    assert PACKAGES.keys() == KINDS.keys()


@pytest.mark.parametrize("name", ["", "a b", "1x", "My", "../x", "a-b", "ü", "class", "a.b", "_a"])
@pytest.mark.parametrize("kind", PACKAGES)
def test_names_that_cannot_be(name, tmp_path, kind):
    with pytest.raises(errors.InvalidScaffoldName):
        write_package(name, kind, tmp_path / "package")
    assert not (tmp_path / "package").exists()


@pytest.mark.parametrize("name", ["dovetail", "cpu", "opencl", "torch", "json", "numpy"])
def test_names_that_somebody_has(name, tmp_path, capsys):
    assert main(["new", name, "--kind", "python", "-o", str(tmp_path / "package")]) == 2
    assert f"cannot be called {name!r}" in capsys.readouterr().err
    assert not (tmp_path / "package").exists()


def test_what_is_there_is_not_overwritten(tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(errors.ScaffoldExists):
        write_package("my_chip", "c", tmp_path)
    assert main(["new", "my_chip", "-o", str(tmp_path / "file")]) == 2
    assert "exists already" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_an_unknown_kind(capsys):
    assert main(["new", "my_chip", "--kind", "cobol"]) == 2
    assert "'cobol' is not one of" in capsys.readouterr().err


def test_no_torch_is_needed(tmp_path):
    code = f"""
import sys
from dovetail.cli import main
status = main(["new", "my_chip", "-o", {str(tmp_path / "package")!r}])
sys.exit(status or "torch" in sys.modules)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0
