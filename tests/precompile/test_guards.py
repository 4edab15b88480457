"""Guards by identity, in words and attributes that another process can compare."""

import enum
import math
import types

import pytest
import torch
from torch.nn import functional as F

from dovetail.capture._torch.operators import operator_types
from dovetail.errors import NotKept, NotRestored
from dovetail.precompile.guards import (
    check_guards,
    describe,
    keep_guards,
    parse,
    telling,
)


class Colour(enum.Enum):
    RED = 1


def test_paths_are_parsed_and_never_evaluated():
    assert parse("L['self']._modules['0'].act") == [
        "L",
        ("item", "self"),
        ("attr", "_modules"),
        ("item", "0"),
        ("attr", "act"),
    ]
    assert parse("type(G['x'])") == ["G", ("item", "x"), ("type", None)]
    for text in ("__import__('os').system('x')", "L['a'](1)", "L[x]", "1 +", "L['a'] + 1"):
        with pytest.raises(NotKept):
            parse(text)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.nn, "the module torch.nn"),
        (torch.nn.Linear, "the class torch.nn.modules.linear.Linear"),
        (len, "the built-in builtins.len"),
        (torch.relu, "the built-in torch._VariableFunctionsClass.relu"),
        (Colour.RED, f"the class {__name__}.Colour.RED"),
        (torch.ops.aten.relu.default, "the operator aten.relu.default"),
        (None, "None"),
        (object(), None),
        ([].append, None),
    ],
)
def test_descriptions(value, expected):
    assert describe(value) == expected


def test_functions_of_extension_modules():
    assert describe(torch._C._get_tracing_state).endswith("._get_tracing_state")
    assert telling(torch._C._get_tracing_state)


def test_functions_are_told_apart_by_what_they_do():
    def make(text):
        return eval(text, {"F": F})

    same = describe(make("lambda x: F.relu(x)"))
    assert describe(make("lambda x: F.relu(x)")) == same
    others = ["lambda x: F.gelu(x)", "lambda x: F.relu(x) + 1", "lambda x: F.relu(x) + 2"]
    found = {describe(make(text)) for text in others}
    assert len(found) == 3
    assert same not in found


def test_attributes_that_tell():
    assert telling(torch) == ("__name__",)
    assert telling(torch.relu) == ("__module__", "__qualname__")
    assert "__code__.co_consts" in telling(lambda x: x + 1)
    assert "__code__.co_consts" not in telling(lambda x: [y for y in map(lambda z: z, x)])  # noqa: C416, C417
    assert telling(torch.nn.Linear(1, 1).forward)[0] == "__func__.__module__"
    assert telling(object()) == ()


class _Recorded:
    """What ``_torch.Traced`` is to ``keep_guards``."""

    def __init__(self, scope, *names):
        self.scope, self.dropped, self.added = scope, dict.fromkeys(names), {}

    def guard_attributes(self, name, attributes):
        self.added[name] = tuple(attributes)


def test_what_models_hold_is_guarded_and_what_modules_hold_is_compared():
    scope = {
        "L": {"self": types.SimpleNamespace(act=F.gelu)},
        "G": {"__import_torch": torch, "__builtins_dict___0": {"len": len}, "mine": F.silu},
    }
    names = ("L['self'].act", "G['mine']", "G['__import_torch'].relu")
    traced = _Recorded(scope, *names, "G['__builtins_dict___0']['len']")
    assert keep_guards(traced) == (
        ("builtins['len']", "the built-in builtins.len"),
        ("modules['torch'].relu", "the built-in torch._VariableFunctionsClass.relu"),
    )
    assert list(traced.added) == ["L['self'].act", "G['mine']"]


def test_globals_are_compared_where_aot_compile_guards_none():
    traced = _Recorded({"L": {}, "G": {"__name__": "math", "floor": math.floor}}, "G['floor']")
    assert keep_guards(traced, ahead=True) == (
        ("modules['math'].floor", "the built-in math.floor"),
    )
    assert not traced.added


def test_objects_that_nothing_tells_apart_are_not_kept():
    with pytest.raises(NotKept, match=r"L\['x'\]"):
        keep_guards(_Recorded({"L": {"x": object()}, "G": {}}, "L['x']"))


def test_places_are_compared(monkeypatch):
    places = [("modules['math'].floor", "the built-in math.floor")]
    check_guards(places)
    monkeypatch.setattr(math, "floor", math.ceil)
    with pytest.raises(NotRestored, match=r"math\.ceil"):
        check_guards(places)
    monkeypatch.delattr(math, "floor")
    with pytest.raises(NotRestored, match="something else"):
        check_guards(places)
    check_guards([("modules['not.loaded'].f", "anything")])


def test_torch_names_operators():
    assert isinstance(torch.ops.aten.relu, operator_types())
