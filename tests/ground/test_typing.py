"""What an editor and a type checker see: built-in names complete, any string is accepted."""

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

import dovetail
from dovetail import names, registry
from tests.ground.environments import ROOT

FINE = """
from collections.abc import Callable
from typing import Any

import dovetail

dovetail.lookup_backend("dovetail")
dovetail.lookup_backend("somebody_elses")
dovetail.get_backend("reference", anything=3)
dovetail.backend_info("my_accel").name.upper()
dovetail.set_default_backend("my_accel", device="cpu")
chosen: dovetail.BackendName = "from_a_package_mypy_never_saw"


@dovetail.register_backend
def bare(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    return lambda *args: args


@dovetail.register_backend(name="other", tags=("experimental",))
def called(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    return lambda *args: args


@dovetail.register_debug_backend
def debug(gm: Any, example_inputs: list[Any]) -> Callable[..., Any]:
    return dovetail.lookup_backend(bare)(gm, example_inputs)


reveal_type(bare)
reveal_type(called)
reveal_type(debug)
"""
WRONG = """
import dovetail

dovetail.lookup_backend(3)
dovetail.get_backend(4)
dovetail.set_default_backend(b"aten")
dovetail.register_backend(print, name=5)
dovetail.list_backends(exclude_tags=6)
"""


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    """mypy over both files at once: what it says of each, as {file: [(line, message)]}."""
    folder = tmp_path_factory.mktemp("typing")
    (folder / "fine.py").write_text(FINE)
    (folder / "wrong.py").write_text(WRONG)
    # "silent": dovetail's own sources are checked by `make check`, here only their signatures.
    options = ["--strict", "--follow-imports=silent", f"--config-file={ROOT / 'pyproject.toml'}"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "fine.py", "wrong.py"],
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(Path(dovetail.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said: dict[str, list[tuple[int, str]]] = {"fine.py": [], "wrong.py": []}
    for line in done.stdout.splitlines():
        if line.startswith(("fine.py:", "wrong.py:")):
            file, number, message = line.split(":", 2)
            said[file].append((int(number), message.strip()))
    assert done.returncode == 1, done.stdout + done.stderr
    return said


@pytest.mark.e2e
def test_builtin_and_any_other_name_pass_and_decorators_keep_types(mypy):
    assert [m for _, m in mypy["fine.py"] if m.startswith("error")] == []
    revealed = [m for _, m in mypy["fine.py"] if "Revealed type" in m]
    assert len(revealed) == 3
    assert all("def (gm" in message for message in revealed)


@pytest.mark.e2e
def test_what_is_not_a_string_fails(mypy):
    wrong = {number for number, message in mypy["wrong.py"] if message.startswith("error")}
    assert wrong == {4, 5, 6, 7, 8}


def test_the_literal_names_are_the_builtin_ones():
    assert set(get_args(names.BuiltinBackend)) == registry.BUILTIN.keys()
