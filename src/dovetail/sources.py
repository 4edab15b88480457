"""What code is, in terms of its sources: the same text in every process and every checkout.

The rule. What belongs to dovetail, PyTorch or Python is known by its name; their own versions
enter cache keys apart. Anything else is known by its name, by its own code with all it closes
over, by the global names that the code reads and their values, and by the files it comes from: its
module's, and those of all modules of the same top-level package that the module imports, directly
or by way of others. What code uses of another package that has a version is known by that. An
object is known by its class and its attributes. What cannot be told that way raises
``Unidentified``, and nothing is cached; but a value that a module's file makes, under a global name
or as a member of a class, such as a lock or a logger, is known by the file.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import functools
import hashlib
import os
import sys
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from dovetail.errors import DovetailError

# Folders above the pipeline in the import contract: nothing that compiles imports them.
_BESIDE = frozenset({"bench", "cli", "report", "testing"})
_KNOWN = frozenset({"dovetail", "torch", *sys.stdlib_module_names}) - {"__main__"}
_TORCH_NAMES = ("dtype", "device", "layout", "memory_format", "OpOverload", "OpOverloadPacket")
_PLAIN = (str, int, float, bool, complex, bytes, types.NoneType, types.EllipsisType, range)
# Functions and descriptors of classes that are written in C.
BUILTINS = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.GetSetDescriptorType,
    types.ClassMethodDescriptorType,
)


class Unidentified(DovetailError):
    """Code or a value has no text that would be the same in another process."""


# ---- dovetail's own sources ----------------------------------------------------------------------


def package_files(
    folder: Path = Path(__file__).parent, inner: str = ""
) -> Iterator[tuple[str, Path]]:
    """Names within dovetail's package and paths, of all that compiled code can depend on."""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inner}{entry.name}"
            if entry.name.endswith((".py", ".so", ".pyd")):
                yield name, Path(entry.path)
            elif name not in _BESIDE and entry.name != "__pycache__" and entry.is_dir():
                yield from package_files(Path(entry.path), f"{name}/")


def digest_files(files: Iterable[tuple[str, Path]]) -> str:
    """A hash of files by name and contents, in whatever order they are given."""
    whole = hashlib.sha256()
    for name, path in sorted(files):
        whole.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


# ---- functions, classes and values ---------------------------------------------------------------


def identity(value: Any, *, versions_tell: bool = False) -> str:
    """A text for a function, a class, an object or a plain value; Unidentified if there is none.

    ``versions_tell``: there is none either for what is not dovetail's, PyTorch's or Python's.
    """
    try:
        return _CodeReader(versions_tell).text(value)
    except RecursionError:
        raise Unidentified("it refers to too much, or to itself") from None


def plain_attributes(value: Any) -> str:
    """The attributes of a user's object that are plain values, which do not change by themselves.

    For an object whose others are its own affair: handles, what it keeps to save work.
    """
    if _top(type(value).__module__) in _KNOWN:
        return ""
    held = {n: v for n, v in sorted(vars(value).items()) if _is_plain(v)}
    return identity(held)


def _is_plain(value: Any) -> bool:
    if type(value) in (tuple, frozenset):
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or isinstance(value, enum.Enum)


def known_name(value: Any) -> str | None:
    """The name that finds a function or class of PyTorch or Python in every process, if it has one.

    Nothing but a name that leads to the very object counts: wrappers bear the names of others.
    """
    module, qualified = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    if not module or not qualified or _top(module) not in _KNOWN:
        return None
    return f"{module}.{qualified}" if _is_found(value, module) else None


class _CodeReader:
    """Texts of values, each object being read once."""

    def __init__(self, versions_tell: bool) -> None:
        self.versions_tell = versions_tell
        self.seen: dict[int, int] = {}  # id → number, also for what refers to itself

    def text(self, value: Any) -> str:
        if type(value) in _PLAIN:
            return repr(value)
        if isinstance(value, enum.Enum):
            return f"{type(value).__qualname__}.{value.name} {self.text(value.value)}"
        if type(value) in (list, tuple):
            return f"{type(value).__name__}({', '.join(map(self.text, value))})"
        if type(value) in (set, frozenset):
            return f"{type(value).__name__}({', '.join(sorted(map(self.text, value)))})"
        if type(value) in (dict, types.MappingProxyType):
            pairs = (f"{self.text(key)}: {self.text(held)}" for key, held in value.items())
            return f"{{{', '.join(pairs)}}}"
        if id(value) in self.seen:
            return f"#{self.seen[id(value)]}"
        self.seen[id(value)] = len(self.seen)
        return known_name(value) or self.code(value)

    def code(self, value: Any) -> str:
        if self.versions_tell and isinstance(value, types.FunctionType | type):
            if _top(_home(value)) not in _KNOWN:
                raise Unidentified(f"{value.__qualname__} is code of the user's")
        if isinstance(value, types.ModuleType):
            return f"module {value.__name__} {_files_of(value.__name__)}"
        if isinstance(value, type):
            return self.cls(value)
        if isinstance(value, functools.partial):
            return f"partial {self.text((value.func, value.args, value.keywords))}"
        if isinstance(value, types.MethodType):
            return f"method {self.text((value.__func__, value.__self__))}"
        if isinstance(value, types.FunctionType):
            return self.function(value)
        if isinstance(value, BUILTINS):
            return _builtin(value)
        if isinstance(value, types.MethodWrapperType):  # such as a property's __get__
            return f"{_builtin(value.__self__)}.{value.__name__}"
        return self.object(value)

    def cls(self, cls: type) -> str:
        """A class by its files, its bases outside of what versions tell, and its own members."""
        bases = [b for b in cls.__mro__[1:] if _top(b.__module__) not in _KNOWN]
        own = {} if _top(cls.__module__) in _KNOWN else vars(cls)
        members = [
            f"{name} {self.held(cls.__module__, held)}"
            for name, held in sorted(own.items())
            if _is_member(name, held)
        ]
        parts = (_qualified(cls), _files_of(cls.__module__), *map(self.text, bases), *members)
        return " ".join(parts)

    def function(self, fn: types.FunctionType) -> str:
        cells = [self.text(_contents(cell)) for cell in fn.__closure__ or ()]
        defaults = self.text((fn.__defaults__, fn.__kwdefaults__))
        parts = (_qualified(fn), code_digest(fn.__code__), *cells, defaults, *self.globals(fn))
        return f"{' '.join(parts)} {_files_of(_home(fn))}"

    def globals(self, fn: types.FunctionType) -> Iterator[str]:
        """The global names that a function reads, and what it may read of modules, with values.

        Files do not tell what was set since they were imported, nor what was typed at a prompt.
        """
        here = _home(fn)
        if _top(here) in _KNOWN:
            return
        names = sorted(_names(fn.__code__))
        for name in names:
            if name in fn.__globals__:
                value = fn.__globals__[name]
                yield f"{name} {self.held(here, value)}"
                if isinstance(value, types.ModuleType) and not _version(value.__name__, here):
                    found = vars(value)
                    yield from (
                        f"{name}.{n} {self.held(here, found[n])}" for n in names if n in found
                    )

    def held(self, module: str, value: Any) -> str:
        """What a global name or a member of a class of this module stands for."""
        if isinstance(value, staticmethod | classmethod):
            value = value.__func__
        elif isinstance(value, property):
            value = (value.fget, value.fset, value.fdel)
        elif isinstance(value, functools.cached_property):
            value = value.func
        if told := _known_by_version(value, module):
            return told
        before = len(self.seen)
        try:
            return self.text(value)
        except Unidentified:
            while len(self.seen) > before:
                self.seen.popitem()
            if _path_of(module) is None or hasattr(value, "untyped_storage"):
                raise
            return "as its file says"

    def object(self, value: Any) -> str:
        """An object of its own kind by what it says of itself, else by class and attributes."""
        cls = type(value)
        if (told := getattr(value, "identity_source", None)) is not None:
            return f"{_qualified(cls)} {told}"
        if cls.__module__ in ("torch", "torch._ops") and cls.__name__ in _TORCH_NAMES:
            return str(value)
        if _top(cls.__module__) == "dovetail" and dataclasses.is_dataclass(value):
            held = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
            return f"{_qualified(cls)} {self.text(held)}"
        if not hasattr(value, "__dict__") or _top(cls.__module__) in _KNOWN:
            raise Unidentified(f"a value of type {_qualified(cls)} cannot be told apart by text")
        return f"{self.text(cls)} {self.text(vars(value))}"


def _home(value: Any) -> str:
    """The module that code is of; a wrapper bears the name of another's."""
    home = getattr(value, "__globals__", {}).get("__name__")
    return str(home or value.__module__)


def _is_member(name: str, held: Any) -> bool:
    """Whether an attribute of a class is the author's, not the interpreter's."""
    if isinstance(held, types.FunctionType):
        return True
    ours = name == "_abc_impl" or (name.startswith("__") and name.endswith("__"))
    return not ours and not isinstance(held, types.MemberDescriptorType)


def _names(code: types.CodeType) -> set[str]:
    """The global names that code may read, functions within it too, and those of attributes."""
    found = set(code.co_names)
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            found |= _names(const)
    return found


def _version(module: str, reader: str) -> str:
    """What tells the code of a module as seen from another: a version; empty: its files do."""
    top = _top(module)
    if top in _KNOWN:
        return "known"
    package = sys.modules.get(top)
    version, file = getattr(package, "__version__", None), getattr(package, "__file__", None)
    installed = {"site-packages", "dist-packages"} & set(Path(file or "").parts)
    return version if installed and isinstance(version, str) and top != _top(reader) else ""


def _known_by_version(value: Any, reader: str) -> str:
    """A module, function or class of an installed package other than the reader's own."""
    home = getattr(value, "__name__" if isinstance(value, types.ModuleType) else "__module__", None)
    if not isinstance(home, str) or _top(home) in _KNOWN or not (told := _version(home, reader)):
        return ""
    if isinstance(value, types.ModuleType):
        return f"module {home} {told}"
    return f"{home}.{value.__qualname__} {told}" if _is_found(value, home) else ""


def _is_found(value: Any, module: str) -> bool:
    """Whether a value's name leads to the very object: wrappers bear the names of others."""
    qualified = getattr(value, "__qualname__", None)
    found: Any = sys.modules.get(module)
    for name in (qualified or "?").split("."):
        found = getattr(found, name, None)
    return found is value


def _top(module: str | None) -> str:
    return (module or "").partition(".")[0]


def _contents(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # a name that is not bound yet
        return None


def _qualified(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _builtin(value: Any) -> str:
    owner = getattr(value, "__objclass__", None) or type(getattr(value, "__self__", None))
    home = getattr(value, "__module__", None) or owner.__module__
    if _top(home) not in _KNOWN:
        raise Unidentified(f"{home}.{value.__qualname__} is compiled code of another package")
    return f"{home}.{value.__qualname__}"


def code_digest(code: types.CodeType) -> str:
    """A hash of what a code object does, whatever file and line it comes from."""
    consts = [
        code_digest(c) if isinstance(c, types.CodeType) else _const(c) for c in code.co_consts
    ]
    names = (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars)
    counts = (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags)
    return hashlib.sha256(repr((code.co_code, consts, names, counts)).encode()).hexdigest()[:32]


def _const(value: Any) -> str:
    return repr(sorted(map(repr, value))) if isinstance(value, frozenset) else repr(value)


# ---- files of a package --------------------------------------------------------------------------


def _files_of(module: str | None) -> str:
    """A hash of the files that code of a module comes from; empty where versions tell."""
    return "" if _top(module) in _KNOWN else _module_digest(str(module))


@functools.cache
def _module_digest(module: str) -> str:
    """A hash of a module's file and of those of its package that it imports.

    Read once a process: what is imported does not change with its file.
    """
    found: dict[str, Path] = {}
    todo = [module]
    while todo:
        name = todo.pop()
        path = _path_of(name)
        if name in found or path is None:
            continue
        found[name] = path
        todo += _parents(name)
        if path.suffix == ".py":
            todo += _imports(name, path)
    return digest_files(found.items())


def _path_of(module: str) -> Path | None:
    """The file of a module, loaded or not; None for what is no module or was typed at a prompt."""
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None and Path(loaded).is_file():
        return Path(loaded)
    top, *inner = module.split(".")
    for folder in getattr(sys.modules.get(top), "__path__", None) or ():
        stem = Path(folder, *inner)
        for candidate in (stem.with_suffix(".py"), stem / "__init__.py"):
            if candidate.is_file():
                return candidate
    return None


def _parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:n]) for n in range(1, len(parts))]


def _imports(module: str, path: Path) -> Iterator[str]:
    """Names that may be modules of the same top-level package, from a file's import statements."""
    top = module.partition(".")[0]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(_parsed(path)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1]
            base = ".".join([*(above if node.level else ()), *filter(None, [node.module])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        yield from (name for name in names if name.partition(".")[0] == top)


def _parsed(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes())
    except SyntaxError:  # not a file that was imported
        return ast.Module(body=[], type_ignores=[])
