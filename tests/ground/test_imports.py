"""What is imported when: dovetail starts fast, and runs where there is no torch."""

import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

import dovetail
from tests.ground.environments import ROOT


@pytest.mark.e2e
@pytest.mark.parametrize(
    "code",
    [
        "import dovetail",
        "import dovetail; dovetail.list_backends(); dovetail.backend_info('dovetail')",
        "import dovetail; dovetail.register_backend(lambda gm, x: gm, name='mine')",
        "import dovetail; dovetail.set_default_backend('reference', device='cpu')",
        "import dovetail; dovetail.Backend, dovetail.OpCall, dovetail.errors, dovetail.testing",
        "from dovetail.cli import main; main(['backends', '--all'])",
        "import dovetail.dynamo",
    ],
)
def test_torch_is_not_imported(here, code):
    heavy = here.answer(
        f"{code}\n"
        "import json, sys\n"
        "print(json.dumps([m for m in ('torch', 'numpy', 'sympy') if m in sys.modules]))"
    )
    assert heavy == []


@pytest.mark.e2e
def test_importing_the_package_imports_only_what_tells_dynamo_our_names(here):
    answer = here.answer(
        "import json, sys, dovetail\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith('dovetail'))))"
    )
    assert answer == [
        "dovetail",
        "dovetail.capture",
        "dovetail.capture._torch",
        "dovetail.capture._torch.dynamo_registry",
        "dovetail.locks",
    ]


@pytest.mark.e2e
@pytest.mark.parametrize("order", ["dovetail, torch", "torch, dovetail", "torch._dynamo, dovetail"])
def test_a_source_tree_that_is_not_installed_works_as_a_backend(order, tmp_path):
    """No metadata names our backends there: importing dovetail is enough."""
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if "dovetail" not in entry.name:
            (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "dovetail").symlink_to(Path(dovetail.__file__).parent)
    code = (
        f"import {order}, torch, importlib.metadata\n"
        "assert not importlib.metadata.entry_points(group='torch_dynamo_backends')\n"
        "assert torch.compile(lambda x: x + 1, backend='dovetail')(torch.ones(1)) == 2\n"
    )
    command = [sys.executable, "-S", "-c", code]  # -S: only what PYTHONPATH names
    subprocess.run(command, env={**os.environ, "PYTHONPATH": str(tmp_path)}, check=True)


@pytest.mark.parametrize("name", dovetail.__all__)
def test_every_public_name_loads(name):
    assert getattr(dovetail, name) is not None
    assert name in dir(dovetail)


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'lookup_backnd'"):
        dovetail.lookup_backnd  # noqa: B018


def test_the_version_stands_in_one_form_everywhere():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert dovetail.__version__ == declared == importlib.metadata.version("dovetail")
