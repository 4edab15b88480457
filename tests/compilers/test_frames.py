"""Frames: whole or nothing, however they come in, and no garbage is taken for one."""

import pytest

from dovetail.compilers.frames import BadFrame, FrameReader, pack


def test_frames_come_in_pieces():
    data = pack({"a": "ü\udcff"}, b"\0" * 300) + pack({"b": [1]})
    reader, found = FrameReader(), []
    for n in range(len(data)):
        reader.feed(data[n : n + 1])
        while (frame := reader.take()) is not None:
            found.append(frame)
    assert found == [({"a": "ü\udcff"}, b"\0" * 300), ({"b": [1]}, b"")]


@pytest.mark.parametrize(
    "data",
    [
        b"hello from a compiler",
        pack({}).replace(b"dvcw", b"dvcx"),
        pack({"a": 1}).replace(b'{"a":1}', b"{'a':1}"),
        pack([1]),
        pack({}, b"x" * 101),
        pack({"a": 1}).replace(b'{"a":1}', b"[[[[[[["),
        b"dvcw" + b"\xff" * 12,
    ],
)
def test_garbage_is_refused(data):
    reader = FrameReader(longest_body=100)
    reader.feed(data)
    with pytest.raises(BadFrame):
        reader.take()
