"""Writes the C headers that repeat ``ir/ops.py`` and ``ir/dtypes.py``: ``make generate``.

With ``--check`` it writes nothing, and fails where a header is not what the tables say.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from dovetail.ir.dtypes import DTYPES, KERNEL_DTYPES, DType
from dovetail.ir.ops import OPERATIONS_BY_NUMBER, REDUCTION_RULES, REDUCTIONS_BY_NUMBER, RULES

SOURCES = Path(__file__).parent.parent / "native" / "src"
WIDTH = 95  # of a line, up to the backslash that continues it

OPERATIONS = """\
/* kernel_ops.h: kernel IR's operations and reductions, their numbers in a file, and what
 * operands they take. Written by tools/generate_tables.py from src/dovetail/ir/ops.py:
 * make generate. */
#ifndef DVT_KERNEL_OPS_H
#define DVT_KERNEL_OPS_H

/* What operands a rule admits: FLOAT to SINGLE one type for operands and result; CAST any to
 * any; TEST a floating-point number to bool; COMPARE two of one type to bool; SELECT a bool and
 * two of the result's type; CHECK int64, int64, bool to int64; BITS_OF int64 to float64. */
typedef enum {
@rules@
} rule_id;

/* X(number, name, operands, rule) */
@operations@

/* What a reduction gives: a number, any type, a bool, or the int64 position that its second
 * operand is. */
typedef enum {
@reduction_rules@
} reduction_rule;

/* X(number, name, operands, rule) */
@reductions@

#define X(number, name, arity, rule) K_##name = number,
enum { KERNEL_OPERATIONS(X) K_COUNT };
#undef X
#define X(number, name, arity, rule) F_##name = number,
enum { KERNEL_REDUCTIONS(X) F_COUNT };
#undef X

#endif
"""

TYPES = """\
/* dtypes.h: element types. Written by tools/generate_tables.py from src/dovetail/ir/dtypes.py:
 * make generate. */
#ifndef DVT_DTYPES_H
#define DVT_DTYPES_H

#include <stdint.h>

/* The types that kernels know: X(number in kernel IR, name, DLPack's code, bits, the type that
 * its elements are computed in, its least and its greatest number where it is no floating-point
 * type). */
@kernel_types@

#define X(number, name, code, bits, computed, least, most) T_##name = number,
typedef enum { KERNEL_TYPES(X) T_COUNT, T_NONE = -1 } type_id;
#undef X

/* All but complex types: X(name, DLPack's code, bits) */
@real_types@

#endif
"""


def macro(name: str, rows: Iterable[str]) -> str:
    """A macro that applies X to each row."""
    lines = [f"#define {name}(X)", *(f"    X({row})" for row in rows)]
    return "\n".join([*(f"{line:{WIDTH}}\\" for line in lines[:-1]), lines[-1]])


def enumerators(prefix: str, names: Iterable[str]) -> str:
    """The lines of an enum."""
    return ",\n".join(f"    {prefix}_{name.upper()}" for name in names)


def type_name(row: DType) -> str:
    """What C's T_ names call a type."""
    return row.name.upper() if row.kind == "bool" else row.short.upper()


def kernel_type(row: DType) -> str:
    """A row of KERNEL_TYPES."""
    least, most = {
        "int": (f"INT{row.bits}_MIN", f"INT{row.bits}_MAX"),
        "uint": ("0", f"UINT{row.bits}_MAX"),
        "bool": ("0", "1"),
        "float": ("0", "0"),
    }[row.kind]
    named = type_name(row), str(row.dlpack), str(row.bits), type_name(DTYPES[row.compute])
    return ", ".join([str(row.number), *named, least, most])


def headers() -> dict[str, str]:
    """The text of each header by its name."""
    operations = (
        f"{o.number}, {o.name}, {o.arity}, {o.rule.upper()}" for o in OPERATIONS_BY_NUMBER
    )
    reductions = (
        f"{r.number}, {r.name}, {r.arity}, {r.rule.upper()}" for r in REDUCTIONS_BY_NUMBER
    )
    others = (d for d in DTYPES.values() if d not in KERNEL_DTYPES and d.kind != "complex")
    others = (d for d in others if d.bits >= 8)  # PyTorch has no values of fewer
    real = (f"{d.name}, {d.dlpack}, {d.bits}" for d in (*KERNEL_DTYPES, *others))
    parts = {
        "rules": enumerators("RULE", RULES),
        "operations": macro("KERNEL_OPERATIONS", operations),
        "reduction_rules": enumerators("REDUCES_TO", REDUCTION_RULES),
        "reductions": macro("KERNEL_REDUCTIONS", reductions),
        "kernel_types": macro("KERNEL_TYPES", map(kernel_type, KERNEL_DTYPES)),
        "real_types": macro("REAL_TYPES", real),
    }
    made = {"kernel_ops.h": OPERATIONS, "dtypes.h": TYPES}
    for name, text in parts.items():
        made = {file: whole.replace(f"@{name}@", text) for file, whole in made.items()}
    return made


def stale() -> list[str]:
    """The headers that are not what the tables say."""
    made = headers().items()
    files = ((name, SOURCES / name, text) for name, text in made)
    return [name for name, file, text in files if not file.exists() or file.read_text() != text]


def main() -> int:
    """Write the headers, or check them."""
    old = stale()
    if "--check" in sys.argv:
        if old:
            print(f"not what the tables say: {', '.join(old)}; run make generate", file=sys.stderr)
        return 1 if old else 0
    for name in old:
        (SOURCES / name).write_text(headers()[name])
        print(f"wrote native/src/{name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
