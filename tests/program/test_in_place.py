"""Caches are written where they lie: no copy of them is made, and nobody sees a difference."""

import pytest
import torch

from dovetail.errors import InvalidArtifact, InvalidProgram
from dovetail.ir.in_place import is_in_place, write_in_place
from dovetail.ir.program import Copy
from dovetail.ir.program_text import parse_program
from dovetail.ir.program_verify import verify_program
from dovetail.runtime.loaded import open_native
from tests.artifact.files import file_bytes
from tests.differential import assert_same, needs_code

HEAD = (
    "program @p\ninput %cache: float32[4, 8]\ninput %rows: float32[1, 8]\ninput %at: int64[1]\n"
    "temporary %new: float32[4, 8]\ntemporary %old: float32[4, 8]\n"
    "view %seen: float32[2, 8] of %new at 8\n"
    "output %y: float32[4, 8]\noutput %z: float32[2, 8]\n"
)
PUT = "kernel %new = put@1(%cache, %rows, %at; 0, 0, 1, 1)\n"
READ = "kernel %y = relu@1(%new)\nkernel %z = neg@1(%seen)\n"
BACK = "copy %cache = %new\n"
HOST = 'call %host = aten.relu.default [{"buffer": "cache"}] {}\n'
END = "return %y, %z\n"


def program(*lines):
    made = parse_program(HEAD + "".join(lines) + END)
    verify_program(made)
    return made


def test_a_cache_is_written_where_it_lies():
    made = write_in_place(program(PUT, READ, BACK))
    verify_program(made)
    assert not any(isinstance(i, Copy) for i in made.instructions)
    assert is_in_place(made.instructions[0])
    assert made.instructions[1].inputs == ("cache",)
    assert made.by_name["seen"].of == "cache"
    assert "new" not in made.by_name


@pytest.mark.parametrize(
    "lines",
    [
        (PUT.replace("; 0", "; 1"), READ, BACK),  # places that are added to
        (PUT, "kernel %old = relu@1(%cache)\n", READ, BACK),  # the old contents are read
        (PUT.replace("%rows", "%cache"), READ, BACK),  # what is put is the cache's own
        (PUT, READ, BACK, "copy %cache = %old\n"),  # and it is written again
        (PUT, READ, "copy %new = %cache\n", BACK),
        ("host %host: float32[4, 8]\n", HOST, PUT, READ, BACK),
        (PUT, READ),
    ],
)
def test_where_somebody_could_tell_it_is_copied(lines):
    declared = [line for line in lines if line.startswith("host ")]
    text = HEAD + "".join(declared) + "".join(i for i in lines if i not in declared) + END
    text = text.replace(READ, "kernel %old = neg@1(%rows)\n" + READ) if "= %old" in text else text
    before = parse_program(text)
    assert write_in_place(before) == before


def test_other_kernels_do_not_write_to_inputs():
    for wrong in ("kernel %cache = relu@1(%cache)\n", PUT.replace("%new =", "%rows =")):
        with pytest.raises(InvalidProgram, match="writes to"):
            program(wrong, PUT, READ)


def test_files_whose_kernels_do_are_refused():
    wrong = "kernel %cache = relu@1(%cache)\n"
    with pytest.raises(InvalidArtifact, match="another kernel than put@1"):
        open_native(file_bytes(HEAD + wrong + PUT + READ + END))


# ---- models -------------------------------------------------------------------------------------


def calls_of(fn, *args):
    """What eager and compiled code return and leave in their arguments, three calls one by one."""
    assert_same(fn, *args, backend="dovetail", calls=3)


@needs_code
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_index_put_and_index_copy(dtype):
    cache, new = torch.randn(2, 3, 16, 8).to(dtype), torch.randn(2, 3, 2, 8).to(dtype)

    def put(cache, new, at):
        cache[:, :, at] = new
        return cache * 2

    def copy(cache, new, at):
        cache.index_copy_(2, at, new)
        return cache[:, 1] * 2

    calls_of(put, cache, new, torch.tensor([3, 15]))
    calls_of(put, cache, new, torch.tensor([-1, 0]))
    calls_of(copy, cache, new, torch.tensor([5, 6]))


@needs_code
def test_what_could_be_seen_stays_as_it_was():
    cache, new, at = torch.randn(6, 8), torch.randn(1, 8), torch.tensor([2])

    def old_too(cache, new, at):
        before = cache * 1
        cache[at] = new
        return before, cache + 1, before.sum()

    def from_itself(cache, new, at):
        cache[at] = cache[at + 1] + new
        return cache.exp()

    def twice(cache, new, at):
        cache[at] = new
        middle = cache.sum(0)
        cache[at + 1] = middle[None]
        return cache * 2

    def adds(cache, new, at):
        cache.index_put_((torch.cat((at, at)),), torch.cat((new, new)), accumulate=True)
        return cache * 2

    def whole(cache, new, at):
        cache[at] = new
        return cache

    def swapped(cache, new, at):
        cache.t().index_copy_(1, at, new.t())
        return (cache + new).sum(0)

    for fn in (old_too, from_itself, twice, adds, whole, swapped):
        calls_of(fn, cache, new, at)


@needs_code
def test_places_beyond_a_cache_raise():
    def put(cache, new, at):
        cache[at] = new
        return cache * 2

    compiled = torch.compile(put, backend="dovetail")
    cache = torch.zeros(4, 8)
    assert compiled(cache, torch.ones(1, 8), torch.tensor([1])).sum() == 16
    with pytest.raises(IndexError, match="out of bounds"):
        compiled(cache, torch.ones(1, 8), torch.tensor([4]))


@needs_code
def test_shared_memory_and_steps_between_elements():
    """A cache that is part of a larger one, and one whose elements do not lie together."""

    def put(first, second, new, at):
        first[:, at] = new
        second[:, at] = new * 2
        return first.sum() + second.sum()

    both, new, at = torch.randn(2, 3, 8, 4), torch.randn(3, 1, 4), torch.tensor([7])
    expected, made = both.clone(), both.clone()
    sums = put(expected[0], expected[1], new, at)
    torch.testing.assert_close(
        torch.compile(put, backend="dovetail")(made[0], made[1], new, at), sums
    )
    torch.testing.assert_close(made, expected)
    wide, strided = torch.randn(3, 8, 8), torch.randn(3, 8, 8)
    a, b = wide.clone(), strided.clone()
    put(a[..., ::2], b[..., 1::2], new, at)
    torch.compile(put, backend="dovetail")(wide[..., ::2], strided[..., 1::2], new, at)
    assert torch.equal(a, wide)
    assert torch.equal(b, strided)
