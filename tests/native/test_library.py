"""The C library as a product: what it shows, what it needs, and programs in C, C++ and Rust."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import dovetail
from dovetail import _native
from tests.artifact.files import file_bytes, floats
from tests.ground.environments import ROOT

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.xdist_group("c_programs"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]
HEADER = (ROOT / "native" / "include" / "dovetail.h").read_text()
DECLARED = set(re.findall(r"^DVT_API [^;]*?\b(dvt_\w+)\(", HEADER, re.M))
ADD = """\
program @add
symbol s0 = %x[0] in 2..8
input %x: float32[s0, 3]
input %bias: float32[3]
output %y: float32[s0, 3]
guard s0 % 2 == 0
kernel %y = add@1(%x, %bias)
return %y
"""
COUNT = """\
program @count
input %x: float32[2]
state %total: float32[2]
temporary %t: float32[2]
output %y: float32[2]
kernel %t = add@1(%total, %x)
copy %total = %t
kernel %y = copy@1(%t)
return %y
"""
PLAIN = {"PATH": "/usr/bin:/bin"}  # nothing of this environment: no Python, no flags


def run(*command, cwd, **variables):
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**PLAIN, **variables},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture
def files(tmp_path):
    (tmp_path / "add.dvt").write_bytes(file_bytes(ADD))
    (tmp_path / "count.dvt").write_bytes(file_bytes(COUNT, {"total": floats(0, 0)}))
    return tmp_path


def defined(library, *flags):
    lines = run("nm", *flags, "--defined-only", library, cwd="/").splitlines()
    return {line.split()[-1] for line in lines if len(line.split()) == 3}


def test_the_header_gives_every_function_a_rule_for_threads():
    rules = HEADER[HEADER.index("* Threads.") : HEADER.index("* Callbacks (")]
    listed = re.findall(r"\bdvt_\w+", rules)
    assert len(listed) == len(set(listed))
    assert set(listed) == DECLARED


def test_only_what_the_header_declares_is_visible(library):
    assert defined(library / "lib" / "libdovetail.so", "-D") == DECLARED
    assert defined(library / "lib" / "libdovetail.a", "-g") == DECLARED


def test_it_needs_the_c_library_alone(library):
    lines = run("ldd", library / "lib" / "libdovetail.so", cwd="/").splitlines()
    needed = {line.split()[0].split("/")[-1].split(".so")[0] for line in lines}
    assert needed <= {"linux-vdso", "ld-linux-x86-64", "ld-linux-aarch64", "libc", "libm",
                      "libpthread", "libdl"}  # fmt: skip
    dynamic = run("objdump", "-p", library / "lib" / "libdovetail.so", cwd="/")
    assert re.search(r"SONAME\s+libdovetail\.so\.0$", dynamic, re.M)


def test_the_header_the_library_and_the_package_are_of_one_version(library):
    assert _native.version() == dovetail.__version__
    found = run("pkg-config", "--modversion", "dovetail", cwd="/", **where(library))
    assert found.strip() == dovetail.__version__
    assert (library / "lib" / f"libdovetail.so.{dovetail.__version__}").is_file()


def where(library):
    return {"PKG_CONFIG_PATH": str(library / "lib" / "pkgconfig")}


@pytest.mark.parametrize("kind", ["shared", "static"])
def test_the_whole_interface_from_c(library, files, kind):
    flags = ["--static"] if kind == "static" else []
    words = run("pkg-config", "--cflags", "--libs", *flags, "dovetail", cwd=files, **where(library))
    words = [word.replace("\\ ", " ") for word in re.split(r"(?<!\\) ", words.strip())]
    if kind == "static":
        words = [library / "lib" / "libdovetail.a" if w == "-ldovetail" else w for w in words]
    strict = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread"]
    source = ROOT / "tests" / "native" / "library.c"
    run("cc", *strict, "-o", "test", source, *words, cwd=files)
    said = run("./test", cwd=files, LD_LIBRARY_PATH=str(library / "lib"), DOVETAIL_NUM_THREADS="2")
    assert said == "ok\n"


@pytest.mark.skipif(shutil.which("cmake") is None, reason="needs CMake")
@pytest.mark.parametrize("static", ["OFF", "ON"])
def test_a_program_in_cpp_finds_it_by_cmake(library, files, static):
    source = ROOT / "examples" / "cpp_runtime"
    options = [f"-DCMAKE_PREFIX_PATH={library}", f"-DDOVETAIL_STATIC={static}"]
    run("cmake", "-S", source, "-B", files / "build", *options, cwd=files)
    run("cmake", "--build", files / "build", cwd=files)
    assert run(files / "build" / "run", "add.dvt", cwd=files).startswith("y: 0.000000 0.020000")


@pytest.mark.skipif(shutil.which("cargo") is None, reason="needs Rust")
def test_a_program_in_rust(library, files):
    shutil.copytree(ROOT / "examples" / "rust_runtime", files / "rust")
    plain = library.parent / "plain"  # cargo's flags have no quotes
    if not plain.exists():
        plain.symlink_to(library)
    kept = {name: os.environ[name] for name in ("HOME", "CARGO_HOME", "RUSTUP_HOME") if
            name in os.environ}  # fmt: skip
    path = f"{Path(shutil.which('cargo')).parent}:{PLAIN['PATH']}"
    variables = {**kept, "PATH": path, "LD_LIBRARY_PATH": str(plain / "lib")}
    run("cargo", "build", "-q", "--offline", cwd=files / "rust", **variables, **where(plain))
    said = run(files / "rust" / "target" / "debug" / "run_artifact", "add.dvt", cwd=files,
               **variables)  # fmt: skip
    assert said.startswith("y: 0.000000 0.020000 0.040000 0.030000")
