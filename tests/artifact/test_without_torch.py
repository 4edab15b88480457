"""Calls that PyTorch's libraries serve here, in files for processes that have no PyTorch."""

import pickle
import subprocess
import sys
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn
from torch.export import Dim

import dovetail
from dovetail import errors
from dovetail.artifact.save import pack
from tests.differential import needs_code

F = nn.functional


class Attend(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.options = options

    def forward(self, query, key, value):
        return F.scaled_dot_product_attention(query, key, value, **self.options)


class Product(nn.Module):
    def forward(self, left, right):
        return left @ right


class Scatter(nn.Module):
    def forward(self, x, index, source):
        whole = index[:, None].expand_as(source)
        most = x.scatter_reduce(0, whole, source, "amax", include_self=False)
        return x.index_add(0, index, source) + most.index_put((index - 6,), source, accumulate=True)


class Ordered(nn.Module):
    """Orders, and what is put where they say; a quantile folds to a constant that is expanded."""

    def forward(self, x):
        values, places = x.topk(3, -1)
        kept = torch.zeros_like(x).scatter(-1, places, values)
        kept[:, torch.tensor([0, 2])] = 5.0
        kept[x > 1] = 0.5
        rows = torch.arange(x.shape[0])
        kept = kept.index_put((rows, x.argsort(dim=-1)[:, 0]), values[:, 0], accumulate=True)
        middle = x.median(-1)[0] + x.kthvalue(2, -1)[0] + torch.quantile(x, 0.3, -1)
        return kept + x.sort(0, descending=True)[0] + middle[:, None]


class Sample(nn.Module):
    """An image sampled in all three ways, its outside filled in one."""

    def __init__(self, padding, corners):
        super().__init__()
        self.options = {"padding_mode": padding, "align_corners": corners}

    def forward(self, image, grid):
        modes = ("bilinear", "nearest", "bicubic")
        return torch.stack([F.grid_sample(image, grid, m, **self.options) for m in modes])


class Bags(nn.Module):
    """Sums of scaled rows, means without a row of padding, bags that are empty or of one length."""

    def __init__(self):
        super().__init__()
        self.sums = nn.EmbeddingBag(20, 8, mode="sum")
        self.means = nn.EmbeddingBag(20, 8, mode="mean", padding_idx=2)
        table = data(20, 8)
        self.sums.weight, self.means.weight = nn.Parameter(table), nn.Parameter(table + 1)

    def forward(self, scales, rows, starts):
        equal = self.means(rows.view(-1, 3))[: len(starts)]
        return self.sums(rows, starts, scales) + self.means(rows, starts) * equal


def data(*shape, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))).to(dtype)


def queries(length, heads=4):
    return data(2, heads, length, 16)


BAGGED = torch.arange(30) * 7 % 20
BAGGED[3:9] = 2  # a bag of padding alone
CASES = {
    "first_layer": (nn.Conv2d(3, 16, 7, 2, 3), (data(2, 3, 20, 20),)),
    "row": (nn.Conv1d(8, 16, 3, padding=1), (data(2, 8, 20),)),
    "row_in_groups": (nn.Conv1d(16, 16, 5, padding=2, groups=4), (data(2, 16, 20),)),
    "row_of_each_channel": (nn.Conv1d(16, 16, 4, padding=3, groups=16), (data(2, 16, 20),)),
    "row_transposed": (nn.ConvTranspose1d(8, 4, 3, 2, 1, 1), (data(2, 8, 9),)),
    "volume": (nn.Conv3d(4, 8, 3, padding=1), (data(2, 4, 6, 6, 6),)),
    "transposed": (nn.ConvTranspose2d(8, 4, 4, 2, 1), (data(2, 8, 8, 8),)),
    "transposed_in_groups": (nn.ConvTranspose2d(8, 8, 4, 2, 1, groups=2), (data(2, 8, 8, 8),)),
    "dilated": (nn.Conv2d(8, 8, 3, padding=2, dilation=2), (data(2, 8, 9, 9),)),
    "half": (nn.Conv2d(8, 8, 3).bfloat16(), (data(2, 8, 9, 9, dtype=torch.bfloat16),)),
    "few_queries": (Attend(), (queries(2), queries(33), queries(33))),
    "attention": (Attend(is_causal=True), (queries(33), queries(33), queries(33))),
    "shared_keys": (Attend(enable_gqa=True), (queries(9), queries(9, 2), queries(9, 2))),
    "scatter": (Scatter(), (data(6, 5), torch.tensor([1, 0, 1, 5]), data(4, 5, 1)[..., 0])),
    "ordered": (Ordered(), (data(6, 9),)),
    "sampled": (Sample("zeros", False), (data(2, 3, 7, 9), data(2, 6, 5, 2))),
    "sampled_to_corners": (Sample("zeros", True), (data(2, 3, 7, 9), data(2, 6, 5, 2))),
    "sampled_at_borders": (Sample("border", True), (data(2, 3, 7, 1), data(2, 6, 5, 2))),
    "sampled_in_mirrors": (Sample("reflection", False), (data(2, 3, 7, 9), data(2, 6, 5, 2))),
    "bags": (Bags(), (data(30), BAGGED, torch.tensor([0, 3, 3, 9, 29, 30]))),
    "bags_by_short_integers": (
        Bags(),
        (data(30), BAGGED.int(), torch.tensor([0, 0, 30], dtype=torch.int32)),
    ),
    "integers": (Product(), (data(5, 6).mul(9).long(), data(6, 7).mul(9).long())),
    "vectors": (Product(), (data(6), data(6))),
}
VARYING = ("row", "row_of_each_channel", "dilated", "attention", "ordered", "sampled")  # the batch

RUNS = """
import pickle
import sys
sys.modules["torch"] = None  # an ImportError for whoever wants it
import numpy
import dovetail

folder, found = sys.argv[1], {}
for name, arrays in pickle.load(open(f"{folder}/inputs", "rb")).items():
    run = dovetail.load(f"{folder}/{name}.dvt", trust=True)
    found[name] = numpy.from_dlpack(run(*arrays))
pickle.dump(found, open(f"{folder}/results", "wb"))
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """What a process without PyTorch makes of each case; NumPy has no bfloat16 to give it."""
    folder, inputs = tmp_path_factory.mktemp("files"), {}
    for name, (model, args) in CASES.items():
        for vary in (False, True)[: 1 + (name in VARYING)]:
            axes = tuple({0: Dim("batch", max=64)} for _ in args) if vary else None
            file = f"{name}_varying" if vary else name
            artifact = dovetail.export(model.eval(), args, dynamic_shapes=axes)
            artifact.save(folder / f"{file}.dvt", without_torch=True)
            if name != "half":
                inputs[file] = [arg.numpy() for arg in args]
    (folder / "inputs").write_bytes(pickle.dumps(inputs))
    command = [sys.executable, "-c", RUNS, str(folder)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 0, ran.stderr
    half = dovetail.load(folder / "half.dvt", trust=True)(*CASES["half"][1])
    return pickle.loads((folder / "results").read_bytes()) | {"half": half.float().numpy()}


@needs_code
@pytest.mark.e2e
@pytest.mark.parametrize("name", [*CASES, *(f"{name}_varying" for name in VARYING)])
def test_the_same_as_eager(results, name):
    model, args = CASES[name.removesuffix("_varying")]
    with torch.no_grad():
        exact = model.double()(*(a.double() if a.is_floating_point() else a for a in args)).numpy()
        expected = model.to(args[0].dtype)(*args) if args[0].is_floating_point() else model(*args)
    found, expected = results[name].astype(numpy.float64), expected.double().numpy()
    assert found.shape == exact.shape
    assert abs(found - exact).max() <= 2 * abs(expected - exact).max() + 1e-6


@pytest.mark.parametrize("wrong", ["row", "negative row", "first start", "last start"])
def test_bags_of_what_is_not_there_raise(wrong, tmp_path):
    model = Bags().eval()
    scales, rows, starts = data(30), BAGGED.clone(), torch.tensor([0, 3, 9])
    artifact = dovetail.export(model, (scales, rows, starts))
    artifact.save(tmp_path / "model.dvt", without_torch=True)
    changed, place, number = {
        "row": (rows, 4, 20),
        "negative row": (rows, 4, -1),
        "first start": (starts, 0, 1),
        "last start": (starts, 2, 31),
    }[wrong]
    changed[place] = number
    for run in (model, dovetail.load(tmp_path / "model.dvt")):
        with pytest.raises((RuntimeError, IndexError)):
            run(scales, rows, starts)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("corners", [False, True])
def test_samples_at_places_that_are_none(padding, corners, tmp_path):
    """NaN, infinities and places beyond integers; interpreted, as for those who do not trust it."""
    model, image, grid = Sample(padding, corners), data(1, 2, 4, 5), data(1, 2, 8, 2)
    strange = [float("nan"), float("inf"), -float("inf"), 1e30, -1e12, 3e9, -1.0, 1.0]
    grid[0, 0, :, 0] = grid[0, 1, :, 1] = torch.tensor(strange)
    artifact = dovetail.export(model, (image, grid))
    artifact.save(tmp_path / "model.dvt", without_torch=True)
    found, expected = dovetail.load(tmp_path / "model.dvt")(image, grid), model(image, grid)
    torch.testing.assert_close(found, expected, equal_nan=True)
    torch.testing.assert_close(artifact(image, grid), expected, equal_nan=True)


@needs_code
@pytest.mark.skipif(torch.__version__ < (2, 13), reason="the page is of another PyTorch's examples")
def test_the_page_on_what_runs_without_pytorch_is_true():
    tool = Path(__file__).parents[2] / "tools" / "without_torch.py"
    command = [sys.executable, tool, "--check", "97"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class NeedsTorch(nn.Module):
    def forward(self, x):
        power = torch.linalg.matrix_exp(x)
        for _ in range(2):
            power = power + torch.special.i0(power)
        return torch.linalg.matrix_exp(power), torch.complex(x, x).sum(), torch.histc(x, 4)


def test_all_that_needs_pytorch_is_named_at_once_with_its_lines(tmp_path):
    first = NeedsTorch.forward.__code__.co_firstlineno
    artifact = dovetail.export(NeedsTorch(), (data(3, 3),))
    with pytest.raises(errors.CannotSave) as caught:
        artifact.save(tmp_path / "model.dvt", without_torch=True)
    said, here = str(caught.value), __file__
    assert f"aten.i0.default (at {here}:{first + 3})" in said
    assert f"aten.linalg_matrix_exp.default (at {here}:{first + 1}, {here}:{first + 4})" in said
    assert f"aten.histc.default (at {here}:{first + 4})" in said
    assert "leave out without_torch" in said
    assert not (tmp_path / "model.dvt").exists()


def test_convolutions_of_few_channels_are_done_in_tiles(tmp_path):
    """A library is called for a first layer, whose weights nobody has laid out for a kernel."""
    model, x = nn.Conv2d(3, 16, 3, 2, 1).eval(), data(1, 3, 224, 224)
    with torch.no_grad():
        artifact = dovetail.export(model, (x,), options={"freeze": True})
        artifact.save(tmp_path / "model.dvt", without_torch=True)
        found, expected = dovetail.load(tmp_path / "model.dvt", trust=True)(x), model(x)
        program = pack(artifact.interface, artifact.linked, without_torch=True).program
    assert any("packed" in buffer.name for buffer in program.buffers)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
