"""Every dovetail backend is a name for torch.compile, whoever is imported first."""

import copy
import pickle

import pytest
import torch

import dovetail
from dovetail import dynamo, errors
from dovetail.capture._torch.dynamo_registry import DYNAMO_BACKENDS


def double(x):
    return x * 2


def recording(seen):
    def backend(gm, example_inputs):
        seen.append(gm)
        return gm.forward

    return backend


def test_a_backend_registered_after_torch():
    seen = []
    with dovetail.registered_backend(recording(seen), name="after_torch"):
        assert "after_torch" in torch._dynamo.list_backends()
        assert torch.compile(double, backend="after_torch")(torch.ones(2)).tolist() == [2, 2]
    assert len(seen) == 1
    assert "after_torch" not in torch._dynamo.list_backends()
    with pytest.raises(torch._dynamo.exc.InvalidBackend):
        torch.compile(double, backend="after_torch")


def test_tags_reach_dynamo():
    with dovetail.registered_backend(recording([]), name="tagged_debug", tags=["debug"]):
        assert "tagged_debug" not in torch._dynamo.list_backends()
        assert "tagged_debug" in torch._dynamo.list_backends(exclude_tags=())


def test_a_name_registered_anew_does_not_get_the_old_code():
    old, new = [], []
    with dovetail.registered_backend(recording(old), name="renewed"):
        torch.compile(double, backend="renewed")(torch.ones(2))
    with dovetail.registered_backend(recording(new), name="renewed"):
        torch.compile(double, backend="renewed")(torch.ones(2))
    assert (len(old), len(new)) == (1, 1)


def test_what_dynamo_had_before_stays_after_a_with_block():
    before = torch._dynamo.list_backends(exclude_tags=())
    with dovetail.registered_backend(recording([]), name="passing"):
        pass
    assert torch._dynamo.list_backends(exclude_tags=()) == before


def test_a_name_registered_with_dynamo_by_others_is_taken():
    torch._dynamo.register_backend(double, name="dynamos_own")
    try:
        with pytest.raises(errors.BackendNameTaken, match=r"test_dynamo:double .*must choose"):
            dovetail.register_backend(recording([]), name="dynamos_own")
        assert dovetail.lookup_backend("dynamos_own") is double
        assert dovetail.backend_info("dynamos_own").loaded
    finally:
        del torch._dynamo.backends.registry._BACKENDS["dynamos_own"]
        del torch._dynamo.backends.registry._COMPILER_FNS["dynamos_own"]


@pytest.mark.parametrize("name", ["aot_eager", "inductor", "cudagraphs", "eager_noexcept"])
def test_dynamos_backends_are_looked_up_through_ours(name):
    assert dovetail.lookup_backend(name) is torch._dynamo.lookup_backend(name)
    assert dovetail.get_backend(name).name == name
    assert dovetail.backend_info(name).distribution == "torch"


def test_an_unknown_name_lists_dynamos_too():
    with pytest.raises(
        errors.UnknownBackend, match=r"did you mean 'aot_eager'.*inductor"
    ) as raised:
        dovetail.lookup_backend("aot_eger")
    assert "TESTING_ONLY" not in str(raised.value)


@pytest.mark.parametrize("name", ["aten", "dovetail", "reference"])
def test_builtin_backends_by_name(name):
    compiled = torch.compile(double, backend=name)
    assert torch.equal(compiled(torch.arange(3.0)), double(torch.arange(3.0)))


def test_our_eager_runs_the_graph_as_captured():
    compiled = torch.compile(double, backend=dovetail.lookup_backend("eager"))
    assert torch.equal(compiled(torch.arange(3.0)), double(torch.arange(3.0)))


def test_default_backend_per_device_is_what_dovetail_uses():
    seen = []
    with dovetail.registered_backend(recording(seen), name="default_here"):
        dovetail.set_default_backend("default_here", device="cpu")
        torch.compile(double, backend="dovetail")(torch.ones(2))
    assert len(seen) == 1


def test_errors_come_through_dynamo_as_they_are():
    class Absent(dovetail.Backend):
        name = "absent_device"

        def available(self):
            return dovetail.Availability(False, "no such device")

        def supports(self, call):
            return dovetail.Support.yes()

        def compile(self, segment):
            return dovetail.Blob()

        def load(self, blob):
            return list

    with dovetail.registered_backend(Absent):
        with pytest.raises(errors.BackendUnavailable, match="no such device"):
            torch.compile(double, backend="absent_device")(torch.ones(2))
        dovetail.set_default_backend("absent_device", device="cpu")
        with pytest.raises(errors.BackendUnavailable, match="no such device"):
            torch.compile(double, backend="dovetail")(torch.ones(3))


def test_a_function_that_returns_the_wrong_number_of_outputs_is_named():
    with (
        dovetail.registered_backend(lambda gm, x: lambda *args: (), name="returns_nothing"),
        pytest.raises(errors.WrongOutputs, match="'returns_nothing'"),
    ):
        torch.compile(double, backend="returns_nothing")(torch.ones(2))


def test_the_entry_point_module_answers_for_names_and_only_for_them():
    assert dynamo.reference is dynamo.reference
    assert not hasattr(dynamo, "no_such_backend")
    assert not hasattr(dynamo, "inductor")  # Dynamo's own: asking it would go round in circles
    with dovetail.registered_backend(recording([]), name="with-hyphen.and-dot"):
        assert dynamo.with_hyphen_and_dot.name == "with-hyphen.and-dot"


@pytest.mark.parametrize("name", ["dovetail", "reference"])
def test_a_compiler_survives_copy_and_pickle(name):
    for compiler in (dynamo.lazy_compiler(name), dovetail.lookup_backend(name)):
        assert copy.deepcopy(compiler) is compiler
        assert pickle.loads(pickle.dumps(compiler)) is compiler


@pytest.mark.e2e
def test_our_list_of_dynamos_names_is_complete(here):
    """A name Dynamo registers on import must never be announced by us first."""
    names = here.answer("""
        import json
        from torch._dynamo.backends import registry
        registry._lazy_import()
        ours = [n for n, e in registry._BACKENDS.items() if e and e.value.startswith("dovetail.")]
        print(json.dumps([n for n in registry._BACKENDS if n not in ours]))
    """)
    assert set(names) - DYNAMO_BACKENDS == set()


@pytest.mark.e2e
def test_registered_before_torch_and_while_torch_is_being_imported(here):
    used = here.answer("""
        import json, sys, threading, dovetail

        def backend(gm, example_inputs):
            return gm.forward

        def make(name):
            dovetail.register_backend(lambda gm, x: backend(gm, x), name=name)

        make("before")
        with dovetail.registered_backend(backend, name="withdrawn"):
            pass
        assert "torch" not in sys.modules
        stop, names = threading.Event(), []

        def keep_registering(thread):
            while not stop.is_set():
                names.append(f"during_{thread}_{len(names)}")
                make(names[-1])
                stop.wait(0.002)

        threads = [threading.Thread(target=keep_registering, args=(n,)) for n in range(4)]
        [t.start() for t in threads]
        import torch, torch._dynamo
        stop.set()
        [t.join() for t in threads]
        make("after")
        known = set(torch._dynamo.list_backends())
        lost = [n for n in ("before", "after", *names) if n not in known]
        x, same = torch.ones(2), []
        for name in ("before", names[0], names[-1], "after"):
            same.append(torch.compile(lambda x: x + 1, backend=name)(x).tolist() == [2, 2])
        hooks = [f for f in sys.meta_path if type(f).__module__.startswith("dovetail")]
        print(json.dumps([lost, same, len(names), "withdrawn" in known, len(hooks)]))
    """)
    lost, same, count, withdrawn, hooks = used
    assert lost == []
    assert same == [True] * 4
    assert count > 4
    assert (withdrawn, hooks) == (False, 0)


@pytest.mark.e2e
def test_the_hook_survives_an_import_of_torch_that_fails(here):
    code = """
        import json, sys, dovetail
        dovetail.register_backend(lambda gm, x: gm.forward, name="patient")

        class Refuse:
            def find_spec(self, name, path, target=None):
                if name == "torch._dynamo.backends.registry":
                    raise ImportError("not now")

        sys.meta_path.append(refuse := Refuse())
        sys.meta_path.insert(1, sys.meta_path.pop())
        import torch
        try:
            import torch._dynamo.backends.registry
            failed = False
        except ImportError:
            failed = True
        sys.meta_path.remove(refuse)
        import torch._dynamo.backends.registry as registry  # torch itself needs more to recover
        print(json.dumps([failed, "patient" in registry._COMPILER_FNS]))
    """
    assert here.answer(code) == [True, True]
