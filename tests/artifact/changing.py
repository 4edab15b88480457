"""Files that change while they run: a process that loads and runs them, and one that spoils them.

``python -m tests.artifact.changing`` is the runner: it reads lines ``MODE NUMBER PATH`` and, for
each, loads the file, runs it until another line comes, and says what it saw.
"""

import os
import random
import select
import struct
import subprocess
import sys
import time

import numpy as np

from tests.artifact.files import ROOT, file_bytes

ELEMENTS = 600_000  # 2.4 MB of constants: too many to be copied where they may be mapped
KEY = bytes(range(32))
OTHER = -7.0  # the weight of a file that takes another's place
MODES = {"plain": {}, "signed": {}, "trust": {"trust": True}, "copy": {"trust": True, "copy": True}}
TEXT = f"""\
program @scale
input %x: float32[{ELEMENTS}]
constant %w: float32[{ELEMENTS}]
output %y: float32[{ELEMENTS}]
kernel %y = mul@1(%x, %w)
return %y
"""


def weights(number):
    return np.full(ELEMENTS, number, np.float32)


def write(path, number, *, signed=False, version=None):
    """A file whose result is ``number`` for ones; old enough that a change shows in its time."""
    options = {} if version is None else {"version": version}
    path.write_bytes(file_bytes(TEXT, {"w": weights(number).tobytes()}, **options))
    if signed:
        from dovetail.artifact.sign import sign_file

        sign_file(path, KEY)
    age(path)


def age(path):
    second = time.time_ns() - 1_000_000_000
    os.utime(path, ns=(second, second))


# ---- the runner -----------------------------------------------------------------------------


def read_line():
    """A line of the standard input and no byte more, so that ``select`` sees the next one."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return line.decode()


def outcome(number, results):
    """What a run gave: the file as it was written, as another was written over it, or neither."""
    if not (results == results[0]).all():
        return "wrong"
    return {number: "right", OTHER: "other"}.get(results[0], "wrong")


def run_until_told(loaded, number):
    """What all runs gave, or the first error; "wrong" where they were not all the same."""
    from dovetail.errors import DovetailError

    x, first, told = np.ones(ELEMENTS, np.float32), None, False
    while not told:
        told = bool(select.select([0], [], [], 0)[0])  # and once more after that
        try:
            seen = outcome(number, loaded(x))
        except DovetailError as error:
            return type(error).__name__
        first = first or seen
        if seen != first:
            return "wrong"
    return first


def runner():
    import dovetail
    from dovetail import _native
    from dovetail.errors import DovetailError

    for line in iter(read_line, ""):
        mode, number, path = line.split()
        try:
            keys = [_native.public_key(KEY)] if mode == "signed" else []
            loaded = dovetail.load(path, trusted_keys=keys, **MODES[mode])
        except DovetailError as error:
            print(type(error).__name__, flush=True)
            read_line()
            continue
        print(run_until_told(loaded, float(number)), flush=True)
        read_line()


# ---- the one that spoils --------------------------------------------------------------------


def overwrite(path, rng):
    """Other weights, from somewhere on."""
    start = rng.randrange(path.stat().st_size - 4)
    with path.open("r+b") as file:
        file.seek(start)
        file.write(struct.pack("<f", -8.0) * ((path.stat().st_size - start) // 4))


def overwrite_all(path, _):
    """Another file's bytes, written into this one."""
    data = file_bytes(TEXT, {"w": weights(OTHER).tobytes()})
    with path.open("r+b") as file:
        file.write(data)


def truncate(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def empty(path, _):
    path.write_bytes(b"")


def grow_again(path, rng):
    size = path.stat().st_size
    os.truncate(path, rng.randrange(size))
    os.truncate(path, size)


def delete(path, _):
    path.unlink()


def replace(path, _):
    write(path.with_suffix(".new"), OTHER)
    path.with_suffix(".new").rename(path)


WAYS = (overwrite, overwrite_all, truncate, empty, grow_again, delete, replace)
REPORTED = ("InvalidArtifact", "ArtifactChanged", "ArtifactNotFound")


def may_see(mode, way):
    """What a runner may see of a file spoilt this way at any moment; "wrong" is never among it."""
    seen = set(REPORTED)
    if mode != "trust" or way in (delete, replace):
        seen.add("right")  # only mapped constants feel a change of the file itself
    if way in (overwrite_all, replace):
        seen.add("other")  # it came before the file was loaded
    return seen


class Runner:
    """A process that runs files, spoken to line by line."""

    def __enter__(self):
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.artifact.changing"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        return self

    def __exit__(self, *unused):
        self.process.stdin.close()
        assert self.process.wait(timeout=60) == 0

    def say(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def hear(self):
        heard = self.process.stdout.readline().strip()
        assert heard, f"the runner ended with status {self.process.wait()}"
        return heard

    def round(self, path, mode, number, spoil, moment):
        """Load and run a file, spoil it after ``moment`` seconds; what the runner saw."""
        self.say(f"{mode} {number} {path}")
        time.sleep(moment)
        spoil()
        time.sleep(0.002)
        self.say("stop")
        return self.hear()


def rounds(folder, count, seed=0):
    """(mode, way, what was seen) of ``count`` files spoilt at random moments."""
    rng = random.Random(seed)
    with Runner() as process:
        write(folder / "first.dvt", 1)  # the imports of the runner are no part of a moment
        process.round(folder / "first.dvt", "plain", 1, lambda: None, 0)
        for number in range(count):
            mode, way = list(MODES)[number % len(MODES)], WAYS[number % len(WAYS)]
            path = folder / f"{number}.dvt"
            write(path, number + 1, signed=mode == "signed")
            moment = rng.uniform(0, 0.03)
            seen = process.round(path, mode, number + 1, lambda w=way, p=path: w(p, rng), moment)
            path.unlink(missing_ok=True)
            yield mode, way, seen


if __name__ == "__main__":
    runner()
