"""What is imported when: dovetail starts fast, and runs where there is no torch."""

import importlib.metadata
import tomllib

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
def test_importing_the_package_imports_none_of_its_modules(here):
    answer = here.answer(
        "import json, sys, dovetail\n"
        "print(json.dumps(sorted(m for m in sys.modules if m.startswith('dovetail'))))"
    )
    assert answer == ["dovetail"]


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
