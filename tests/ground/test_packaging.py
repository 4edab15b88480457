"""The wheel: what is in it, and that it works where there is no torch and no compiler."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile

import pytest

from dovetail import registry
from tests.ground.environments import ROOT, TemporaryEnvironment

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("packaging")]
SOURCES = ("pyproject.toml", "setup.py", "README.md", "LICENSE", "MANIFEST.in", "src", "native")


def call(command, cwd):
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """A wheel built from a source distribution, so both are known to be complete."""
    folder = tmp_path_factory.mktemp("packaging")
    for name in SOURCES:
        source = ROOT / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("*.so", "*.egg-info", "__pycache__", "build")
            shutil.copytree(source, folder / "source" / name, ignore=ignored)
        elif source.exists():
            (folder / "source").mkdir(exist_ok=True)
            shutil.copy(source, folder / "source" / name)
    flags = folder / "source" / "native" / "flags.mk"  # the code is tested elsewhere: quickly, then
    flags.write_text(flags.read_text().replace("-O3", "-O0"))
    build = "import setuptools.build_meta as b, sys; b.build_sdist(sys.argv[1])"
    call([sys.executable, "-c", build, str(folder)], cwd=folder / "source")
    pip = [sys.executable, "-m", "pip", "-q", "wheel", "--no-index", "--no-deps"]
    sdist = next(folder.glob("*.tar.gz"))
    call([*pip, "--no-build-isolation", "-w", str(folder), str(sdist)], cwd=folder)
    return next(folder.glob("*.whl"))


def test_the_wheel_serves_every_python_from_3_11(wheel):
    assert "-cp311-abi3-" in wheel.name


def test_the_wheel_holds_the_package_its_types_and_its_licence(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("dovetail/py.typed", "dovetail/_native.abi3.so", "dovetail/_native.pyi"):
        assert name in names
    for name in ("include/dovetail_plugin.h", "cli/templates/c/csrc/kernels.c.in"):
        assert f"dovetail/{name}" in names
    assert any(name.endswith("LICENSE") for name in names)
    assert all(name.startswith(("dovetail/", "dovetail-")) for name in names)


def test_installing_it_asks_for_no_torch(wheel):
    archive = zipfile.ZipFile(wheel)
    metadata = next(n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
    required = [
        line
        for line in archive.read(metadata).decode().splitlines()
        if line.startswith("Requires-Dist:") and "extra ==" not in line
    ]
    assert required == []


def test_it_works_in_an_environment_that_has_nothing_else(wheel, tmp_path, monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    bare = TemporaryEnvironment(tmp_path, shares_packages=False)
    bare.pip("install", "--no-index", "--no-deps", str(wheel))
    listed = "import dovetail, json; rows = dovetail.backend_table(load=True);"
    names = bare.run("-c", f"{listed} print(json.dumps([row.name for row in rows]))")
    assert set(json.loads(names)) == set(registry.BUILTIN)
    told = bare.start("-m", "dovetail", "backends")
    assert (told.returncode, told.stderr) == (
        2,
        "dovetail: the command needs click: pip install 'dovetail[cli]'\n",
    )
    answer = bare.answer("""
        import importlib.util, json, dovetail
        from dovetail.ir import parse_size, SizeProgram
        try:
            dovetail.lookup_backend("inductor")
        except dovetail.errors.BackendUnavailable as error:
            said = str(error)
        print(json.dumps([importlib.util.find_spec("torch") is None, said]))
    """)
    assert answer[0] is True
    assert "PyTorch is not installed" in answer[1]


def test_constraints_pin_torch_and_everything_a_newcomer_installs():
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = dict(ln.lower().split("==") for ln in lines if ln and not ln.startswith("#"))
    assert pins["torch"] == "2.13.0"
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [
        *extras["torch"],
        *extras["cli"],
        *extras["dev"],
        *project["build-system"]["requires"],
    ]
    names = {re.split(r"[;>\[]", word)[0].replace("-", "_") for word in wanted}
    assert names <= {name.replace("-", "_") for name in pins}
