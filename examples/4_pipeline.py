"""The pipeline by hand: partition, compile, serialize to bytes, load, execute over the C ABI."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

import dovetail
from dovetail.backends.plugin import PluginBackend
from dovetail.place import place
from dovetail.runtime.runner import runner_for

HERE = Path(__file__).parent


class Model(nn.Module):
    """Two layers; between them an operation that the accelerator does not have."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.down(torch.sin(torch.relu(self.up(x)))), -1)


def build(folder: Path) -> type[PluginBackend]:
    """The simulated accelerator of examples/accel_c, from its C sources."""
    library = folder / "libaccel_c.so"
    subprocess.run(["make", "-s", "-C", HERE / "accel_c", f"OUTPUT={library}"], check=True)
    return dovetail.load_plugin(library)


def main(folder: Path) -> None:
    torch.manual_seed(0)
    accel, aten = build(folder)(), dovetail.get_backend("aten")
    model, x = Model().eval(), torch.randn(4, 16)

    program = torch.export.export(model, (x,)).run_decompositions()
    placement = place(program.graph_module, [accel, aten])
    print(f"1. partitioned into {len(placement.segments)} segments")
    for placed in placement.segments:
        ops = ", ".join(call.op.split(".")[1] for call in placed.segment.calls)
        print(f"   {placed.segment.name} on {placed.backends[0].name}: {ops}")

    print("2. compiled and written")
    for placed in placement.segments:
        blob = placed.backends[0].compile(placed.segment)
        path = folder / placed.segment.name
        print(f"   {placed.segment.name}: {path.write_bytes(blob.data)} bytes")

    print("3. loaded from those bytes")
    loaded = []
    for placed in placement.segments:
        backend = placed.backends[0]
        blob = dovetail.Blob((folder / placed.segment.name).read_bytes())
        loaded.append((backend.name, backend.load(blob)))

    weights = [p.detach() for p in program.state_dict.values()]
    (result,) = runner_for(placement, loaded)([*weights, x])
    torch.testing.assert_close(result, model(x).detach())
    ran = accel.opened.native.counters()
    print(f"4. executed: {ran['kernels']} kernels over the C ABI, same result as eager")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
