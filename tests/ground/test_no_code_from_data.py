"""Our own code turns nothing that it reads into code: no pickle, no eval, in any of its files."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dovetail

FILES = sorted(Path(dovetail.__file__).parent.rglob("*.py"))
MODULES = {"pickle", "_pickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
CALLS = {"eval", "exec", "compile", "__import__", "torch.load"}
# Triton compiles Python functions, so the text that our renderer has just made of a kernel becomes
# one. It is never text that was read: loading a compiled segment takes cubins, and every name in a
# kernel is checked to be an identifier (codegen/triton/render.py).
# PyTorch's partitioner, whose statement ``import networkx`` we answer, imports the rest as ever.
MADE_HERE = {
    "codegen/triton/compile.py": ["exec", "compile"],
    "capture/_torch/partition.py": ["__import__"],
}


def offences(tree):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield from {node.module} if node.module.split(".")[0] in MODULES else ()
        elif isinstance(node, ast.Call):
            if (called := ast.unparse(node.func)) in CALLS:
                yield called


def test_nothing_read_becomes_code():
    root = Path(dovetail.__file__).parent
    found = {
        str(path.relative_to(root)): list(offences(ast.parse(path.read_text()))) for path in FILES
    }
    assert {name: offence for name, offence in found.items() if offence} == MADE_HERE


@pytest.mark.parametrize(
    "code", ["import pickle", "from marshal import loads", "eval(text)", "torch.load(path)"]
)
def test_the_search_finds_it(code):
    assert list(offences(ast.parse(code)))
