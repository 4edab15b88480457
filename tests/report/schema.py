"""As much of JSON Schema as src/dovetail/report/schema.json uses; anything else is an error."""

import json
from pathlib import Path

import dovetail.report

SCHEMA = json.loads((Path(dovetail.report.__file__).parent / "schema.json").read_text())
_TYPES = {
    "object": dict,
    "array": list,
    "string": str,
    "boolean": bool,
    "null": type(None),
    "integer": int,
    "number": (int, float),
}
_IGNORED = {"$schema", "$defs", "title", "description", "type"}


def problems(value, schema=SCHEMA, where="$"):
    """Everything that does not fit, as text."""
    found = _type(value, schema["type"], schema, where) if "type" in schema else []
    if found:
        return found  # the rest is about values of that type
    for keyword, wanted in schema.items():
        if keyword not in _IGNORED:
            found += _CHECKS[keyword](value, wanted, schema, where)
    return found


def _type(value, wanted, schema, where):
    names = [wanted] if isinstance(wanted, str) else wanted
    for name in names:
        is_flag = isinstance(value, bool) and name != "boolean"
        if isinstance(value, _TYPES[name]) and not is_flag:
            return []
    return [f"{where}: {value!r} is not {' or '.join(names)}"]


def _properties(value, wanted, schema, where):
    present = [name for name in wanted if isinstance(value, dict) and name in value]
    return [p for n in present for p in problems(value[n], wanted[n], f"{where}.{n}")]


def _required(value, wanted, schema, where):
    return [f"{where}: no {name}" for name in wanted if name not in value]


def _additional(value, wanted, schema, where):
    others = [name for name in value if name not in schema.get("properties", {})]
    if wanted is False:
        return [f"{where}: {name} is not described" for name in others]
    return [p for name in others for p in problems(value[name], wanted, f"{where}.{name}")]


def _enum(value, wanted, schema, where):
    return [] if value in wanted else [f"{where}: {value!r} is none of {wanted}"]


def _items(value, wanted, schema, where):
    return [p for n, item in enumerate(value) for p in problems(item, wanted, f"{where}[{n}]")]


def _ref(value, wanted, schema, where):
    return problems(value, SCHEMA["$defs"][wanted.removeprefix("#/$defs/")], where)


def _any_of(value, wanted, schema, where):
    tried = [problems(value, each, where) for each in wanted]
    return [] if not all(tried) else [p for each in tried for p in each]


def _check(fits, what):
    return lambda value, wanted, schema, where: (
        [] if fits(value, wanted) else [f"{where}: {value!r} {what} {wanted!r}"]
    )


_CHECKS = {
    "enum": _enum,
    "properties": _properties,
    "required": _required,
    "additionalProperties": _additional,
    "items": _items,
    "$ref": _ref,
    "anyOf": _any_of,
    "const": _check(lambda value, wanted: value == wanted, "is not"),
    "minimum": _check(lambda value, wanted: value >= wanted, "is below"),
    "minItems": _check(lambda value, wanted: len(value) >= wanted, "has fewer items than"),
}
