"""Real packages, built and installed by pip: found, filtered, used, refused, uninstalled."""

import json

import pytest

from tests.ground.environments import TemporaryEnvironment

pytestmark = [pytest.mark.e2e, pytest.mark.xdist_group("plugins")]

ALL = ("twinkle", "broken", "refused", "contender", "dynamo_only")
MODULES = ("torch", "twinkle", "broken_plugin", "refused_plugin", "contender", "dynamo_only")


@pytest.fixture(scope="module")
def plugged(tmp_path_factory):
    environment = TemporaryEnvironment(tmp_path_factory.mktemp("plugged"))
    environment.install_plugins(*ALL)
    return environment


def backends(environment, *options):
    rows = json.loads(environment.run("-m", "dovetail", "backends", "--json", *options))
    return {f"{row['name']} of {row['distribution']}": row for row in rows}


def test_plugins_are_listed_and_filtered_by_tag_without_any_import(plugged):
    answer = plugged.answer(f"""
        import json, sys, dovetail
        everything = dovetail.list_backends(exclude_tags=())
        stable = dovetail.list_backends()
        info = dovetail.backend_info("twinkle")
        rows = dovetail.backend_table()
        imported = [m for m in sys.modules if m.split(".")[0] in {MODULES}]
        print(json.dumps([everything, stable, [info.tags, info.experimental, info.distribution,
                          info.loaded, info.available], len(rows), imported]))
    """)
    everything, stable, info, rows, imported = answer
    assert imported == []
    assert everything == sorted(everything)
    assert {"twinkle", "twinkle-fn", "raises", "leaves", "nothing", "aten"} <= {*everything}
    assert "twinkle" not in stable
    assert "leaves" not in stable
    assert {"twinkle-fn", "raises", "aten", "dovetail"} <= {*stable}
    assert info == [["experimental"], True, "dovetail-twinkle", False, None]
    assert rows > len(everything)  # those that were refused a name have a row too


def test_torch_alone_finds_the_plugins_and_the_experimental_one_warns_once(plugged):
    answer = plugged.answer("""
        import json, sys, warnings, torch

        def model(x):
            return torch.relu(x + 1) * 3

        x = torch.randn(5)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            same = [torch.equal(torch.compile(model, backend="twinkle")(y), model(y))
                    for y in (x, torch.randn(2, 3))]
        told = [str(w.message) for w in caught if "experimental" in str(w.message)]
        counts = sys.modules["dovetail"].history.recent()[0].graphs[0].backend_counts()
        torch.compiler.reset()
        same.append(torch.equal(torch.compile(model, backend="twinkle-fn")(x), model(x)))
        graphs = len(sys.modules["twinkle.function"].graphs)
        print(json.dumps([same, told, counts, graphs]))
    """)
    same, told, counts, graphs = answer
    assert same == [True, True, True]
    assert len(told) == 1
    assert "dovetail-twinkle (twinkle:Twinkle)" in told[0]
    assert counts == {"twinkle": 2, "aten": 1}
    assert graphs == 1


def test_broken_and_refused_plugins_are_listed_with_their_reasons(plugged):
    rows = backends(plugged, "--all", "--check")
    reasons = {
        "raises of dovetail-broken": "RuntimeError: libtwinkle.so.2 is not installed",
        "leaves of dovetail-broken": "SystemExit: no licence",
        "absent of dovetail-broken": "No module named 'broken_plugin.absent'",
        "nothing of dovetail-refused": "{'not': 'a backend'} (dict) is not a backend",
        "unfinished of dovetail-refused": "define compile(), load(), supports()",
        "mistagged of dovetail-refused": "tags must be a collection of strings, not 'debug'",
        "moody of dovetail-refused": "OSError: the driver does not answer",
        "reference of dovetail-refused": "the name is taken by dovetail (dovetail.backends.",
        "inductor of dovetail-refused": "the name is taken by torch (torch._dynamo)",
        "two words of dovetail-refused": "'two words' is not a usable backend name",
        "contested of dovetail-contender": "also declared by dovetail-refused (refused_plugin:",
        "dynamos of dovetail-contender": "the name is taken by dynamo-only (dynamo_only:",
    }
    for row, reason in reasons.items():
        assert reason in rows[row]["reason"], row
        assert rows[row]["available"] is False, row
    for row in ("aten of dovetail", "reference of dovetail", "twinkle of dovetail-twinkle"):
        assert rows[row]["available"] is True, row
    assert rows["twinkle of dovetail-twinkle"]["device"] == "cpu"


def test_the_text_table_names_broken_plugins_in_one_line_each(plugged):
    lines = plugged.run("-m", "dovetail", "backends", "--check").splitlines()
    assert next(ln for ln in lines if ln.startswith("raises ")).endswith("is not installed")
    assert not any(line.startswith("twinkle ") for line in lines)
    assert "more with --all" in lines[-1]


def test_each_mistake_raises_its_own_error_and_the_rest_keeps_working(plugged):
    answer = plugged.answer("""
        import json, dovetail, torch

        def error(call, *args, **kwargs):
            try:
                call(*args, **kwargs)
            except Exception as e:
                return f"{type(e).__name__}: {e}"

        x = torch.ones(3)
        errors = {
            "raises": error(lambda: torch.compile(torch.relu, backend="raises")(x)),
            "nothing": error(dovetail.lookup_backend, "nothing"),
            "contested": error(dovetail.lookup_backend, "contested"),
            "moody": error(lambda: torch.compile(torch.relu, backend="moody")(x)),
            "twinkel": error(dovetail.lookup_backend, "twinkel"),
            "forgotten": error(dovetail.lookup_backend, "forgotten"),
            "dynamos-broken": error(dovetail.lookup_backend, "dynamos-broken"),
            "taken": error(dovetail.register_backend, lambda gm, x: gm, name="twinkle"),
            "dynamos": error(dovetail.register_backend, lambda gm, x: gm, name="dynamos"),
        }
        assert dovetail.lookup_backend("dynamos").__module__ == "dynamo_only"
        assert dovetail.backend_info("dynamos").distribution == "dynamo-only"
        assert dovetail.lookup_backend("inductor").__module__.startswith("torch.")
        assert "twinkle_shine" in dovetail.reserved_names()
        errors["known"] = error(dovetail.lookup_backend, "nobody")
        dovetail.set_default_backend("twinkle", device="cpu")
        torch.compile(torch.relu, backend="dovetail")(x)
        errors["default"] = dovetail.history.recent()[-1].backend
        errors["shine"] = dovetail.get_backend("twinkle", shine=3).shine
        errors["dull"] = error(dovetail.get_backend, "twinkle", shin=3)
        print(json.dumps(errors))
    """)
    assert answer["raises"].startswith("BrokenPlugin: the backend 'raises' of dovetail-broken")
    assert "libtwinkle.so.2 is not installed" in answer["raises"]
    assert answer["nothing"].startswith("BrokenPlugin: the backend 'nothing' of dovetail-refused")
    assert answer["contested"].startswith("BackendNameTaken")
    assert "dovetail-contender (contender:compile_graph)" in answer["contested"]
    assert "dovetail-refused (refused_plugin:compile_graph)" in answer["contested"]
    assert answer["moody"].startswith("BackendUnavailable")
    assert "the driver does not answer" in answer["moody"]
    assert "did you mean 'twinkle'?" in answer["twinkel"]
    assert "no backend is called 'forgotten'" in answer["forgotten"]
    assert "dovetail-contender (dovetail.dynamo:forgotten)" in answer["forgotten"]
    assert "dynamo-only (dynamo_only.broken:compile_graph)" in answer["dynamos-broken"]
    assert "is taken by dovetail-twinkle (twinkle:Twinkle)" in answer["taken"]
    assert "is taken by dynamo-only (dynamo_only:compile_graph)" in answer["dynamos"]
    assert answer["known"].startswith("UnknownBackend: no backend is called 'nobody'")
    assert "; known backends: " in answer["known"]
    assert "raises (RuntimeError: libtwinkle.so.2 is not installed)" in answer["known"]
    assert "reference of dovetail-refused (the name is taken by" in answer["known"]
    assert answer["default"] == "twinkle"
    assert answer["shine"] == 3
    assert "did you mean 'shine'?" in answer["dull"]


def test_registered_object_is_reported_with_its_distribution(plugged):
    code = """
        import json, dovetail, contender
        with dovetail.registered_backend(contender.compile_graph, name="run_time"):
            print(json.dumps(dovetail.backend_info("run_time").distribution))
    """
    assert plugged.answer(code) == "dovetail-contender"


def test_installing_adds_backends_and_uninstalling_takes_them_away(tmp_path):
    environment = TemporaryEnvironment(tmp_path)
    before = backends(environment, "--all")
    environment.install_plugins("twinkle")
    assert backends(environment, "--all").keys() - before.keys() == {
        "twinkle of dovetail-twinkle",
        "twinkle-fn of dovetail-twinkle",
    }
    environment.pip("uninstall", "-y", "dovetail-twinkle")
    assert backends(environment, "--all") == before
