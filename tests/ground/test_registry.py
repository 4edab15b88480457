"""The registry by itself: registering, looking up, defaults, mistakes. Nothing here needs torch."""

import functools
import importlib.util
import platform
import warnings

import pytest

import dovetail
from dovetail import _native, errors
from dovetail.backend import FunctionBackend
from dovetail.file.processors import AARCH64, no_code_here
from tests.ground.samples import Accel, compile_graph

# ---- registering ---------------------------------------------------------------------------


def test_bare_decorator_takes_the_functions_name(registry):
    decorated = registry.register_backend(compile_graph)
    assert decorated is compile_graph
    assert registry.lookup_backend("compile_graph") is compile_graph


def test_decorator_with_name_and_tags(registry):
    @registry.register_backend(name="tagged", tags=("experimental", "fast"))
    def anything(gm, example_inputs):
        return gm

    info = registry.backend_info("tagged")
    assert info.tags == ("experimental", "fast")
    assert info.experimental
    assert registry.list_backends(exclude_tags=("fast",)) == [
        "aten",
        "cpu",
        "cuda",
        "dovetail",
        "eager",
        "onnxruntime",
        "opencl",
        "portable",
        "reference",
    ]
    assert "tagged" in registry.list_backends(exclude_tags=("debug",))
    assert "tagged" not in registry.list_backends()


def test_call_with_a_backend_class_and_its_own_tags(registry):
    class Tagged(Accel):
        name = "tagged_class"
        tags = frozenset({"fast"})

    registry.register_backend(Tagged, tags=["debug"])
    assert registry.backend_info("tagged_class").tags == ("debug", "fast")


def test_debug_and_experimental_registration(registry):
    registry.register_debug_backend(compile_graph, name="d")

    @registry.register_experimental_backend
    def e(gm, example_inputs):
        return gm

    @registry.register_debug_backend(name="d2")
    def _(gm, example_inputs):
        return gm

    assert registry.backend_info("d").tags == registry.backend_info("d2").tags == ("debug",)
    assert registry.backend_info("e").tags == ("experimental",)
    assert not {"d", "d2", "e"} & {*registry.list_backends()}


def test_a_callable_object_and_a_partial_can_be_backends(registry):
    registry.register_backend(functools.partial(compile_graph), name="partial_backend")
    assert callable(registry.lookup_backend("partial_backend"))


def test_registering_the_same_object_twice_changes_nothing(registry):
    registry.register_backend(compile_graph, name="twice")
    registry.register_backend(compile_graph, name="twice")
    assert registry.lookup_backend("twice") is compile_graph


def test_a_class_may_take_its_name_from_the_call(registry):
    class Unnamed(Accel):
        name = None

    registry.register_backend(Unnamed, name="named_late")
    assert registry.get_backend("named_late").name == "named_late"


# ---- mistakes: each its own class, each message says what to do ------------------------------


class Nameless(Accel):
    name = None


class Unfinished(dovetail.Backend):
    name = "unfinished"

    def supports(self, call):
        return dovetail.Support.yes()


class Mistagged(Accel):
    name, tags = "mistagged", "debug"


@pytest.mark.parametrize(
    ("arguments", "error", "builtin", "advice"),
    [
        ((42,), errors.BackendNotCallable, TypeError, "give a function"),
        ((int,), errors.BackendNotCallable, TypeError, "subclass of dovetail.Backend"),
        ((compile_graph, ""), errors.InvalidBackendName, ValueError, "give a string of letters"),
        ((compile_graph, "  "), errors.InvalidBackendName, ValueError, "such as name='my_accel'"),
        ((compile_graph, "a b"), errors.InvalidBackendName, ValueError, "such as name="),
        ((compile_graph, 7), errors.InvalidBackendName, ValueError, "such as name="),
        ((lambda gm, x: gm,), errors.InvalidBackendName, ValueError, "such as name="),
        ((compile_graph, "aten"), errors.BackendNameTaken, ValueError, "must choose another"),
        ((compile_graph, "inductor"), errors.BackendNameTaken, ValueError, "torch._dynamo"),
        ((Nameless,), errors.BackendHasNoName, ValueError, "set `name = 'my_accel'`"),
        ((Unfinished,), errors.IncompleteBackend, TypeError, "define compile(), load() "),
        ((compile_graph, "x", "debug"), errors.InvalidTags, TypeError, "write tags=('debug',)"),
        ((compile_graph, "x", [1]), errors.InvalidTags, TypeError, "collection of strings"),
        ((compile_graph, "x", 1), errors.InvalidTags, TypeError, "collection of strings"),
        ((Mistagged,), errors.InvalidTags, TypeError, "write tags=('debug',)"),
    ],
)
def test_bad_input(registry, arguments, error, builtin, advice):
    obj, *rest = arguments
    given = dict(zip(("name", "tags"), rest, strict=False))
    known = registry.list_backends(exclude_tags=())
    with pytest.raises(error) as raised:
        registry.register_backend(obj, **given)
    assert type(raised.value) is error
    assert isinstance(raised.value, builtin)
    assert advice in str(raised.value)
    with pytest.raises(error), registry.registered_backend(obj, **given):
        pass
    assert registry.list_backends(exclude_tags=()) == known


def test_decorator_arguments_are_checked_before_there_is_an_object(registry):
    with pytest.raises(errors.InvalidTags):
        registry.register_backend(tags="debug")
    with pytest.raises(errors.InvalidBackendName):
        registry.register_backend(name="")


def test_a_taken_name_names_both_owners_with_distribution_and_module(registry):
    import pluggy

    registry.register_backend(pluggy.PluginManager.register, name="taken")
    with pytest.raises(errors.BackendNameTaken) as raised:
        registry.register_backend(compile_graph, name="taken")
    assert "pluggy (pluggy._manager:PluginManager.register)" in str(raised.value)
    assert "tests.ground.samples:compile_graph (not from a package)" in str(raised.value)


# ---- looking up ------------------------------------------------------------------------------


def test_a_callable_is_passed_through(registry):
    class CompilesWhenMade:
        def __init__(self, gm, example_inputs):
            self.gm = gm

    for fn in (compile_graph, functools.partial(compile_graph), CompilesWhenMade):
        assert registry.lookup_backend(fn) is fn


def test_a_registered_class_is_looked_up_by_itself(registry):
    registry.register_backend(Accel)
    assert registry.lookup_backend(Accel) is registry.lookup_backend("accel")


def test_an_unregistered_class_is_unknown(registry):
    with pytest.raises(errors.UnknownBackend, match=r"samples:Accel'.*known backends"):
        registry.lookup_backend(Accel)


@pytest.mark.parametrize("wrong", [None, 3, ["aten"]])
def test_neither_name_nor_callable(registry, wrong):
    with pytest.raises(errors.BackendNotCallable):
        registry.lookup_backend(wrong)
    with pytest.raises(errors.InvalidBackendName):
        registry.backend_info(wrong)


def test_unknown_names_list_the_known_and_the_nearest(registry):
    with pytest.raises(errors.UnknownBackend) as raised:
        registry.backend_info("referense")
    assert isinstance(raised.value, LookupError)
    assert "did you mean 'reference'?" in str(raised.value)
    known = str(raised.value).partition("known backends: ")[2].split("; ")[0].split(", ")
    assert known == sorted(known)
    assert {"aten", "dovetail", "eager", "reference"} <= {*known}


def test_get_backend_makes_an_instance_with_its_options(registry):
    registry.register_backend(Accel)
    assert registry.get_backend("accel", tiles=8).tiles == 8
    with pytest.raises(errors.UnknownOption, match=r"'tile' \(did you mean 'tiles'\?\)"):
        registry.get_backend("accel", tile=8)


def test_get_backend_wraps_a_function(registry):
    registry.register_backend(compile_graph)
    backend = registry.get_backend("compile_graph")
    assert isinstance(backend, FunctionBackend)
    assert backend.name == "compile_graph"
    with pytest.raises(errors.UnknownOption):
        registry.get_backend("compile_graph", tiles=1)


def test_an_instance_bears_the_name_it_was_registered_under(registry):
    registry.register_backend(Accel, name="other_accel")
    assert registry.get_backend("other_accel").name == "other_accel"
    assert Accel.name == "accel"


def test_an_unavailable_backend_says_why_and_is_asked_again(registry):
    class Plugged(Accel):
        name, up = "plugged", False

        def available(self):
            return dovetail.Availability(self.up, "" if self.up else "no cable")

    registry.register_backend(Plugged)
    assert registry.backend_info("plugged").available is None
    with pytest.raises(errors.BackendUnavailable, match="cannot run here: no cable"):
        registry.lookup_backend("plugged")
    info = registry.backend_info("plugged")
    assert (info.available, info.reason, info.device) == (False, "no cable", "accel0")
    Plugged.up = True
    assert callable(registry.lookup_backend("plugged"))
    assert registry.backend_info("plugged").available


def test_experimental_warns_once_at_first_use(registry):
    registry.register_experimental_backend(compile_graph, name="new_thing")
    registry.list_backends(exclude_tags=())
    registry.backend_info("new_thing")
    with pytest.warns(errors.ExperimentalBackendWarning, match="'new_thing'") as caught:
        registry.lookup_backend("new_thing")
    assert caught[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        registry.lookup_backend("new_thing")
        registry.get_backend("new_thing")


def test_list_is_sorted_and_none_excludes_nothing(registry):
    registry.register_backend(compile_graph, name="zzz")
    registry.register_backend(Accel, name="aaa")
    everything = registry.list_backends(exclude_tags=None)
    assert everything == sorted(everything) == registry.list_backends(exclude_tags=())
    with pytest.raises(errors.InvalidTags):
        registry.list_backends(exclude_tags="debug")


def test_backend_info_of_a_dynamo_name(registry):
    info = registry.backend_info("inductor")
    assert (info.name, info.distribution) == ("inductor", "torch")


# ---- aggregates and defaults -------------------------------------------------------------------


def test_reserved_names_is_the_union_and_survives_a_backend_that_raises(registry, caplog):
    class Moody(Accel):
        name = "moody"

        @classmethod
        def reserved_names(cls):
            raise OSError("no driver")

    registry.register_backend(Moody)
    registry.register_backend(Accel)
    assert "accel_tile" in registry.reserved_names()
    assert "moody" in caplog.text


def test_table_has_a_row_for_each_backend(registry):
    registry.register_backend(Accel)
    rows = {row.name: row for row in registry.backend_table(load=True)}
    assert rows["accel"].available
    assert rows["accel"].device == "accel0"
    assert rows["reference"].tags == ("debug",)
    assert [*rows] == sorted(rows)


@pytest.mark.parametrize(
    ("machine", "number", "reason"),
    [
        ("x86_64", 4, ""),
        ("AMD64", 3, ""),
        ("x86_64", 2, "AVX2"),
        ("aarch64", AARCH64, ""),
        ("arm64", 0, "needs Linux"),
        ("riscv64", 0, "x86-64 and AArch64, not for riscv64"),
    ],
)
def test_code_is_generated_where_it_can_run(registry, monkeypatch, machine, number, reason):
    monkeypatch.delenv("DOVETAIL_PROCESSOR", raising=False)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    monkeypatch.setattr(_native, "processor", lambda: number)
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: object())
    assert reason in no_code_here()
    assert registry.default_backend("cpu") == ("aten" if reason else "cpu")


def test_defaults_per_device(registry):
    registry.register_backend(Accel)
    generates = importlib.util.find_spec("llvmlite") is not None
    usual = "cpu" if generates and not no_code_here() else "aten"
    assert registry.default_backend("cpu") == usual
    assert registry.default_backend("xpu") == "aten"
    registry.set_default_backend("accel", device="cuda:1")
    assert (registry.default_backend("cuda:0"), registry.default_backend("cpu")) == (
        "accel",
        usual,
    )
    registry.set_default_backend("reference")
    assert (registry.default_backend("cuda"), registry.default_backend("xpu")) == (
        "accel",
        "reference",
    )
    registry.set_default_backend(None, device="cuda")
    registry.set_default_backend("accel", device="cpu")
    assert isinstance(registry.get_backend("dovetail"), Accel)
    registry.set_default_backend("inductor", device="cpu")  # a name only Dynamo has
    assert registry.default_backend("cuda") == "reference"
    assert registry.default_backend("cpu") == "inductor"


def test_defaults_must_be_known_and_not_dovetail_itself(registry):
    with pytest.raises(errors.UnknownBackend, match="did you mean 'reference'"):
        registry.set_default_backend("referenc")
    with pytest.raises(errors.InvalidOption, match="that 'dovetail' can stand for"):
        registry.set_default_backend("dovetail")


# ---- for the length of a test ------------------------------------------------------------------


def test_registered_backend_restores_names_and_defaults(registry):
    registry.set_default_backend("reference", device="cpu")
    with registry.registered_backend(Accel) as obj:
        assert obj is Accel
        registry.set_default_backend("accel", device="cpu")
        registry.set_default_backend("accel")
        registry.set_default_backend("eager", device="xpu")
        assert "accel" in registry.list_backends()
    assert "accel" not in registry.list_backends()
    assert registry.default_backend("cpu") == "reference"
    assert registry.default_backend("cuda") == "aten"
    assert registry.default_backend("xpu") == "eager"  # not about this backend, so it stays


def test_registered_backend_nests(registry):
    with registry.registered_backend(compile_graph, name="outer"):
        with registry.registered_backend(compile_graph, name="outer"):
            assert registry.lookup_backend("outer") is compile_graph
        assert registry.lookup_backend("outer") is compile_graph
        with registry.registered_backend(Accel):
            assert {"accel", "outer"} <= {*registry.list_backends()}
        assert "accel" not in registry.list_backends()
    assert "outer" not in registry.list_backends()


def test_registered_backend_gives_the_name_back_after_an_error(registry):
    with pytest.raises(ZeroDivisionError), registry.registered_backend(Accel):
        raise ZeroDivisionError
    assert "accel" not in registry.list_backends()
