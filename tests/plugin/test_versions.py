"""Plug-ins built against an older and a newer dovetail_plugin.h load and work."""

import re

import pytest
import torch

from dovetail.backends.plugin.backend import open_library
from tests.plugin.conftest import HEADER
from tests.plugin.test_faults import SMALL, relu, small

pytestmark = pytest.mark.e2e
__all__ = ["small"]


def older_header():
    """As it was before whole segments could be compiled: the table ends earlier."""
    text = HEADER.read_text()
    start = text.index("    /* (optional, all six or none) Whole segments")
    end = text.index("} dvp_plugin;")
    text = text[:start] + text[end:]
    text = text.replace("offsetof(dvp_plugin, segment_compile)", "sizeof(dvp_plugin)")
    return re.sub(r"&&\s+sizeof\(dvp_plugin\) >= 200", "", text)


def newer_header():
    """As it may be one day: every structure that can grow has grown."""
    text = HEADER.read_text().replace("DVP_ABI_MINOR 0u", "DVP_ABI_MINOR 7u")
    for name, field in [
        ("dvp_plugin", "const char *future;"),
        ("dvp_info", "const char *future;"),
        ("dvp_answer", "double future;"),
        ("dvp_op", "uint64_t future;"),
        ("dvp_copy", "uint64_t future;"),
        ("dvp_host", "void (*future)(void);"),
        ("dvp_segment", "uint64_t future;"),
    ]:
        assert f"}} {name};" in text
        text = text.replace(f"}} {name};", f"    {field}\n}} {name};")
    return text


@pytest.mark.parametrize(
    ("header", "macros", "minor"),
    [(older_header, [], 0), (newer_header, ["NEWER_HEADER"], 7)],
    ids=["older", "newer"],
)
def test_another_header_of_the_same_major(small, tmp_path, header, macros, minor):
    include = tmp_path / "include"
    include.mkdir()
    (include / HEADER.name).write_text(header())
    assert SMALL.exists()
    path = small(*macros, include=include)
    torch.testing.assert_close(*relu(path))
    assert open_library(path).abi == 1 << 16 | minor


def test_the_header_compiles_by_itself_in_c_and_cpp(compiler, tmp_path):
    import shutil
    import subprocess

    commands = [["cc", "-x", "c", "-std=c11"], ["c++", "-x", "c++", "-std=c++17"]]
    for command in commands:
        if shutil.which(command[0]):
            flags = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-fsyntax-only", str(HEADER)]
            subprocess.run([*command, *flags], check=True, capture_output=True)
