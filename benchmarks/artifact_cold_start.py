"""A fresh process with no torch: import, load and first result of a tiny MLP, in milliseconds."""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from common import here, in_fresh_process

CHILD = """
import time
start = time.perf_counter()
import dovetail
run = dovetail.load({path!r})
imported = time.perf_counter()
import array
x = memoryview(array.array("f", range(8))).cast("B").cast("f", (1, 8))
y = memoryview(run(x)).tolist()
end = time.perf_counter()
import sys, json
assert "torch" not in sys.modules and "numpy" not in sys.modules
print(json.dumps([(end - start) * 1e3, (imported - start) * 1e3]))
"""


def write(folder: Path) -> None:
    import torch
    from torch import nn

    import dovetail
    from dovetail.backends.portable import PortableBackend

    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)).eval()
    dovetail.export(model, (torch.randn(1, 8),), backend=PortableBackend).save(folder / "mlp.dvt")
    (folder / "child.py").write_text(CHILD.format(path=str(folder / "mlp.dvt")), encoding="utf-8")
    print("null")


def main() -> None:
    if len(sys.argv) > 1:
        write(Path(sys.argv[1]))
        return
    with tempfile.TemporaryDirectory() as folder:
        in_fresh_process(here(__file__), folder)
        child = str(Path(folder) / "child.py")
        in_fresh_process(child)  # writes bytecode
        rows = [in_fresh_process(child) for _ in range(11)]
    total = [row[0] for row in rows]
    loading = statistics.median(row[1] for row in rows)
    print("fresh process, no torch imported, ms from `import dovetail` to the first result")
    print(f"  median {statistics.median(total):.1f}, worst {max(total):.1f}; loading {loading:.1f}")


if __name__ == "__main__":
    main()
