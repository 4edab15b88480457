"""tools/check_abi.py: a header against the last released one."""

import importlib.util
import shutil
import sys

import pytest

from tests.ground.environments import ROOT

RELEASED = """\
#include <stdint.h>
#define DVT_VERSION_MINOR 1
#define DVT_FLAG 4u /* a comment */
typedef int32_t dvt_status;
enum { DVT_OK = 0, DVT_BAD, DVT_LAST = 7 };
typedef struct { int32_t type, id; } dvt_device;
typedef struct {
    uint32_t struct_size;
    uint64_t a, *b;
    void (*call)(void *context, dvt_device device);
} dvt_options;
typedef struct dvt_thing dvt_thing;
DVT_API dvt_status dvt_open(const char *path, const dvt_options *options, uint8_t digest[32]);
DVT_API const char *dvt_name(const dvt_thing *thing);
"""
COMPATIBLE = [
    ("DVT_VERSION_MINOR 1", "DVT_VERSION_MINOR 2"),
    ("const char *path", "const char *where"),
    ("dvt_device device);\n", "dvt_device on);\n    uint32_t later;\n"),
    ("DVT_LAST = 7 }", "DVT_LAST = 7, DVT_NEXT }"),
    ("typedef struct dvt_thing", "DVT_API int dvt_new(void);\ntypedef struct dvt_thing"),
    ("DVT_BAD,", "DVT_BAD = 1,"),
]
INCOMPATIBLE = [
    ("DVT_FLAG 4u", "DVT_FLAG 8u", "DVT_FLAG was `4u` and is `8u`"),
    ("DVT_BAD,", "DVT_BAD = 2,", "DVT_BAD was `1`"),
    (", DVT_LAST = 7", "", "DVT_LAST is gone"),
    ("DVT_API const char *dvt_name(const dvt_thing *thing);\n", "", "dvt_name is gone"),
    ("uint8_t digest[32])", "uint8_t digest[64])", "dvt_open was"),
    ("const dvt_options *options", "dvt_options *options", "dvt_open was"),
    ("uint64_t a, *b;", "uint64_t *b, a;", "dvt_options: `uint64_t a` became `uint64_t *b`"),
    ("uint64_t a, *b;", "uint64_t a;", "dvt_options"),
    ("uint64_t a, *b;", "uint32_t a; uint64_t *b;", "dvt_options"),
    ("type, id;", "type, id, more;", "dvt_device has grown by `int32_t more`"),
    ("(void *context, dvt", "(void *context, int x, dvt", "dvt_options"),
    ("typedef int32_t dvt_status", "typedef int64_t dvt_status", "dvt_status was `int32_t`"),
]


@pytest.fixture(scope="module")
def tool():
    spec = importlib.util.spec_from_file_location("check_abi", ROOT / "tools" / "check_abi.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["check_abi"] = module  # where dataclasses look for their own
    spec.loader.exec_module(module)
    return module


def problems(tool, before, after):
    assert before in RELEASED
    changed = RELEASED.replace(before, after)
    return tool.compare(tool.read_header(RELEASED), tool.read_header(changed))


@pytest.mark.parametrize(("before", "after"), COMPATIBLE)
def test_what_may_change(tool, before, after):
    assert problems(tool, before, after) == []


@pytest.mark.parametrize(("before", "after", "problem"), INCOMPATIBLE)
def test_what_may_not(tool, before, after, problem):
    (found,) = problems(tool, before, after)
    assert problem in found


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_type_that_changed_behind_its_name(tool, tmp_path):
    (tmp_path / "hidden.h").write_text("typedef unsigned hidden;\n")
    text = '#include "hidden.h"\ntypedef struct { unsigned struct_size; hidden a, b; } dvt_s;\n'
    (tmp_path / "old.h").write_text(text)
    other = tmp_path / "other"
    other.mkdir()
    (other / "hidden.h").write_text("typedef unsigned long long hidden;\n")
    (other / "new.h").write_text(text)
    first, *_ = tool.check(tmp_path / "old.h", other / "new.h")
    assert "dvt_s.a lay at and took 4 4 bytes, now 8 8" in first


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("name", ["dovetail.h", "dovetail_plugin.h"])
def test_programs_of_the_last_release_go_on(tool, name):
    assert tool.check(ROOT / "native" / "abi" / name, ROOT / "native" / "include" / name) == []
    assert len(tool.read_header((ROOT / "native" / "include" / name).read_text()).structs) > 5
