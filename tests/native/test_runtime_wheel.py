"""The wheel ``dovetail-runtime``: small, complete by itself, and at peace with ``dovetail``."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dovetail import _native
from tests.artifact.files import file_bytes, floats
from tests.ground.environments import ROOT, TemporaryEnvironment
from tests.native.test_library import ADD, COUNT, run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("c_programs"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture(scope="module")
def wheel(native_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "tools/runtime_wheel.py", folder, "--native", native_folder,
         "--extension", _native.__file__],
        cwd=ROOT, check=True, timeout=100,
    )  # fmt: skip
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An environment with nothing but the wheel."""
    made = TemporaryEnvironment(tmp_path_factory.mktemp("bare"), shares_packages=False)
    made.pip("install", "--no-index", "--no-deps", str(wheel))
    return made


def test_it_is_small_and_asks_for_nothing(wheel):
    assert wheel.stat().st_size < 2_000_000
    archive = zipfile.ZipFile(wheel)
    (about,) = [name for name in archive.namelist() if name.endswith("METADATA")]
    assert "Requires-Dist" not in archive.read(about).decode()
    assert "-cp311-abi3-" in wheel.name


def test_every_module_of_it_can_be_imported(wheel, bare):
    inside = "dovetail_runtime/python/"
    names = [n for n in zipfile.ZipFile(wheel).namelist() if n.startswith(inside)]
    modules = [
        name.removeprefix(inside).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        for name in names
        if name.endswith(".py")
    ]
    assert "dovetail.runtime.loaded" in modules
    bare.script(f"import importlib\nfor name in {modules!r}: importlib.import_module(name)")


def test_a_file_is_loaded_and_run_without_torch(bare, tmp_path):
    (tmp_path / "count.dvt").write_bytes(file_bytes(COUNT, {"total": floats(0, 0)}))
    own = bare.script("import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    numpy = Path(np.__file__).parents[1]  # the one package of others that arrays need
    for each in [*numpy.glob("numpy"), *numpy.glob("numpy.libs")]:
        (Path(own) / each.name).symlink_to(each)
    answer = bare.answer(
        f"""
        import copy, json, pickle, sys
        import numpy as np
        import dovetail
        model = dovetail.load({str(tmp_path / "count.dvt")!r})
        first = model(np.array([1, 2], np.float32))
        other = pickle.loads(pickle.dumps(copy.copy(model)))
        missing = []
        for name in ("export", "explain", "get_backend"):
            try:
                getattr(dovetail, name)
            except AttributeError as error:
                missing.append(str(error))
        print(json.dumps([
            other(np.array([1, 2], np.float32)).tolist(), missing, type(first).__name__,
            [name for name in ("torch", "llvmlite") if name in sys.modules], dovetail.__file__,
        ]))
        """
    )
    assert answer[0] == [2.0, 4.0]
    assert all("install dovetail" in text for text in answer[1])
    assert answer[2:4] == ["ndarray", []]
    assert "/dovetail_runtime/python/" in answer[4]


def test_a_program_in_c_is_built_with_it(bare, tmp_path):
    (tmp_path / "add.dvt").write_bytes(file_bytes(ADD))
    prefix = Path(bare.run("-m", "dovetail_runtime").strip())
    where = {"PKG_CONFIG_PATH": str(prefix / "lib" / "pkgconfig")}
    words = run("pkg-config", "--cflags", "--libs", "dovetail", cwd=tmp_path, **where).split()
    source = ROOT / "examples" / "c_runtime" / "main.c"
    run("cc", "-o", "run", source, *words, cwd=tmp_path)
    said = run("./run", "add.dvt", cwd=tmp_path, LD_LIBRARY_PATH=str(prefix / "lib"))
    assert said.startswith("y: 0.000000 0.020000")


def test_beside_the_whole_of_dovetail_that_one_is_found(wheel, tmp_path):
    both = TemporaryEnvironment(tmp_path, shares_packages=False)
    own = Path(both.script("import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "__editable__.dovetail-0.1.0.pth").write_text(f"{ROOT / 'src'}\n")  # as pip calls it
    both.pip("install", "--no-index", "--no-deps", str(wheel))
    assert "/dovetail_runtime/" not in both.script("import dovetail; print(dovetail.__file__)")
    both.script("import dovetail; dovetail.get_backend('aten')")
    both.pip("uninstall", "-y", "dovetail-runtime")
    both.script("import dovetail; dovetail.get_backend('aten')")
