"""Loading 400 MB of constants: time and private memory, beside torch.load of the same weights.

Each variant runs in a fresh process. Private memory is what the process alone holds
(Private_Dirty of /proc/self/smaps_rollup), before and after loading.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
import time
from pathlib import Path

from common import here, in_fresh_process

MEGABYTES = 400
LAYERS = 100


def write(folder: Path) -> None:
    import torch
    from torch import nn

    import dovetail
    from dovetail.backends.portable import PortableBackend

    width = int((MEGABYTES * 1_000_000 / LAYERS / 4) ** 0.5)
    model = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(LAYERS)]).eval()
    with torch.no_grad():
        artifact = dovetail.export(model, (torch.randn(1, width),), backend=PortableBackend)
    artifact.save(folder / "model.dvt")
    torch.save(model.state_dict(), folder / "model.pt")


def private_megabytes() -> float:
    text = Path("/proc/self/smaps_rollup").read_text(encoding="utf-8")
    return sum(int(n) for n in re.findall(r"Private_Dirty:\s+(\d+)", text)) / 1e3


def measure(kind: str, path: str) -> None:
    if kind == "artifact":
        import dovetail

        _ = dovetail.load  # the module, not the file
        from dovetail import _native  # noqa: F401
        from dovetail.runtime import loaded, trust  # noqa: F401
    else:
        import torch
    before, start = private_megabytes(), time.perf_counter()
    if kind == "artifact":
        kept = dovetail.load(path)
    else:
        kept = torch.load(path, mmap=kind == "torch.load, mmap", weights_only=True)
    seconds = time.perf_counter() - start
    print(json.dumps([seconds * 1e3, private_megabytes() - before]))
    del kept


def main() -> None:
    if len(sys.argv) > 1:
        if sys.argv[1] == "write":
            write(Path(sys.argv[2]))
            print("null")
        else:
            measure(sys.argv[1], sys.argv[2])
        return
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process(here(__file__), "write", folder)
        size = (Path(folder) / "model.dvt").stat().st_size / 1e6
        print(f"loading {size:.0f} MB of constants (file in the page cache), best of 5")
        for kind in ("artifact", "torch.load", "torch.load, mmap"):
            file = "model.dvt" if kind == "artifact" else "model.pt"
            path = str(Path(folder) / file)
            rows = [in_fresh_process(here(__file__), kind, path) for _ in range(5)]
            ms, megabytes = min(r[0] for r in rows), max(r[1] for r in rows)
            print(f"  {kind:<20}{ms:9.2f} ms   {megabytes:8.1f} MB private")


if __name__ == "__main__":
    main()
