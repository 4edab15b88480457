"""Size expressions: integers computed from symbols at run time.

A ``Size`` is a small immutable tree over named symbols (``s0 * 2 + 1``). It prints as Python,
parses back, and compiles to a stack program that the C runtime evaluates with checked 64-bit
arithmetic. Python evaluation is kept beside it as the oracle and for machines without the
extension. Division and modulo are Python's (they round towards minus infinity).

On the way to an integer, or to a ``Real`` (``ir/real.py``), an expression may compute in floating
point: ``real`` and the operations named after it give the bits of a float64 as an int64.
"""

from __future__ import annotations

import ast
import functools
import importlib
import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from dovetail.errors import SizeError

_LONGEST = 10_000  # characters of an expression; longer ones would exhaust Python's parser
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
VALUE = -1  # in place of the axis that a symbol is the size of: it is the input's value


class _Operation(NamedTuple):
    """One row of the table of operations on sizes."""

    opcode: int  # shared with native/src/size.c, as those below; part of the artifact format
    compute: Callable[..., int]
    sign: str = ""  # between operands; empty: they stand behind the name
    level: int = 0  # how tightly the sign binds
    node: type[ast.operator] | None = None  # in Python's syntax tree
    arity: int = 2


def bits_of(value: float) -> int:
    """The bits of a float64 as an int64."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)


def real_of(bits: int) -> float:
    """The float64 of these bits."""
    (value,) = struct.unpack("<d", struct.pack("<q", bits))
    return float(value)


def _in_bits(compute: Callable[..., float]) -> Callable[..., int]:
    """A function of float64 numbers as one of their bits."""
    return lambda *bits: bits_of(compute(*map(real_of, bits)))


def _of_bits(compute: Callable[[float], int]) -> Callable[[int], int]:
    """A function that gives an integer, of a float64's bits."""
    return lambda bits: compute(real_of(bits))


_OPERATIONS = {
    "add": _Operation(2, operator.add, "+", 1, ast.Add),
    "sub": _Operation(3, operator.sub, "-", 1, ast.Sub),
    "mul": _Operation(4, operator.mul, "*", 2, ast.Mult),
    "floordiv": _Operation(5, operator.floordiv, "//", 2, ast.FloorDiv),
    "mod": _Operation(6, operator.mod, "%", 2, ast.Mod),
    "max": _Operation(7, max),
    "min": _Operation(8, min),
    "real": _Operation(10, lambda whole: bits_of(float(whole)), arity=1),
    "real_add": _Operation(11, _in_bits(operator.add)),
    "real_sub": _Operation(12, _in_bits(operator.sub)),
    "real_mul": _Operation(13, _in_bits(operator.mul)),
    "real_div": _Operation(14, _in_bits(operator.truediv)),
    "real_pow": _Operation(15, _in_bits(math.pow)),
    "real_max": _Operation(16, _in_bits(max)),
    "real_min": _Operation(17, _in_bits(min)),
    "real_sqrt": _Operation(18, _in_bits(math.sqrt), arity=1),
    "floor": _Operation(19, _of_bits(math.floor), arity=1),
    "ceil": _Operation(20, _of_bits(math.ceil), arity=1),
    "trunc": _Operation(21, _of_bits(math.trunc), arity=1),
    "round": _Operation(22, _of_bits(round), arity=1),
}
_CALLED = {name: row.arity for name, row in _OPERATIONS.items() if not row.sign}
_TAKES_BITS = frozenset(n for n, o in _OPERATIONS.items() if o.opcode > _OPERATIONS["real"].opcode)
_OPCODES = {"push": 0, "load": 1, "store": 9} | {n: o.opcode for n, o in _OPERATIONS.items()}
_FROM_AST = {row.node: name for name, row in _OPERATIONS.items() if row.node is not None}


@dataclass(frozen=True, slots=True)
class Size:
    """An expression: a symbol (``op == "symbol"``) or an operation on one or two dimensions."""

    op: str
    args: tuple[Any, ...]

    def __hash__(self) -> int:
        # Of the first two levels: expressions are deep, and tables of them are asked often.
        args = [arg.op if isinstance(arg, Size) else arg for arg in self.args]
        return hash((self.op, *args))

    @staticmethod
    def symbol(name: str) -> Size:
        """The symbol called ``name``."""
        return Size("symbol", (name,))

    @staticmethod
    def binary(op: str, left: Dim, right: Dim) -> Dim:
        """``left op right``, folded when both are known."""
        return Size.of(op, left, right)

    @staticmethod
    def of(op: str, *args: Dim) -> Dim:
        """An operation, folded when all operands are known."""
        known = [arg for arg in args if isinstance(arg, int)]
        return _apply(op, *known) if len(known) == len(args) else Size(op, args)

    @property
    def is_symbol(self) -> bool:
        """Whether this is a bare symbol."""
        return self.op == "symbol"

    def symbols(self) -> frozenset[str]:
        """The names of every symbol in this expression."""
        if self.is_symbol:
            return frozenset(self.args)
        return frozenset().union(*(symbols_of(arg) for arg in self.args))

    def evaluate(self, values: Mapping[str, int]) -> int:
        """The number this stands for, given each symbol's value."""
        if self.is_symbol:
            try:
                return values[self.args[0]]
            except KeyError:
                raise SizeError(f"no value for the symbol {self.args[0]!r} in {self}") from None
        return _apply(self.op, *[evaluate(arg, values) for arg in self.args])

    def __str__(self) -> str:
        return _print(self, 0)

    __repr__ = __str__


Dim = int | Size
UNKNOWN = Size.symbol("unknown")  # a size known only once it is there; nothing binds it


def evaluate(dim: Dim, values: Mapping[str, int]) -> int:
    """The number a dimension stands for."""
    return dim if isinstance(dim, int) else dim.evaluate(values)


def symbols_of(dim: Dim) -> frozenset[str]:
    """The symbols a dimension depends on."""
    return frozenset() if isinstance(dim, int) else dim.symbols()


def substitute(dim: Dim, values: Mapping[str, Dim]) -> Dim:
    """A dimension with others in place of some of its symbols."""
    if isinstance(dim, int):
        return dim
    if dim.is_symbol:
        return values.get(dim.args[0], dim)
    return Size.of(dim.op, *[substitute(arg, values) for arg in dim.args])


def parse_size(text: str) -> Dim:
    """The dimension that ``text`` prints; only what ``str(Size)`` writes is accepted."""
    if len(text) > _LONGEST:
        raise SizeError(f"a size expression of {len(text)} characters")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        return _from_ast(tree.body)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise SizeError(f"{text!r} is not a size expression: {error}") from None


def split_top(text: str) -> list[str]:
    """The parts between commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "([{") - (sign in ")]}")
        if sign == "," and depth == 0:
            parts.append(text[start:at].strip())
            start = at + 1
    return [*parts, text[start:].strip()] if text.strip() else []


class SizeProgram:
    """Several size expressions over one list of symbols, evaluated in one call."""

    def __init__(self, symbols: Sequence[str], sizes: Iterable[Dim]) -> None:
        self.symbols = tuple(symbols)
        self.sizes = tuple(sizes)
        self._native = _native_program(self.code(), len(self.symbols), len(self.sizes))

    def code(self) -> bytes:
        """The stack program: pairs of little-endian int64, opcode and operand."""
        index = {name: i for i, name in enumerate(self.symbols)}
        words: list[int] = []
        for i, size in enumerate(self.sizes):
            _emit(size, index, words)
            words += (_OPCODES["store"], i)
        return struct.pack(f"<{len(words)}q", *words)

    def evaluate(self, values: Sequence[int]) -> tuple[int, ...]:
        """The value of each expression, given each symbol's value in order."""
        if self._native is not None:
            try:
                return self._native.run(values)  # type: ignore[no-any-return]
            except ArithmeticError as error:
                raise SizeError(f"{error} ({self.describe(values)})") from None
        return self.evaluate_python(values)

    def evaluate_python(self, values: Sequence[int]) -> tuple[int, ...]:
        """The same, without the extension: the oracle the native evaluator is tested against."""
        bound = dict(zip(self.symbols, values, strict=True))
        return tuple(_checked(evaluate(size, bound)) for size in self.sizes)

    def describe(self, values: Sequence[int]) -> str:
        """The expressions and the symbols' values, for an error message."""
        where = ", ".join(f"{s}={v}" for s, v in zip(self.symbols, values, strict=False))
        return f"{', '.join(map(str, self.sizes))} with {where}"


def decode_sizes(code: bytes, symbols: Sequence[str]) -> list[Dim]:
    """The sizes that ``SizeProgram.code`` wrote, in order."""
    names = {opcode: name for name, opcode in _OPCODES.items()}
    stack: list[Dim] = []
    sizes: list[Dim] = []
    for opcode, operand in struct.iter_unpack("<2q", code):
        match names[opcode]:
            case "push":
                stack.append(operand)
            case "load":
                stack.append(Size.symbol(symbols[operand]))
            case "store":
                sizes.append(stack.pop())
            case name:
                first = len(stack) - _OPERATIONS[name].arity
                stack[first:] = [Size.of(name, *stack[first:])]
    return sizes


@functools.cache
def _native_class() -> Any:
    try:
        return importlib.import_module("dovetail._native").SizeProgram
    except ImportError:  # not built: the Python evaluator serves
        return None


def _native_program(code: bytes, symbols: int, outputs: int) -> Any:
    native = _native_class()
    return native(code, symbols, outputs) if native is not None else None


def _checked(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise SizeError(f"{value} does not fit 64 bits")
    return value


def _apply(op: str, *args: int) -> int:
    if op in ("floordiv", "mod") and args[1] == 0:
        raise SizeError(f"division by zero: {args[0]} {_OPERATIONS[op].sign} 0")
    try:
        return _checked(_OPERATIONS[op].compute(*args))
    except (ArithmeticError, ValueError) as error:
        shown = ", ".join(str(real_of(arg)) for arg in args)
        raise SizeError(f"{op}({shown}): {error}") from None


def _emit(dim: Dim, index: Mapping[str, int], words: list[int]) -> None:
    if isinstance(dim, int):
        words += (_OPCODES["push"], _checked(dim))
    elif dim.is_symbol:
        if dim.args[0] not in index:
            raise SizeError(f"no value for the symbol {dim.args[0]!r}")
        words += (_OPCODES["load"], index[dim.args[0]])
    else:
        for arg in dim.args:
            _emit(arg, index, words)
        words += (_OPCODES[dim.op], 0)


def _print(dim: Dim, outer: int) -> str:
    if isinstance(dim, int):
        return f"({dim})" if dim < 0 and outer else str(dim)
    if dim.is_symbol:
        return str(dim.args[0])
    row = _OPERATIONS[dim.op]
    sign, level = row.sign, row.level
    if not sign:
        shown = _print_real if dim.op in _TAKES_BITS else _print
        return f"{dim.op}({', '.join(shown(arg, 0) for arg in dim.args)})"
    left, right = dim.args
    # The right side binds one tighter, so that a - (b - c) keeps its parentheses.
    text = f"{_print(left, level)} {sign} {_print(right, level + 1)}"
    return f"({text})" if level < outer else text


def _print_real(dim: Dim, outer: int) -> str:
    """An operand of floating point, which is a number where its bits are known."""
    known = isinstance(dim, int) and math.isfinite(real_of(dim))
    return repr(real_of(dim)) if known else _print(dim, outer)  # type: ignore[arg-type]


def _from_ast(node: ast.expr) -> Dim:
    match node:
        case ast.Constant(value=int(value)) if not isinstance(value, bool):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int(value))):
            return -value
        case ast.Name(id=name):
            return Size.symbol(name)
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _FROM_AST:
            return Size(_FROM_AST[type(op)], (_from_ast(left), _from_ast(right)))
        case ast.Call(func=ast.Name(id=name), args=given, keywords=[]):
            if _CALLED.get(name) == len(given):
                read = _real_from_ast if name in _TAKES_BITS else _from_ast
                return Size(name, tuple(map(read, given)))
    raise ValueError(f"unexpected {type(node).__name__}")


def _real_from_ast(node: ast.expr) -> Dim:
    match node:
        case ast.Constant(value=float(value)):
            return bits_of(value)
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=float(value))):
            return bits_of(-value)
    return _from_ast(node)
