"""Operations as expressions of other operations, for whoever has no word of its own for them."""

from __future__ import annotations

import ast
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace

from dovetail.ir.kernel import Apply, Const, Instruction, Kernel, Loop
from dovetail.ir.ops import OPERATIONS

_OPERANDS = "xyz"


def expand(kernel: Kernel, has: Callable[[str], bool]) -> Kernel:
    """The kernel in operations that are had, as far as the table of operations has expansions."""
    if all(not isinstance(i, Apply) or has(i.op) for i in kernel.instructions()):
        return kernel
    made = _Expansion(kernel, has)
    loops = (Loop(loop.axes, tuple(made.body(loop.body))) for loop in kernel.loops)
    return replace(kernel, loops=tuple(loops))


@functools.cache
def _parsed(expansion: str) -> ast.expr:
    return ast.parse(expansion, mode="eval").body


class _Expansion:
    """The instructions that take the place of a kernel's."""

    def __init__(self, kernel: Kernel, has: Callable[[str], bool]) -> None:
        self.has = has
        self.types = {i.name: i.dtype for i in kernel.instructions()}
        self.out: list[Instruction] = []

    def body(self, body: tuple[Instruction, ...]) -> Iterator[Instruction]:
        for i in body:
            if isinstance(i, Apply):
                self.apply(i.name, i.op, i.dtype, i.args)
            else:
                self.out.append(i)
            yield from self.out
            self.out.clear()

    def apply(self, name: str, op: str, dtype: str, args: tuple[str, ...]) -> None:
        expansion = OPERATIONS[op].expansion if op in OPERATIONS else ""
        if self.has(op) or not expansion:
            self.out.append(Apply(name, dtype, op, args))
            return
        node = _parsed(expansion)
        assert isinstance(node, ast.Call)
        self.call(name, node, dict(zip(_OPERANDS, args, strict=False)), self.types[args[0]])

    def call(self, name: str, node: ast.Call, given: dict[str, str], dtype: str) -> None:
        """One call of an expansion as the value ``name``; numbers in it are of ``dtype``."""
        assert isinstance(node.func, ast.Name)
        args = tuple(self.value(name, arg, given, dtype) for arg in node.args)
        op = node.func.id.rstrip("_")  # and_, or_, not_: Python keeps those words to itself
        self.types[name] = OPERATIONS[op].result(tuple(self.types[a] for a in args))
        self.apply(name, op, self.types[name], args)

    def value(self, stem: str, node: ast.expr, given: dict[str, str], dtype: str) -> str:
        if isinstance(node, ast.Name):
            return given[node.id]
        name = self.fresh(stem)
        if isinstance(node, ast.Call):
            self.call(name, node, given, dtype)
        else:
            self.types[name] = dtype
            self.out.append(Const(name, dtype, ast.literal_eval(node)))
        return name

    def fresh(self, stem: str) -> str:
        count = 0
        while f"{stem}_{count}" in self.types:
            count += 1
        self.types[f"{stem}_{count}"] = ""  # taken
        return f"{stem}_{count}"
