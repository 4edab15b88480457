"""Loading 400 MB of constants: time to load, to the first result, and private memory.

Beside ``torch.load`` of the same weights. ``trust`` maps the constants and checks nothing, as all
files were loaded before format 1.3; a plain file's constants are copied and hashed by its first
call, a signed one's while it is loaded. Each variant runs in a fresh process. Private memory is
what the process alone holds (Private_Dirty of /proc/self/smaps_rollup), after loading and after a
call.
Below it, how fast constants are hashed: by the runtime (``verify``, on all threads; format 1.2 had
one digest over all of them, which one thread makes) and by Python's hashlib.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import here, in_fresh_process

MEGABYTES = 400
LAYERS = 100
WIDTH = int((MEGABYTES * 1_000_000 / LAYERS / 4) ** 0.5)
KEY = bytes(range(32))
ARTIFACTS: dict[str, tuple[str, dict[str, Any]]] = {
    "trust": ("model.dvt", {"trust": True}),
    "plain": ("model.dvt", {}),
    "copy": ("model.dvt", {"trust": True, "copy": True}),
    "signed": ("signed.dvt", {}),
}
VERIFY = ("verify, 1.3", "verify, 1.2", "hashlib")


def write(folder: Path) -> None:
    import torch
    from torch import nn

    import dovetail
    from dovetail.backends.portable import PortableBackend

    model = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)]).eval()
    with torch.no_grad():
        artifact = dovetail.export(model, (torch.randn(1, WIDTH),), backend=PortableBackend)
    artifact.save(folder / "model.dvt")
    artifact.save(folder / "signed.dvt", key=KEY)
    write_older(folder)
    torch.save(model.state_dict(), folder / "model.pt")


def write_older(folder: Path) -> None:
    """The same file as format 1.2 had it: one digest over all constants."""
    from dovetail.file import container

    with (folder / "model.dvt").open("rb") as file:
        header = container.read_header(file)
        sections = []
        for entry in header.entries:
            file.seek(entry.offset)
            sections.append(container.Section(entry.kind, [file.read(entry.size)], entry.required))
    layout, ordered = container.lay_out(sections, header.features, version=(1, 2))
    container.write_file(folder / "older.dvt", container.chunks(layout, ordered))


def private_megabytes() -> float:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return sum(int(n) for n in re.findall(r"Private_Dirty:\s+(\d+)", text)) / 1e3


def measure_artifact(kind: str, folder: Path) -> list[float]:
    import array

    import dovetail
    from dovetail import _native
    from dovetail.runtime import loaded, trust  # noqa: F401  (the modules are not what is timed)

    file, options = ARTIFACTS[kind]
    x = memoryview(array.array("f", [1.0] * WIDTH)).cast("B").cast("f", (1, WIDTH))
    keys = [_native.public_key(KEY)]
    before, start = private_megabytes(), time.perf_counter()
    run = dovetail.load(folder / file, trusted_keys=keys, **options)
    load = time.perf_counter() - start
    held = private_megabytes() - before
    start = time.perf_counter()
    run(x)
    first = time.perf_counter() - start
    start = time.perf_counter()
    run(x)
    second = time.perf_counter() - start
    return [load * 1e3, first * 1e3, second * 1e3, held, private_megabytes() - before]


def measure_torch(kind: str, folder: Path) -> list[float]:
    import torch

    before, start = private_megabytes(), time.perf_counter()
    kept = torch.load(folder / "model.pt", mmap=kind.endswith("mmap"), weights_only=True)
    seconds = time.perf_counter() - start
    assert kept
    return [seconds * 1e3, private_megabytes() - before]


def measure_hash(kind: str, folder: Path) -> float:
    """Gigabytes a second."""
    from dovetail.runtime.loaded import CHECK_CONSTANTS, INSPECT, open_native

    path = folder / ("older.dvt" if kind.endswith("1.2") else "model.dvt")
    size = path.stat().st_size
    if kind == "hashlib":
        import hashlib

        data = path.read_bytes()
        start = time.perf_counter()
        hashlib.sha256(data).digest()
    else:
        start = time.perf_counter()
        open_native(str(path), flags=CHECK_CONSTANTS | INSPECT)
    return size / (time.perf_counter() - start) / 1e9


def measure(kind: str, folder: Path) -> object:
    if kind in ARTIFACTS:
        return measure_artifact(kind, folder)
    return measure_hash(kind, folder) if kind in VERIFY else measure_torch(kind, folder)


def main() -> None:
    if len(sys.argv) > 1:
        folder = Path(sys.argv[2])
        print(json.dumps(write(folder) if sys.argv[1] == "write" else measure(sys.argv[1], folder)))
        return
    with tempfile.TemporaryDirectory() as name:
        in_fresh_process(here(__file__), "write", name)
        print(f"{MEGABYTES} MB of constants (file in the page cache), best of 5, ms and private MB")
        print(f"  {'':<18}{'load':>9}{'first':>9}{'second':>9}{'loaded':>10}{'called':>10}")
        for kind in (*ARTIFACTS, "torch.load", "torch.load, mmap"):
            rows = [in_fresh_process(here(__file__), kind, name) for _ in range(5)]
            best = [min(column) for column in zip(*rows, strict=True)]
            places = (9, 9, 9, 10, 10) if kind in ARTIFACTS else (9, 28)
            cells = "".join(f"{cell:{place}.1f}" for cell, place in zip(best, places, strict=True))
            print(f"  {kind:<18}{cells}")
        print("hashing, GB/s, best of 3")
        for kind in VERIFY:
            print(
                f"  {kind:<18}"
                f"{max(in_fresh_process(here(__file__), kind, name) for _ in range(3)):9.2f}"
            )


if __name__ == "__main__":
    main()
