"""One name for one thing: no two classes of the package share a name."""

import ast
from collections import defaultdict
from pathlib import Path

import dovetail

PACKAGE = Path(dovetail.__file__).parent


def test_no_class_name_is_defined_twice():
    defined = defaultdict(list)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                defined[node.name].append(str(path.relative_to(PACKAGE)))
    assert "KernelCall" in defined
    assert {name: files for name, files in defined.items() if len(files) > 1} == {}
