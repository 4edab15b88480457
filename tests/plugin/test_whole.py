"""Segments compiled as a whole: ranges of sizes, constants in the code, constants left in place."""

import gc
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.export import Dim

import dovetail
from dovetail import errors, registry
from dovetail.backends.plugin.backend import open_library, plugin_backend
from dovetail.ir import Size
from dovetail.ir.size import INT64_MAX, parse_size
from dovetail.ir.size_range import multiple_of, size_range
from tests.plugin.conftest import compile_library

pytestmark = pytest.mark.e2e
SOURCE = Path(__file__).parent / "whole.c"


@pytest.fixture(scope="module")
def build(compiler, tmp_path_factory):
    def make(*macros):
        path = tmp_path_factory.mktemp("whole") / "libwhole.so"
        return compile_library(path, SOURCE, flags=[f"-D{name}" for name in macros])

    return make


@pytest.fixture(scope="module")
def library(build):
    return build()


@pytest.fixture
def whole(library):
    backend = plugin_backend(library)
    with registry.registered_backend(backend):
        native = open_library(library).native
        native.open()
        native.set("reset", 0)
        yield native


class Rows(nn.Module):
    def __init__(self, columns=8):
        super().__init__()
        self.factor = nn.Parameter(torch.randn(columns))

    def forward(self, x):
        return ((x.relu() * self.factor).relu() * self.factor).relu()


def test_a_segment_is_compiled_once_and_runs_with_other_sizes(whole):
    x = torch.randn(6, 8)
    torch._dynamo.mark_dynamic(x, 0, min=3, max=40)
    run = torch.compile(lambda x: x.relu().relu(), backend="whole", options={"strict": True})
    for rows in (6, 3, 40, 17):
        given = x if rows == 6 else torch.randn(rows, 8)
        torch.testing.assert_close(run(given), given.relu())
    assert (whole.get("compiled"), whole.get("ran")) == (1, 4)
    assert (whole.get("least"), whole.get("greatest"), whole.get("sizes")) == (3, 40, 1)


def test_a_file_keeps_what_its_sizes_were_compiled_for(whole, library, tmp_path):
    path = tmp_path / "rows.dvt"
    blocks = Dim("blocks", min=2, max=5)

    class Twice(nn.Module):
        def forward(self, x, y):
            return x.relu().relu() + y.sum()

    given, shapes = (torch.randn(24, 8), torch.zeros(3)), ({0: 8 * blocks}, {0: blocks})
    dovetail.export(Twice(), given, dynamic_shapes=shapes, backend="whole").save(path)
    assert (whole.get("least"), whole.get("greatest"), whole.get("multiple")) == (16, 40, 8)
    run = dovetail.load(path, plugins=[library], trust=True)
    for count in (16, 40):
        x = torch.randn(count, 8)
        torch.testing.assert_close(run(x, torch.zeros(count // 8)), x.relu())
    with pytest.raises(errors.DovetailError, match="must be 2 to 5"):
        run(torch.randn(48, 8), torch.zeros(6))


def test_blocks_that_repeat_are_compiled_once(whole):
    def model(x):
        for _ in range(5):
            x = x.relu().relu().sigmoid() - 0.5
        return x

    x = torch.randn(6, 8)
    run = torch.compile(model, backend="whole", options={"strict": True, "keep_small": True})
    torch.testing.assert_close(run(x), model(x))
    assert (whole.get("compiled"), whole.get("ran")) == (1, 5)


def test_a_compiler_puts_constants_into_its_code(whole, library, tmp_path):
    model, x = Rows().eval(), torch.randn(6, 8)
    path = tmp_path / "absorbed.dvt"
    dovetail.export(model, (x,), backend="whole").save(path)
    assert whole.get("absorbed") == 2
    held = model.factor.detach()
    data = path.read_bytes()
    assert held.numpy().tobytes() not in data  # as it was
    assert held.flip(0).contiguous().numpy().tobytes() in data  # as the compiler wants it
    run = dovetail.load(path, plugins=[library], trust=True)
    whole.set("reset", 0)
    torch.testing.assert_close(run(x), model(x))
    assert (whole.get("ran"), whole.get("copied")) == (1, x.numel() * 4)


def test_constants_that_are_not_known_for_good_are_passed(whole):
    model, x = Rows().eval(), torch.randn(6, 8)
    run = torch.compile(model, backend="whole", options={"strict": True})
    with torch.no_grad():
        torch.testing.assert_close(run(x), model(x))
        model.factor.mul_(2)
        torch.testing.assert_close(run(x), model(x))
    assert whole.get("absorbed") == 0


def test_constants_of_a_file_stay_where_they_are(build, tmp_path):
    library = build("IMPORTS")
    model, x = Rows(1024).eval(), torch.randn(3, 1024)
    path = tmp_path / "imported.dvt"
    with registry.registered_backend(plugin_backend(library)):
        dovetail.export(model, (x,), backend="whole").save(path)
    native = open_library(library).native
    run = dovetail.load(path, plugins=[library])
    native.set("reset", 0)
    torch.testing.assert_close(run(x), model(x))
    assert native.get("copied") == x.numel() * 4  # the factors were not
    assert native.get("imported") == 1
    stream = run.device().stream()
    y = run.on(stream)(x)  # nobody waits for it
    del run
    gc.collect()
    assert native.get("imported") == 0  # let go of while the file was there
    torch.testing.assert_close(torch.from_numpy(y.host().array()), model(x))


@pytest.mark.parametrize(
    ("text", "ends", "multiple"),
    [
        ("8 * s0", (16, 40), 8),
        ("8 * s0 + 4", (20, 44), 4),
        ("8 * s0 + 3", (19, 43), 1),
        ("s0 - s1", (2 - 7, INT64_MAX), 1),
        ("8 * s0 // 2", (8, 20), 4),
        ("s0 // 2", (1, 2), 1),
        ("s0 % 3", (0, 2), 1),
        ("max(s0, 4)", (4, 5), 1),
        ("min(4 * s0, 6 * s0)", (8, 20), 2),
        ("s0 * s2", (0, INT64_MAX), 1),
    ],
)
def test_what_is_known_of_a_size(text, ends, multiple):
    size = parse_size(text)
    assert isinstance(size, Size)
    found = size_range(size, {"s0": (2, 5), "s1": (7, 7)})
    if text == "s0 - s1":
        assert found == (-5, -2)
    else:
        assert found == ends
    assert multiple_of(size) == multiple
