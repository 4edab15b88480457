"""The binaries of the extension module and of the C library: what protects them was built in."""

import shutil
import struct
import sys
from pathlib import Path

import pytest

from dovetail import _native

pytestmark = [
    pytest.mark.xdist_group("c_programs"),
    pytest.mark.skipif(sys.platform != "linux", reason="reads an ELF file"),
]
LOAD, DYNAMIC, GNU_STACK, GNU_RELRO = 1, 2, 0x6474E551, 0x6474E552
STRTAB, SYMTAB, STRSZ, SYMENT, FLAGS, FLAGS_1 = 5, 6, 10, 11, 30, 0x6FFFFFFB
EXECUTABLE, WRITABLE = 1, 2


class Library:
    """Program headers, the dynamic section and the symbols of an ELF64 file."""

    def __init__(self, path):
        self.data = Path(path).read_bytes()
        assert self.data[:5] == b"\x7fELF\x02"
        (start,) = struct.unpack_from("<Q", self.data, 32)
        size, count = struct.unpack_from("<HH", self.data, 54)
        self.headers = [
            struct.unpack_from("<IIQQQQQQ", self.data, start + size * i) for i in range(count)
        ]
        (dynamic,) = [h for h in self.headers if h[0] == DYNAMIC]
        entries = struct.iter_unpack("<QQ", self.data[dynamic[2] : dynamic[2] + dynamic[5]])
        self.dynamic = dict(entries)

    def at(self, address):
        """The place in the file of an address."""
        for kind, _, offset, start, _, size, *_ in self.headers:
            if kind == LOAD and start <= address < start + size:
                return offset + address - start
        raise AssertionError(hex(address))

    def symbols(self):
        """Name and whether it is defined here, of each dynamic symbol."""
        names = self.at(self.dynamic[STRTAB])
        place = self.at(self.dynamic[SYMTAB])
        while place < names:  # the names follow the symbols, or their versions do
            name, _, _, section = struct.unpack_from("<IBBH", self.data, place)
            if name >= self.dynamic[STRSZ]:
                return
            end = self.data.index(b"\0", names + name)
            yield self.data[names + name : end].decode(), section != 0
            place += self.dynamic[SYMENT]


@pytest.fixture(scope="module", params=["extension", "library"])
def binary(request):
    if request.param == "extension":
        return Library(_native.__file__)
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    return Library(request.getfixturevalue("library") / "lib" / "libdovetail.so")


def test_addresses_are_read_only_once_it_is_loaded(binary):
    assert any(h[0] == GNU_RELRO for h in binary.headers)
    now = binary.dynamic.get(FLAGS, 0) & 8 or binary.dynamic.get(FLAGS_1, 0) & 1
    assert now, "bound lazily: the table of addresses stays writable"


def test_no_memory_is_writable_and_executable(binary):
    (stack,) = [h[1] for h in binary.headers if h[0] == GNU_STACK]
    assert not stack & EXECUTABLE
    loaded = [h[1] for h in binary.headers if h[0] == LOAD]
    assert not any(flags & EXECUTABLE and flags & WRITABLE for flags in loaded)


def test_stacks_and_copies_are_guarded(binary):
    imported = {name for name, defined in binary.symbols() if not defined}
    assert "__stack_chk_fail" in imported
    assert "__vsnprintf_chk" in imported


def test_only_what_python_needs_is_visible():
    symbols = Library(_native.__file__).symbols()
    assert {name for name, defined in symbols if defined} == {"PyInit__native"}
