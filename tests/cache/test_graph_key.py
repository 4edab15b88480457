"""What enters a graph's key, part by part, and what stops it from having one."""

import functools
import random

import pytest
import torch
from torch import nn

from dovetail import passes, sources
from dovetail.backend import Transfer
from dovetail.backends.aten import AtenBackend
from dovetail.cache import Bypass, graph_key
from dovetail.passes import PassManager
from tests import models
from tests.cache.graphs import Captured, capture, keys

aten = torch.ops.aten


def t(*shape, **how):
    return torch.arange(float(torch.Size(shape).numel()), **how).reshape(shape)


def dynamo(fn, *args, **how):
    return keys(fn, *args, **how)["dynamo"]


# ---- the graph ----------------------------------------------------------------------------------

GRAPHS = {
    "a number": (lambda x: x * 2, lambda x: x * 3),
    "an integer for a float": (lambda x: x + 1, lambda x: x + 1.0),
    "zero's sign": (lambda x: x + 0.0, lambda x: x + -0.0),
    "a keyword": (lambda x: torch.add(x, x, alpha=2), lambda x: torch.add(x, x, alpha=3)),
    "a keyword's absence": (lambda x: x.sum(), lambda x: x.sum(dim=None, keepdim=True)),
    "a dtype": (lambda x: x.to(torch.float16), lambda x: x.to(torch.bfloat16)),
    "a device": (lambda x: x.to("cpu"), lambda x: x.to("meta")),
    "a memory format": (
        lambda x: x.clone(memory_format=torch.contiguous_format),
        lambda x: x.clone(memory_format=torch.preserve_format),
    ),
    "a function": (lambda x: torch.sin(x), lambda x: torch.cos(x)),
    "a method": (lambda x: x.sin(), lambda x: x.cos()),
    "a method for a function": (lambda x: torch.sin(x), lambda x: x.sin()),
    "the order of arguments": (lambda x: x.sin() - x, lambda x: x - x.sin()),
    "the order of results": (lambda x: (x.sin(), x.cos()), lambda x: (x.cos(), x.sin())),
    "a slice": (lambda x: x[1:3], lambda x: x[1:2]),
    "a string": (
        lambda x: nn.functional.gelu(x, approximate="none"),
        lambda x: nn.functional.gelu(x, approximate="tanh"),
    ),
    "a branch": (
        lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a + 2, (x,)),
        lambda x: torch.cond(x.sum() > 0, lambda a: a + 1, lambda a: a + 3, (x,)),
    ),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_what_changes_the_graph(name):
    one, other = (dynamo(fn, t(4, 4)) for fn in GRAPHS[name])
    assert one.differs(other) == ["graph"]


@pytest.mark.parametrize("name", ["a number", "a dtype", "a branch", "the order of results"])
def test_what_changes_the_functional_graph(name):
    one, other = (keys(fn, t(4, 4))["inference"] for fn in GRAPHS[name])
    assert one.differs(other) == ["graph"]


@pytest.mark.parametrize("name", GRAPHS)
def test_the_same_graph_again(name):
    one, other = (keys(GRAPHS[name][0], t(4, 4)) for _ in range(2))
    assert {k: v.digest for k, v in one.items()} == {k: v.digest for k, v in other.items()}


# ---- inputs -------------------------------------------------------------------------------------


def overlapping():
    held = torch.empty(0).set_(t(8).untyped_storage(), 0, (4,), (1,))
    return held, torch.empty(0).set_(held.untyped_storage(), 2, (4,), (1,))


INPUTS = {
    "a size": ([t(4, 4), t(4)], [t(8, 4), t(4)], ["input 0"]),
    "a dtype": ([t(4, 4), t(4)], [t(4, 4), t(4).double()], ["input 1"]),
    "strides": ([t(4, 4), t(4)], [t(4, 4).t().contiguous().t(), t(4)], ["input 0"]),
    "requires_grad": ([t(4, 4), t(4)], [t(4, 4).requires_grad_(), t(4)], ["input 0"]),
    "a parameter": (
        [t(4), t(4)],
        [t(4), nn.Parameter(t(4))],
        ["input 1", "parameters", "order of inputs"],
    ),
    "shared memory": ([t(4), t(4)], list(overlapping()), ["shared memory"]),
}


@pytest.mark.parametrize("name", INPUTS)
def test_what_changes_the_inputs(name):
    one, other, expected = INPUTS[name]
    found = [dynamo(lambda x, y: x * y, *args, dynamic=False) for args in (one, other)]
    assert found[0].differs(found[1]) == expected


def test_a_difference_reads_as_one():
    one, other = (dynamo(lambda x: x + 1, t(n, 64), dynamic=False) for n in (8, 16))
    assert one.differs(other) == ["input 0"]
    assert one.text("input 0").startswith("float32[8, 64]")
    assert other.text("input 0").startswith("float32[16, 64]")


def test_where_a_tensor_begins_matters_to_those_who_ask():
    at = [torch.empty(0).set_(t(8).untyped_storage(), n, (4,), (1,)) for n in (0, 2)]
    plain = [dynamo(lambda x: x + 1, x) for x in at]
    assert plain[0] == plain[1]
    asked = [graph_of(aten.as_strided.default, x, (2,), (1,)).key() for x in at]
    assert asked[0].differs(asked[1]) == ["shared memory"]


def graph_of(target, x, *args):
    graph = torch.fx.Graph()
    node = graph.placeholder("x")
    graph.output((graph.call_function(target, (node, *args)),))
    return Captured("inference", torch.fx.GraphModule(nn.Module(), graph), [x])


def test_parameters_stand_apart_and_their_contents_do_not_matter():
    torch.manual_seed(0)
    one, again = (dynamo(nn.Linear(4, 4), t(2, 4)) for _ in range(2))
    wider = dynamo(nn.Linear(4, 8), t(2, 4))
    assert one == again
    assert one.differs(wider) == ["parameters"]


def test_kept_inputs_matter_after_autograd():
    (plain,) = (c for c in capture(lambda x: x + 1, t(4)) if c.stage == "inference")
    before = plain.key()
    (node,) = plain.gm.graph.find_nodes(op="placeholder")
    node.meta["dovetail_constant"] = True
    assert set(before.differs(plain.key())) == {"input 0", "parameters", "order of inputs"}


# ---- symbols ------------------------------------------------------------------------------------


def bounded(low, high):
    x = t(8, 4)
    torch._dynamo.mark_dynamic(x, 0, min=low, max=high)
    return x


def test_ranges_of_symbols():
    one, other = (keys(lambda x: x + 1, bounded(2, high)) for high in (64, 128))
    assert one["dynamo"].differs(other["dynamo"]) == ["symbols"]
    assert one["inference"].differs(other["inference"]) == ["symbols"]
    assert one["dynamo"].text("symbols") == "s0 in [2, 64], 8 in the example"


def test_hints_matter_where_they_decide():
    one, other = (keys(lambda x: x * 2, t(n, 4), dynamic=True) for n in (8, 16))
    assert one["dynamo"].differs(other["dynamo"]) == ["symbols"]
    assert one["inference"] == other["inference"]

    class Far(AtenBackend):
        name = "far"
        transfer = Transfer()

    at = [
        next(c for c in capture(lambda x: x * 2, t(n, 4), dynamic=True) if c.stage == "inference")
        for n in (8, 16)
    ]
    far, near = ([c.key(backends=[b()]) for c in at] for b in (Far, AtenBackend))
    assert far[0].differs(far[1]) == ["symbols"]
    assert near[0] == near[1]


def test_sizes_that_happen_to_be_equal_share_a_symbol():
    one, other = (dynamo(lambda x, y: (x + 1, y + 1), t(8), t(n), dynamic=True) for n in (8, 9))
    assert set(one.differs(other)) >= {"input 1", "symbols"}


def test_guards_enter():
    def guarded(x):
        return x + 1 if x.shape[0] > 5 else x + 2

    one = dynamo(lambda x: x + 1, t(8, 4), dynamic=True)
    other = dynamo(guarded, t(8, 4), dynamic=True)
    assert one.differs(other) == ["symbols"]
    divided = dynamo(lambda x: x + (1 if x.shape[0] % 4 == 0 else 2), t(8, 4), dynamic=True)
    assert one.differs(divided) == ["symbols"]


# ---- constants ----------------------------------------------------------------------------------


def test_constants_by_their_contents():
    def adds(value):
        return lambda x: x + torch.tensor([1.0, value])

    def graphs(value):
        return next(c for c in capture(adds(value), t(2)) if c.stage == "inference")

    one, again, other = (graphs(value).key() for value in (2.0, 2.0, 3.0))
    assert one == again
    assert one.differs(other) == ["constants"]
    assert one.text("constants") == "1 constants"


@pytest.mark.parametrize(
    "value",
    [t(3, 4).t(), t(3).bfloat16(), torch.tensor(2), t(0), torch.tensor([1 + 2j]).conj(), t(3) > 1],
    ids=["transposed", "bfloat16", "scalar", "empty", "conj", "bool"],
)
def test_every_kind_of_contents(value):
    from dovetail.cache.graph_parts import contents_digest

    assert contents_digest(value) == contents_digest(value.clone())
    if value.numel():
        assert contents_digest(value) != contents_digest(torch.ones_like(value) * 7 == 1)


def test_large_contents_are_hashed_whole():
    from dovetail.cache import graph_parts

    big = torch.zeros((2 * graph_parts._CHUNK) // 4 + 1000)
    before = graph_parts.contents_digest(big)
    for position in (0, graph_parts._CHUNK // 4, -1):
        changed = big.clone()
        changed[position] = 1
        assert graph_parts.contents_digest(changed) != before


# ---- state, passes, options, backends, versions -------------------------------------------------


@pytest.fixture(scope="module")
def graph():
    (found, *_) = capture(lambda x: x * 2, t(4))
    return found


def flag(module, name, value):
    class Flag:
        def __enter__(self):
            self.before = getattr(module, name)
            setattr(module, name, value)

        def __exit__(self, *_):
            setattr(module, name, self.before)

    return Flag()


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


class Tuned(AtenBackend):
    name = "tuned"

    def __init__(self, *, level=1, table=None):
        self.level, self.table = level, table

    def fingerprint(self):
        return "tool 1"


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
    monkeypatch.setenv("DOVETAIL_PROCESSOR", "x86-64-v2")
    assert before.differs(graph.key()) == ["processor"]
    assert graph.key().text("processor") == "x86-64-v2"


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


# ---- custom operators, functions, modules -------------------------------------------------------


@pytest.fixture
def library():
    with torch.library._scoped_library("keys", "FRAGMENT") as held:
        yield held


def test_a_custom_operator_is_called_by_name(library):
    library.define("twice(Tensor x) -> Tensor")
    library.impl("twice", lambda x: x * 2, "CPU")
    torch.library.register_fake("keys::twice", lambda x: torch.empty_like(x), lib=library)
    found = {c.stage: c for c in capture(lambda x: torch.ops.keys.twice(x) + 1, t(3))}
    reason = found["dynamo"].key()
    assert isinstance(reason, Bypass)
    assert reason.reason == "it calls the custom operator keys::twice, which tracing looks into"
    before = found["inference"].key()
    library.impl("twice", lambda x: x + x, "CPU", allow_override=True)
    assert found["inference"].key() == before
    (call,) = (n for n in found["inference"].gm.graph.nodes if "twice" in str(n.target))
    call.meta["val"] = call.meta["val"].to(torch.float64)
    assert before.differs(found["inference"].key()) == ["graph"]


def test_functions_of_the_user_that_tracing_runs():
    """Nobody can tell what they will read when AOTAutograd runs them: it comes before the key."""

    @torch.library.custom_op("keys::scaled", mutates_args=())
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    scaled.register_fake(torch.empty_like)

    @torch.compiler.allow_in_graph
    def whole(x):
        return x * 2

    @torch.compiler.allow_in_graph
    @functools.wraps(torch.sin)
    def named_after_another(x):
        return x * 2

    def reason(fn):
        return capture(fn, t(3))[0].key().reason

    told = reason(lambda x: torch.ops.keys.scaled(x))
    assert told == "it calls the custom operator keys::scaled, which tracing looks into"
    assert reason(lambda x: whole(x)).endswith("is code of the user's")
    assert reason(lambda x: named_after_another(x)).endswith("is code of the user's")


def test_what_an_operator_in_another_gives(library):
    library.define("filled(Tensor(a!) x) -> Tensor")
    library.impl("filled", lambda x: x.fill_(2) * 2, "CPU")
    torch.library.register_fake("keys::filled", torch.empty_like, lib=library)
    found = {c.stage: c for c in capture(lambda x: torch.ops.keys.filled(x) + 1, t(3))}["inference"]
    before = found.key()
    (call,) = (n for n in found.gm.graph.nodes if "auto_functionalized" in str(n.target))
    first, *rest = call.meta["val"]
    call.meta["val"] = (first.to(torch.float64), *rest)
    assert before.differs(found.key()) == ["graph"]


def test_a_module_left_whole():
    def key(module):
        graph = torch.fx.Graph()
        graph.output((graph.call_module("inner", (graph.placeholder("x"),)),))
        root = nn.Module()
        root.inner = module
        return Captured("dynamo", torch.fx.GraphModule(root, graph), [t(2, 4)]).key()

    assert key(nn.Linear(4, 4)) == key(nn.Linear(4, 4))
    assert key(nn.Dropout(0.5)).differs(key(nn.Dropout(0.4))) == ["graph"]
    assert set(key(nn.Linear(4, 4)).differs(key(nn.Linear(4, 8)))) == {"graph", "parameters"}
    assert key(nn.Dropout(0.5)).differs(key(nn.Dropout(0.5).eval())) == ["graph"]

    class Mine(nn.Module):
        pass

    assert "of class" in key(Mine()).reason


class Wrapped(torch.Tensor):
    pass


def test_no_key_where_something_cannot_be_told(graph):
    subclass = graph_of(aten.sin.default, torch.ones(3).as_subclass(Wrapped)).key()
    assert subclass.reason.endswith("test_graph_key.Wrapped")
    drawn = graph_of(aten.bernoulli.p, t(3), 0.5)
    drawn.gm.graph.find_nodes(op="call_function", target=aten.bernoulli.p)[0].kwargs = {
        "generator": torch.Generator()
    }
    assert "torch._C.Generator" in drawn.key().reason
    hop = torch._higher_order_ops.triton_kernel_wrap.triton_kernel_wrapper_mutation
    assert "triton_kernel_wrapper_mutation" in graph_of(hop, t(3)).key().reason

    class Mode(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    with Mode():
        assert "Mode is active" in graph.key().reason
    odd = graph.key(backends=[Tuned(table=object()), AtenBackend()])
    assert "the options of the backend tuned" in odd.reason
    held = object()
    manager = PassManager().add("post_grad", passes.Pass("odd", lambda gm: gm if held else None))
    assert isinstance(graph.key(passes=manager), Bypass)


# ---- any argument of any call -------------------------------------------------------------------


def leaves(value, path=()):
    if isinstance(value, tuple | list):
        for position, each in enumerate(value):
            yield from leaves(each, (*path, position))
    elif isinstance(value, dict):
        for name, each in value.items():
            yield from leaves(each, (*path, name))
    else:
        yield path, value


def put(value, path, new):
    if not path:
        return new
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: put(value[first], rest, new)}
    changed = [put(v, rest, new) if n == first else v for n, v in enumerate(value)]
    return type(value)(changed) if isinstance(value, list) else tuple(changed)


def other(value, node, nodes):
    if isinstance(value, torch.fx.Node):
        return next((n for n in nodes if n is not value and n is not node), None)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return value + "x"
    return {None: 7, torch.float32: torch.float64}.get(value, "something else")


def perturbations(gm):
    nodes = list(gm.graph.nodes)
    for position, node in enumerate(nodes):
        held = [(node.args, dict(node.kwargs))]
        for path, value in leaves((node.args, dict(node.kwargs))):
            new = other(value, node, nodes[:position])
            if new is not None:
                node.args, node.kwargs = put(held[0], path, new)
                yield node, path
                node.args, node.kwargs = held[0]


@pytest.mark.parametrize("stage", ["dynamo", "forward", "backward"])
@pytest.mark.parametrize("model", ["gpt", "resnet"])
def test_every_argument_changes_the_key(model, stage):
    torch.manual_seed(0)
    if model == "gpt":
        module, args = models.GPT(layers=1), (torch.arange(16).reshape(2, 8),)
    else:
        module, args = models.ResNet(), (torch.randn(2, 3, 16, 16),)
    (found,) = (c for c in capture(module, *args) if c.stage == stage)
    seen = {found.key().digest: "unchanged"}
    every = sum(1 for _ in perturbations(found.gm))
    chosen = set(random.Random(0).sample(range(every), min(every, 300)))
    for number, (node, path) in enumerate(perturbations(found.gm)):
        if number in chosen:
            key = found.key()
            assert not isinstance(key, Bypass), key.reason
            assert seen.setdefault(key.digest, (node.name, path)) == (node.name, path)
    assert found.key().digest in seen


# ---- sources ------------------------------------------------------------------------------------


def test_a_pass_of_another_package_follows_its_package(tmp_path, monkeypatch):
    import importlib
    import sys

    def identity(name, **changed):
        package = tmp_path / name / "helpful"
        files = {"__init__": "", "used": "import helpful.deep", "unused": "x = 1"}
        files |= {"deep": "y = 1", "main": "def run(gm):\n    from . import used\n    return gm\n"}
        package.mkdir(parents=True)
        for file, text in (files | changed).items():
            (package / f"{file}.py").write_text(text)
        monkeypatch.syspath_prepend(str(package.parent))
        try:
            main = importlib.import_module("helpful.main")
            sources._module_digest.cache_clear()
            return passes.as_pass(main.run).identity
        finally:
            for loaded in [m for m in sys.modules if m.partition(".")[0] == "helpful"]:
                del sys.modules[loaded]

    first = identity("a")
    assert identity("b") == first
    assert identity("c", unused="x = 2") == first
    assert identity("d", deep="y = 2") != first
    assert identity("e", used="import helpful.deep\nz = 1") != first
    assert identity("f", __init__="z = 1") != first


def test_the_digest_of_our_own_sources_covers_what_compiles(tmp_path):
    from pathlib import Path

    root = tmp_path / "pkg"
    for file in ("a.py", "deep/b.py", "ext.so", "cli/c.py", "deep/cli/d.py", "notes.md"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).write_text("1")
    found = {name for name, _ in sources.package_files(root)}
    assert found == {"a.py", "deep/b.py", "ext.so", "deep/cli/d.py"}
    before = sources.digest_files(sources.package_files(root))
    (root / "deep/b.py").write_text("2")
    assert sources.digest_files(sources.package_files(root)) != before
    ours = {name for name, _ in sources.package_files(Path(sources.__file__).parent)}
    assert {"pipeline.py", "lower/pointwise.py", "cache/graph_key.py"} <= ours
    assert any(name.startswith("_native") for name in ours)


def test_the_digest_is_kept_until_a_file_changes(tmp_path, monkeypatch):
    import os
    import time

    from dovetail.cache import own_sources

    file, counted = tmp_path / "a.py", []

    def digest_files(files):
        counted.append(1)
        return sources.digest_files(files)

    def written(text):
        file.write_text(text)
        return own_digest()

    def own_digest():
        own_sources.own_digest.cache_clear()
        return own_sources.own_digest()

    monkeypatch.setenv("DOVETAIL_CACHE", "1")
    monkeypatch.setenv("DOVETAIL_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(own_sources, "package_files", lambda: [("a.py", file)])
    monkeypatch.setattr(own_sources, "digest_files", digest_files)
    first = written("x = 1")
    assert own_digest() == first
    assert len(counted) == 2  # too fresh to tell a second change by its time
    monkeypatch.setattr(own_sources, "_SETTLED", -1.0)
    assert own_digest() == first
    assert len(counted) == 3
    assert own_digest() == first
    assert len(counted) == 3
    later = time.time_ns() + 10**9
    file.write_text("x = 2")
    os.utime(file, ns=(later, later))
    assert own_digest() != first
    (kept,) = (tmp_path / "cache").glob("sources-*")
    kept.write_bytes(b"\xff garbage")
    assert own_digest() == sources.digest_files([("a.py", file)])
    monkeypatch.undo()
    own_sources.own_digest.cache_clear()
