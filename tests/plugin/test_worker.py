"""A library's compiler in a worker process: the class is made there from the library's path."""

import torch

import dovetail
from dovetail.compilers import process
from dovetail.compilers.remote import Subprocess
from tests.compilers.trouble import segment_of_one


def test_a_worker_loads_the_library(accel):
    backend = dovetail.get_backend(accel.name)
    notes = []
    (blob,) = Subprocess(note=notes.append).compile(backend, [segment_of_one("aten.relu.default")])
    process.end_all()
    assert not notes
    x = torch.randn(4)
    torch.testing.assert_close(backend.load(blob)([x])[0], x.relu())
