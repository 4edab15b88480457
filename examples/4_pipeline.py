"""The pipeline by hand: partition, compile, serialize to bytes, link, execute over the C ABI."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

import torch
from torch import nn

import dovetail
from dovetail import PluginBackend, history
from dovetail.compiled import decode, encode
from dovetail.options import Options
from dovetail.pipeline import Compiler

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
    compiler = Compiler((accel, aten), Options(), history.begin(accel.name, aten.name))
    compiled = compiler.compile_graph(program.graph_module, "inference")
    print(f"1. partitioned into {len(compiled.every.segments)} segments, each compiled")
    for each in compiled.every.segments:
        ops = ", ".join(call.op.split(".")[1] for call in each.segment.calls)
        print(f"   {each.name} on {each.backend}, {len(each.blob.data)} bytes: {ops}")

    path = folder / "compiled"
    path.write_bytes(encode(compiled))
    print("2. written as one value, with the code of each")

    read = decode(path.read_bytes())
    print(f"3. read back, {'equal' if read == compiled else 'different'}, and linked")
    linked = compiler.link(read)

    weights = [p.detach() for p in program.state_dict.values()]
    (result,) = linked.run([*weights, x])
    torch.testing.assert_close(result, model(x).detach())
    ran = accel.opened.native.counters()
    print(f"4. executed: {ran['kernels']} kernels over the C ABI, same result as eager")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        main(Path(name))
