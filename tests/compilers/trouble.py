"""A backend with a real compiler of its own, whose troubles are those that vendors' have."""

import contextlib
import ctypes
import os
import subprocess
import sys
import time
from dataclasses import replace

from dovetail.backend import Backend, Blob, Support
from dovetail.ir import Input, OpCall, Ref, Segment, TensorDesc
from dovetail.ir.encode import segment_from_bytes, segment_to_bytes
from dovetail.ir.segment_verify import verify_segment
from dovetail.ir.verify import is_verifying, verify_stage

# Each operator of a segment brings its own trouble; ``how`` brings it to every segment.
BY_OPERATOR = {"aten.exp.default": "segfault", "aten.tanh.default": "hang"}
QUIET = ("aten.mul.Tensor", "aten.neg.default")


def segfault():
    ctypes.string_at(0)


def abort():
    print("assertion failed: tiles > 0", file=sys.stderr, flush=True)
    os.abort()


def leave():
    os._exit(3)


def exit_by_exception():
    sys.exit("no licence")


def hang():
    time.sleep(600)


def hang_in_c():
    """Without letting any other thread of this process run Python."""
    ctypes.PyDLL(None).sleep(600)


def hang_in_child():
    subprocess.run(["sleep", "600"], check=False)


def eat():
    held = []
    while True:
        held.append(bytearray(16 << 20))


def eat_in_child():
    code = "x = bytearray(1 << 30); x[::4096] = b'x' * len(x[::4096]); input()"
    subprocess.run([sys.executable, "-c", code], stdin=subprocess.PIPE, check=False)


def refuse():
    raise ValueError("no tile fits 3 rows")


def chat():
    print("compiling…")
    sys.stdout.flush()
    os.write(1, b"dvcw" + b"x" * 4096)
    os.write(2, b"warning: slow\n")
    assert sys.stdin.read() == ""


def flood():
    while True:
        os.write(1, b"y" * 65536)


def fork_and_return():
    """Both processes come back to the worker."""
    os.fork()


def fork_and_stay():
    """A child that keeps every pipe of its parent open, and does not go."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)


def fork_and_crash():
    fork_and_stay()
    segfault()


def scribble():
    """Write to every pipe in reach, the one of the answers among them."""
    for fd in range(3, 20):
        with contextlib.suppress(OSError):
            os.write(fd, b"not a frame, and longer than the start of one")


def close_everything():
    os.closerange(0, 100)


def refuse_to_verify():
    """Say in words whether it is to verify what it makes."""
    raise ValueError("to verify" if is_verifying() else "not to verify")


def go_wrong():
    """Make, by a fault of dovetail's own, what verification finds."""
    segment = segment_of_one()
    verify_stage("schedule", replace(segment, calls=()), verify_segment)


def nothing():
    pass


TROUBLES = {
    each.__name__: each
    for each in (
        segfault,
        abort,
        leave,
        exit_by_exception,
        hang,
        hang_in_c,
        hang_in_child,
        eat,
        eat_in_child,
        refuse,
        chat,
        flood,
        fork_and_return,
        fork_and_stay,
        fork_and_crash,
        scribble,
        close_everything,
        refuse_to_verify,
        go_wrong,
        nothing,
    )
}


class Trouble(Backend):
    """Compiles a segment to its own bytes, with the process that did so, and has its troubles."""

    name = "trouble"

    def __init__(self, how="", blob="portable", ahead="nothing"):
        self.how, self.blob, self.ahead = how, blob, ahead

    def supports(self, call):
        ok = call.op in (*QUIET, *BY_OPERATOR)
        return Support.yes() if ok else Support.no("not one of mine")

    def keeps_whole(self, call):
        return call.op in BY_OPERATOR

    def prepare(self):
        TROUBLES[self.ahead]()

    def compile(self, segment):
        how = [BY_OPERATOR[c.op] for c in segment.calls if c.op in BY_OPERATOR]
        for each in [self.how] if self.how else how:
            TROUBLES[each]()
        stamp = f"{os.getpid()} {time.monotonic_ns()}\n".encode()
        if self.blob == "live":
            return Blob(live=stamp + segment_to_bytes(segment))
        return Blob(stamp + segment_to_bytes(segment)) if self.blob == "portable" else 3

    def load(self, blob):
        from dovetail.runtime.interpreter import Interpreter

        return Interpreter(segment_from_bytes((blob.live or blob.data).partition(b"\n")[2]))


def maker(blob):
    """The process that made a blob of ``Trouble``."""
    return int(blob.data.split()[0])


def segment_of_one(op="aten.neg.default", size=4, names=("x", "y"), name="segment_0"):
    """One call of a unary operator."""
    desc = TensorDesc("float32", (size,), (1,))
    x = Input(names[0], desc)
    call = OpCall(names[1], op, (x.ref,), {}, desc)
    return Segment(name, (x,), (call,), (Ref(names[1], desc),))
