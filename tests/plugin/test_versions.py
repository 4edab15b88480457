"""Plug-ins built against an older and a newer dovetail_plugin.h load and work."""

import re
import subprocess
import sys

import pytest
import torch

from dovetail import registry
from dovetail.backends.plugin.backend import open_library, plugin_backend
from tests.plugin.conftest import HEADER, ROOT
from tests.plugin.test_faults import SMALL, relu, small

pytestmark = pytest.mark.e2e
__all__ = ["small"]


RELEASED = ROOT / "native" / "abi" / HEADER.name  # as the last release has it


def released_header():
    """That of the last release, word for word."""
    return RELEASED.read_text()


def older_header():
    """As it was before whole segments could be compiled: the table ends earlier."""
    text = RELEASED.read_text()
    start = text.index("    /* (optional, all six or none) Whole segments")
    end = text.index("} dvp_plugin;")
    text = text[:start] + text[end:]
    text = text.replace("offsetof(dvp_plugin, segment_compile)", "sizeof(dvp_plugin)")
    return re.sub(r"&&\s+sizeof\(dvp_plugin\) >= 200", "", text)


def newer_header():
    """As it may be one day: every structure that can grow has grown."""
    text = re.sub(r"DVP_ABI_MINOR \du", "DVP_ABI_MINOR 7u", HEADER.read_text())
    for name, field in [
        ("dvp_plugin", "const char *future;"),
        ("dvp_info", "const char *future;"),
        ("dvp_answer", "double future;"),
        ("dvp_op", "uint64_t future;"),
        ("dvp_copy", "uint64_t future;"),
        ("dvp_host", "void (*future)(void);"),
        ("dvp_segment", "uint64_t future;"),
        ("dvp_device_info", "uint64_t future;"),
        ("dvp_quantization", "uint64_t future;"),
        ("dvp_size", "uint64_t future;"),
    ]:
        assert f"}} {name};" in text
        text = text.replace(f"}} {name};", f"    {field}\n}} {name};")
    return text


@pytest.mark.parametrize(
    ("header", "macros", "minor"),
    [
        (older_header, [], 0),
        (released_header, [], 0),
        (released_header, ["COMPILES"], 0),
        (newer_header, ["NEWER_HEADER"], 7),
    ],
    ids=["older", "released", "released, whole segments", "newer"],
)
def test_another_header_of_the_same_major(small, tmp_path, header, macros, minor):
    include = tmp_path / "include"
    include.mkdir()
    (include / HEADER.name).write_text(header())
    assert SMALL.exists()
    path = small(*macros, include=include)
    torch.testing.assert_close(*relu(path))
    assert open_library(path).abi == 1 << 16 | minor


@pytest.mark.parametrize("header", [released_header, newer_header, HEADER.read_text])
def test_operations_of_a_segment_lie_as_far_apart_as_the_plugin_thinks(small, tmp_path, header):
    include = tmp_path / "include"
    include.mkdir()
    (include / HEADER.name).write_text(header())
    macros = ["COMPILES", "NEWER_HEADER"] if header is newer_header else ["COMPILES"]
    path = small(*macros, include=include)
    with registry.registered_backend(plugin_backend(path)):
        x = torch.randn(3, 5)
        compiled = torch.compile(lambda x: torch.relu(torch.relu(torch.relu(x))), backend="small")
        torch.testing.assert_close(compiled(x), torch.relu(x))
    assert open_library(path).native.get("compiled") > 0


# ---- the tool that compares headers ------------------------------------------------------------


def changed(tmp_path, *changes):
    """What tools/check_abi.py says of today's header with these replacements."""
    text = HEADER.read_text()
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    text = re.sub(r"DVP_STATIC_ASSERT\((?!sizeof\(void).*?\);\n", "", text, flags=re.S)
    path = tmp_path / HEADER.name
    path.write_text(text)
    command = [sys.executable, str(ROOT / "tools" / "check_abi.py"), str(RELEASED), str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_todays_header_is_compatible_with_the_last_released(compiler, tmp_path):
    assert changed(tmp_path) == (0, "")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("DVP_NO_MEMORY = 4", "DVP_NO_MEMORY = 40", "DVP_NO_MEMORY was `4` and is `40`"),
        ("double cost;", "float cost;", "dvp_answer: `double cost` became `float cost`"),
        (
            "    double cost; ",
            "    double first, cost; ",
            "dvp_answer: `double cost` became `double first`",
        ),
        (
            "uint64_t byte_offset;",
            "uint64_t byte_offset, more;",
            "dvp_tensor has grown by `uint64_t more`",
        ),
        ("(*find_kernel)", "(*find_a_kernel)", "find_a_kernel)("),
        ("uint32_t *version,", "uint64_t *version,", "dvp_plugin: `"),
        ("DVP_ABI_MINOR 3u", "DVP_ABI_MINOR 0u", "is new, and DVP_ABI_MINOR is not higher"),
    ],
)
def test_a_header_that_breaks_plugins_is_refused(compiler, tmp_path, old, new, said):
    code, output = changed(tmp_path, (old, new))
    assert code == 1
    assert said in output


def test_the_header_compiles_by_itself_in_c_and_cpp(compiler, tmp_path):
    import shutil

    commands = [["cc", "-x", "c", "-std=c11"], ["c++", "-x", "c++", "-std=c++17"]]
    for command in commands:
        if shutil.which(command[0]):
            flags = ["-Wall", "-Wextra", "-Werror", "-Wpedantic", "-fsyntax-only", str(HEADER)]
            subprocess.run([*command, *flags], check=True, capture_output=True)
