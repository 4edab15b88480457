"""The C library as a user builds it, once for all tests that need it."""

import os
import shutil
import subprocess

import pytest

from tests.ground.environments import ROOT


@pytest.fixture(scope="session")
def native_folder(tmp_path_factory):
    """A copy of ``native/`` with the library built in it, quickly: what is tested is not speed."""
    folder = tmp_path_factory.mktemp("library") / "native"
    ignored = shutil.ignore_patterns("build", "tests", "fuzz", "python", "*.so")
    shutil.copytree(ROOT / "native", folder, ignore=ignored)
    built = subprocess.run(
        ["make", "-s", "-j", "2"],
        cwd=folder, capture_output=True, text=True, timeout=400, check=False,
        env={**os.environ, "CFLAGS": "-O1 -g"},
    )  # fmt: skip
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture(scope="session")
def library(native_folder):
    """The folder that ``make install`` fills, moved elsewhere afterwards."""
    stage, moved = native_folder.parent / "stage", native_folder.parent / "moved here"
    subprocess.run(
        ["make", "-s", "install", "PREFIX=/opt/dovetail", f"DESTDIR={stage}"],
        cwd=native_folder, check=True, timeout=100, env={**os.environ, "CFLAGS": "-O1 -g"},
    )  # fmt: skip
    (stage / "opt" / "dovetail").rename(moved)
    return moved
