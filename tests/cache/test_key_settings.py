"""What enters a graph's key beside the graph: state, passes, options, backends, versions."""

import pytest
import torch

from dovetail import passes
from dovetail.backend import Transfer
from dovetail.backends.aten import AtenBackend
from dovetail.backends.cpu.backend import CpuBackend
from dovetail.cache import graph_key
from dovetail.passes import PassManager
from tests.cache.graphs import Tuned


class set_by:
    def __init__(self, change, value, before):
        self.change, self.value, self.before = change, value, before

    def __enter__(self):
        self.change(self.value)

    def __exit__(self, *_):
        self.change(self.before)


STATE = {
    "grad mode": lambda: torch.no_grad(),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "deterministic": lambda: set_by(torch.use_deterministic_algorithms, True, False),
    "default dtype": lambda: set_by(torch.set_default_dtype, torch.float64, torch.float32),
    "matmul precision": lambda: set_by(torch.set_float32_matmul_precision, "high", "highest"),
    "libraries": lambda: torch.backends.mkldnn.flags(enabled=False),
    "attention": lambda: torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH),
    "tiny numbers": lambda: set_by(torch.set_flush_denormal, True, False),
    "einsum": lambda: set_by(torch.backends.mha.set_fastpath_enabled, False, True),
    "PyTorch's settings": lambda: torch._functorch.config.patch(activation_memory_budget=0.5),
}


@pytest.mark.parametrize("name", STATE)
def test_global_state(graph, name):
    torch.set_float32_matmul_precision("highest")
    before = graph.key()
    with STATE[name]():
        assert before.differs(graph.key()) == [name]
    assert graph.key() == before


def test_inference_mode_and_the_default_device(graph):
    before = graph.key()
    with torch.inference_mode():
        assert before.differs(graph.key()) == ["grad mode"]
    with torch.device("meta"):
        assert before.differs(graph.key()) == ["default dtype"]


def test_passes(graph):
    def scaled(factor):
        def scale(gm):
            assert factor
            return gm

        return PassManager().add("post_grad", scale)

    before = graph.key()
    assert before.differs(graph.key(passes=scaled(1))) == ["passes"]
    assert graph.key(passes=scaled(1)) == graph.key(passes=scaled(1))
    assert graph.key(passes=scaled(1)).differs(graph.key(passes=scaled(2))) == ["passes"]
    assert before.differs(graph.key(passes=PassManager().remove("cse"))) == ["passes"]
    assert before.differs(graph.key(passes=PassManager().reorder("joint", ["dce"]))) == ["passes"]
    passes.set_default(scaled(1))
    assert graph.key() == graph.key(passes=scaled(1))


@pytest.mark.parametrize("name", ["strict", "keep_small", "freeze"])
def test_options_that_change_what_is_compiled(graph, name):
    one, other = (graph.key(**{name: value}) for value in (False, True))
    assert one.differs(other) == [f"option {name}"]


@pytest.mark.parametrize("name", ["profile", "check_weights", "debug"])
def test_options_that_do_not(graph, name):
    assert graph.key(**{name: False}) == graph.key(**{name: True})


def test_backends(graph, monkeypatch):
    def key(*backends):
        return graph.key(backends=[*backends, AtenBackend()])

    assert key(Tuned(level=1)) == key(Tuned(level=1))
    assert key(Tuned(level=1)).differs(key(Tuned(level=2))) == ["backend tuned"]
    assert "level" in key(Tuned(level=2)).text("backend tuned")
    assert set(key(Tuned()).differs(key())) == {"backends", "backend tuned"}
    other = type("Other", (Tuned,), {"name": "other"})
    assert key(Tuned(), other()).differs(key(other(), Tuned())) == ["backends"]
    before = key(Tuned())
    monkeypatch.setattr(Tuned, "fingerprint", lambda _: "tool 2")
    assert "backend tuned" in before.differs(key(Tuned()))


def test_a_backend_that_was_changed(graph, monkeypatch):
    def key(backend):
        return graph.key(backends=[backend, AtenBackend()])

    backend = Tuned()
    before = key(backend)
    backend.tolerance = 0.5
    assert before.differs(key(backend)) == ["backend tuned"]
    values = (
        {"a": 1},
        (1, 2),
        property(lambda _: 3),
        staticmethod(lambda: 4),
        Transfer(2),
        Transfer(3),
    )
    for value in values:
        monkeypatch.setattr(Tuned, "rows", value, raising=False)
        after = key(Tuned())
        assert before.differs(after) == ["backend tuned"]
        before = after


def test_a_backends_own_option_by_name(graph):
    one, other = (graph.key(first=Tuned, backend_options={"level": n}) for n in (1, 2))
    assert one.differs(other) == ["backend tuned"]


def test_versions_and_sources(graph, monkeypatch):
    before = graph.key()
    graph_key._versions.cache_clear()
    try:
        monkeypatch.setattr(graph_key, "own_digest", lambda: "other sources")
        assert before.differs(graph.key()) == ["dovetail"]
        monkeypatch.undo()
        graph_key._versions.cache_clear()
        monkeypatch.setattr(torch.version, "git_version", "0" * 40)
        assert before.differs(graph.key()) == ["torch"]
        monkeypatch.undo()
        graph_key._versions.cache_clear()
        monkeypatch.setattr(graph_key.sys, "version_info", type(graph_key.sys)("v"))
        graph_key.sys.version_info.major, graph_key.sys.version_info.minor = 3, 99
        assert before.differs(graph.key()) == ["python"]
    finally:
        monkeypatch.undo()
        graph_key._versions.cache_clear()


def test_the_processor(graph, monkeypatch):
    before = graph.key()
    if before.text("processor").startswith("x86-64-v2"):
        pytest.skip("there is no smaller processor than the one this process is held to")
    monkeypatch.setenv("DOVETAIL_PROCESSOR", "x86-64-v2")
    assert before.differs(graph.key()) == ["processor"]
    assert graph.key().text("processor") == "x86-64-v2"


def test_the_very_processor_matters_where_code_may_be_for_it(graph, monkeypatch):
    class Exact(AtenBackend):
        name = "exact"
        exact_processor = True

    monkeypatch.delenv("DOVETAIL_PROCESSOR", raising=False)

    def on(details, *backends):
        monkeypatch.setattr("dovetail.file.processors._details", lambda: details)
        return graph.key(backends=[backend() for backend in backends])

    ours = [CpuBackend, AtenBackend]
    assert on("Zen 4", *ours) == on("Ice Lake", *ours)
    exact = [Exact, AtenBackend]
    assert on("Zen 4", *exact).differs(on("Ice Lake", *exact)) == ["processor"]


def test_the_number_of_threads_does_not_matter(graph):
    threads = torch.get_num_threads()
    before = graph.key()
    torch.set_num_threads(threads + 1)
    try:
        assert graph.key() == before
    finally:
        torch.set_num_threads(threads)


def test_no_number_is_bumped_by_hand():
    from dovetail.backends.cpu.backend import CpuBackend

    assert CpuBackend().fingerprint().startswith("llvmlite ")
