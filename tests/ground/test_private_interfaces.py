"""Private PyTorch interfaces are reached from ``capture/_torch`` alone."""

import ast
from pathlib import Path

import dovetail

PACKAGE = Path(dovetail.__file__).parent
HOME = PACKAGE / "capture" / "_torch"


def private_imports(source):
    """Modules of torch, and names in them, that start with an underscore."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    parts = ((name, name.split(".")) for name in found)
    return [n for n, (top, *rest) in parts if top == "torch" and any(p[0] == "_" for p in rest)]


def test_only_one_package_imports_what_is_private():
    elsewhere = (path for path in PACKAGE.rglob("*.py") if HOME not in path.parents)
    found = {str(path): private_imports(path.read_text()) for path in elsewhere}
    assert {path: names for path, names in found.items() if names} == {}


def test_private_imports_are_seen():
    assert private_imports("import torch._dynamo") == ["torch._dynamo"]
    assert private_imports("from torch import _C, nn") == ["torch._C"]
    assert private_imports("from torch.utils._pytree import tree_map") == [
        "torch.utils._pytree.tree_map"
    ]
    assert private_imports("from torch import fx") == []
    assert any(private_imports(path.read_text()) for path in HOME.glob("*.py"))
