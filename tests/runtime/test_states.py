"""What is compared of a tensor: every byte of it in any layout, and no byte beside it."""

import pytest
import torch

from dovetail import _native
from dovetail.runtime import writes

DTYPES = [
    torch.bool,
    torch.int8,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.float8_e4m3fn,
]


def layouts(base):
    yield base
    yield base.T
    yield base[::2, 1::3]
    yield base[1:2].expand(5, base.shape[1])
    yield base[:, :0]
    yield base[3, 4]
    yield base.as_strided((3, 4), (2, 1))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_contents_see_every_byte_of_a_tensor_and_none_beside_it(dtype):
    size = torch.empty((), dtype=dtype).element_size()
    raw = torch.zeros(7 * 11 * size, dtype=torch.uint8)
    base, numbers = raw.view(dtype).view(7, 11), torch.arange(7 * 11).view(7, 11)
    for tensor, places in zip(layouts(base), layouts(numbers), strict=True):
        before, inside = writes.contents(tensor), set(places.flatten().tolist())
        for byte in range(0, raw.numel(), 3):
            raw[byte] = 1
            seen = writes.contents(tensor) != before
            assert seen == (byte // size in inside), (tensor.stride(), byte)
            raw[byte] = 0
        assert writes.contents(tensor) == before


def test_contents_see_words_that_change_places():
    x = torch.arange(64.0)
    for step in (1, 2, 4, 8, 16):
        assert writes.contents(x.roll(step)) != writes.contents(x)
    pairs = x.clone()
    pairs[[0, 8]] = pairs[[8, 0]]
    assert writes.contents(pairs) != writes.contents(x)


def test_states_of_what_has_no_strided_memory():
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(TypeError, match="no strided memory"):
        _native.states((sparse,), b"\0")
    with pytest.raises(TypeError):
        _native.states((3,), b"\0")
    with pytest.raises(ValueError, match="1 tensors, 0 ways"):
        _native.states((torch.ones(1),), b"")
    assert writes.contents(sparse) is None
    before = writes.state((sparse,), b"\0")
    assert writes.state((sparse,), b"\0") == before
    sparse.mul_(2)
    assert writes.state((sparse,), b"\0") != before


def test_versions_of_many_types():
    """How a version is read is kept for two types; a subclass may answer for itself."""

    class Counted(torch.Tensor):
        writes = 0
        _version = property(lambda self: Counted.writes)

    kinds = (torch.Tensor, torch.nn.Parameter, type("Own", (torch.Tensor,), {}), Counted)
    tensors = [torch.zeros(1000).as_subclass(kind) for kind in kinds]
    tensors[1] = torch.nn.Parameter(torch.zeros(1000))
    for tensor in tensors * 2:
        before = _native.states((tensor,), b"\0")
        assert _native.states((tensor,), b"\0") == before
        with torch.no_grad():
            torch.Tensor.__setitem__(tensor, 1, 1.0)  # an element that is not among the samples
        Counted.writes += 1
        assert _native.states((tensor,), b"\0") != before
