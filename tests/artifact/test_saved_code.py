"""A file holds the code that ran: saving generates none, and joins what the segments hold."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dovetail
from dovetail import errors
from dovetail.cli.inspect import describe
from dovetail.compiled.encode import decode, encode
from dovetail.file import container
from dovetail.file.decode import decode_artifact
from dovetail.file.encode import encode_program
from dovetail.file.objects import objects
from dovetail.file.processors import PROCESSORS
from dovetail.ir.program_text import parse_program
from tests.artifact.files import file_bytes, floats
from tests.native import seeds
from tests.targets import family_targets, plain_target

pytest.importorskip("llvmlite", reason="code is generated with llvmlite")


class Mixed(nn.Module):
    """Generated kernels on either side of what the runtime's own kernels run."""

    def forward(self, x, y):
        a = torch.erfc(x).asinh()  # no kernel of the runtime's own
        b = a.relu() + y
        c = torch.erfc(b)
        d = torch.erfc(c.relu())
        return d, b.t(), x[1:], c.sum()


def mixed(**options):
    args = torch.randn(4, 6), torch.randn(4, 6)
    backends = {"backends": ["portable", "cpu", "aten"], "debug": False}
    return dovetail.export(Mixed(), args, options=backends, **options), args


def fused():
    x = torch.randn(9, 48)

    class Fused(nn.Module):
        def forward(self, x):
            return F.gelu(F.layer_norm(x, (48,))) @ x.t(), x.sum(0)

    return dovetail.export(Fused(), (x,), backend="cpu"), (x,)


@pytest.fixture
def counted(monkeypatch):
    """Every plan that is made and every module that is generated from here on."""
    from dovetail.backends.cpu import program as cpu_program
    from dovetail.codegen.llvm import module, target
    from dovetail.schedule import plan

    made = []

    def count(where, name):
        function = getattr(where, name)

        def counting(*args, **kwargs):
            made.append(name)
            return function(*args, **kwargs)

        monkeypatch.setattr(where, name, counting)

    for where in (cpu_program, plan):
        count(where, "make_plan")
    for where in (cpu_program, module):
        count(where, "generate")
    for where in (module, target):
        count(where, "assemble")
    return made


def code_that_ran(artifact):
    """The objects of all segments, each once."""
    found = []
    for segment in artifact.compiled.every.segments:
        section = decode_artifact(segment.blob.data, "").sections.get(container.CODE)
        found += [] if section is None else objects(section)
    return sorted(set(found))


def code_in(path):
    return objects(decode_artifact(path.read_bytes(), "").sections[container.CODE])


@pytest.mark.parametrize("make", [fused, mixed])
def test_saving_generates_no_code(make, tmp_path, counted):
    artifact, args = make()
    assert {"make_plan", "generate", "assemble"} <= {*counted}
    counted.clear()
    artifact.save(tmp_path / "m.dvt")
    artifact.save(tmp_path / "own.dvt", targets=[plain_target()])
    assert counted == []
    assert code_in(tmp_path / "m.dvt") == code_that_ran(artifact)
    assert (tmp_path / "m.dvt").read_bytes() == (tmp_path / "own.dvt").read_bytes()
    run = dovetail.load(tmp_path / "m.dvt", trust=True)
    assert run.native.code() == 1
    assert all(torch.equal(a, b) for a, b in zip(run(*args), artifact(*args), strict=True))


def test_segments_keep_their_objects(tmp_path):
    """Of three segments with generated kernels two have the same: it is stored once."""
    artifact, args = mixed()
    assert [s.backend for s in artifact.compiled.every.segments].count("cpu") == 3
    artifact.save(tmp_path / "m.dvt")
    assert len(code_in(tmp_path / "m.dvt")) == 2
    found = describe(str(tmp_path / "m.dvt"))
    called = {name for name in found["kernels"] if name.startswith("generated.")}
    assert {f"{kernel['name']}@1" for kernel in found["generated"]} == called
    stranger = dovetail.load(tmp_path / "m.dvt", trusted_keys=[])
    for a, b in zip(stranger(*args), artifact(*args), strict=True):
        assert torch.equal(a, b)


def test_only_code_for_other_processors_is_generated(tmp_path, counted):
    artifact, _ = mixed()
    names = family_targets()
    here = plain_target()
    counted.clear()
    artifact.save(tmp_path / "m.dvt", targets=names)
    assert counted.count("generate") == len({*names} - {here})
    assert "make_plan" not in counted
    found = code_in(tmp_path / "m.dvt")
    assert [each for each in found if each[0] == PROCESSORS[here]] == code_that_ran(artifact)
    for kernel in describe(str(tmp_path / "m.dvt"))["generated"]:
        assert {*kernel["code"]} == {*names}


def test_without_torch_generated_kernels_stay(tmp_path, counted):
    artifact, args = fused()
    counted.clear()
    artifact.save(tmp_path / "m.dvt", without_torch=True)
    assert counted == []
    assert describe(str(tmp_path / "m.dvt"))["host_ops"] == []
    assert code_in(tmp_path / "m.dvt") == code_that_ran(artifact)
    run = dovetail.load(tmp_path / "m.dvt", trust=True)
    torch.testing.assert_close(run(*args), artifact(*args))


def test_a_graph_from_bytes_is_saved_alike(tmp_path, counted):
    """As from a cache: the same file, and nothing of the process that compiled it is needed."""
    from dovetail.artifact.save import save
    from dovetail.options import Options
    from dovetail.pipeline import Compiler
    from dovetail.place.priority import priority_list

    artifact, _ = mixed()
    artifact.save(tmp_path / "m.dvt")
    chosen = Options.resolve({"backends": ["portable", "cpu", "aten"]})
    compiler = Compiler(priority_list(chosen, None), chosen, artifact.record)
    counted.clear()
    again = compiler.link(decode(encode(artifact.compiled)))
    save(artifact.interface, again, tmp_path / "again.dvt")
    assert counted == []
    assert (tmp_path / "m.dvt").read_bytes() == (tmp_path / "again.dvt").read_bytes()


def test_segments_alike_but_for_their_symbols(tmp_path):
    """One is compiled for both; in the file each has the sizes of its own inputs."""

    class Twice(nn.Module):
        def forward(self, x, y):
            a = torch.erfc(x.relu())
            return a, torch.erfc((y + a.sum()).relu())

    args = torch.randn(4, 6), torch.randn(5, 6)
    dynamic = {0: torch.export.Dim.DYNAMIC}
    options = {"backends": ["portable", "cpu", "aten"], "debug": False}
    artifact = dovetail.export(Twice(), args, dynamic_shapes=(dynamic, dynamic), options=options)
    generated = [s for s in artifact.compiled.every.segments if s.backend == "cpu"]
    assert len(generated) == 2
    assert len({s.blob.data for s in generated}) == 1
    artifact.save(tmp_path / "m.dvt")
    run = dovetail.load(tmp_path / "m.dvt", trust=True)
    other = torch.randn(3, 6), torch.randn(8, 6)
    for given in (args, other):
        assert all(torch.equal(a, b) for a, b in zip(run(*given), artifact(*given), strict=True))


def test_kernels_are_named_after_what_they_do():
    """The same work has one name in every segment; other sizes make another kernel."""
    first, _ = mixed()
    second, _ = mixed()
    shapes = {"x": {0: torch.export.Dim.DYNAMIC}, "y": {0: torch.export.Dim.DYNAMIC}}
    other, _ = mixed(dynamic_shapes=shapes)

    def names(artifact):
        segments = [s for s in artifact.compiled.every.segments if s.backend == "cpu"]
        programs = [decode_artifact(s.blob.data, "").program for s in segments]
        return [set(program.kernels()) for program in programs]

    assert names(first) == names(second)
    assert not set().union(*names(first)) & set().union(*names(other))


@pytest.mark.usefixtures("no_cache")
def test_kernels_that_no_file_can_hold_run_all_the_same(monkeypatch, tmp_path):
    def refuse(_):
        raise errors.CannotSave("it has no form")

    monkeypatch.setattr("dovetail.schedule.program.encode_kernel", refuse)
    artifact, args = fused()
    torch.testing.assert_close(artifact(*args)[1], args[0].sum(0))
    with pytest.raises(
        errors.CannotSave, match="a generated kernel that no file can hold: it has no form"
    ):
        artifact.save(tmp_path / "m.dvt")


CONTENTS = {
    "DYNAMIC": {"w": floats(*range(12)), "b": floats(1, 2, 3, 4)},
    "MOVES": {"t": floats(*range(12)), "total": floats(*range(6))},
    "HOST": {},
    "INTO": {},
}


@pytest.mark.parametrize("name", sorted(CONTENTS))
def test_programs_are_read_back_as_they_were(name):
    program = parse_program(getattr(seeds, name))
    found = decode_artifact(file_bytes(getattr(seeds, name), CONTENTS[name]), program.name)
    assert found.program == program
    assert found.contents == CONTENTS[name]
    sections, _ = encode_program(found.program, found.contents, found.manifest, debug=False)
    for section in sections:
        assert b"".join(section.pieces) == found.sections[section.kind]


def test_what_is_no_program_is_refused():
    data = file_bytes()
    for damaged in (b"", data[:200], data[:400]):
        with pytest.raises(errors.InvalidArtifact):
            decode_artifact(damaged, "relu")
