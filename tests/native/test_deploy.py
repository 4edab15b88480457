"""docs/deploy.md: every command and every program on it, in the order of the page."""

import os
import re
import shutil
import subprocess
import sys
import textwrap

import pytest

from dovetail import _native
from tests.ground.environments import ROOT, TemporaryEnvironment

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("c_programs"),
    pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake"),
]
PAGE = (ROOT / "docs" / "deploy.md").read_text()


def blocks(kind):
    return re.findall(rf"^```{kind}\n(.*?)^```$", PAGE, re.M | re.S)


@pytest.fixture(scope="module")
def checkout(native_folder, tmp_path_factory):
    """A checkout whose library is built, and a file saved as the page has it."""
    tmp_path = tmp_path_factory.mktemp("checkout")
    for name in ("examples", "tools", "src", "LICENSE"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "native").symlink_to(native_folder)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", blocks("python")[0]],
        cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return tmp_path


def test_the_page_as_it_is_written(checkout):
    build, own, with_c, with_cpp, wheel = blocks("sh")
    (checkout / "score.c").write_text(blocks("c")[0])
    environment = TemporaryEnvironment(checkout, shares_packages=False)
    variables = {**os.environ, "CFLAGS": "-O1 -g"}
    # The extension is the one that is installed here; pip that of the new environment.
    wheel = wheel.replace(
        "runtime_wheel.py dist", f"runtime_wheel.py dist --extension {_native.__file__}"
    )
    wheel = wheel.replace("pip install", f"pip --python {environment.python} install --no-index")
    variables["PATH"] = f"{os.path.dirname(sys.executable)}:{variables['PATH']}"  # noqa: PTH120
    script = "set -e\n" + build + own + with_c + with_cpp + wheel
    done = subprocess.run(
        ["sh", "-c", script], cwd=checkout, env=variables, capture_output=True, text=True,
        check=False, timeout=400,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    outputs = [line for line in done.stdout.splitlines() if line.endswith("(8 values)")]
    assert len(outputs) == 3
    assert outputs[1].split(":")[1] == outputs[2].split(":")[1]
    assert len(outputs[0].split()) == 8 + 2  # of score.c, which has inputs of its own


def test_the_python_on_the_page(checkout):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(blocks("python")[1])],
        cwd=checkout, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_page_speaks_of_what_there_is():
    header = (ROOT / "native" / "include" / "dovetail.h").read_text()
    named = set(re.findall(r"`(dvt_\w+)", PAGE)) | set(re.findall(r"`(DVT_\w+)", PAGE))
    assert all(re.search(rf"\b{name}\b", header) for name in named)
