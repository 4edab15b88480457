"""Convolutions of our own beside ONNX Runtime's, layer by layer and as whole networks.

Convolutions of a ResNet-18, a ResNet-50, a MobileNet-v2, a ConvNeXt and a U-Net, with a bias and
a ReLU, are exported and run beside ONNX Runtime's; with ``--whole``, networks beside its networks.
Layers take and give channels-last images of ours, as inside a network; ONNX Runtime takes row-major
ones and changes their layout itself, so that whole networks are the fair comparison. Each has a
process of its own, because threads that wait for work spin on a core that the other's need; they
are called from Python, in turns. The fastest of some rounds counts, by default in processor time,
which others on the machine disturb less. A ratio below 1 says that ours is faster.

    python benchmarks/conv.py [--threads N] [--rounds N] [--elapsed] [--only NETWORK ...] [--whole]

With ``--write FOLDER`` first and ``--read FOLDER`` then, nothing is compiled while others wait
for a quiet machine.
"""

from __future__ import annotations

import argparse
import math
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import dovetail

Layer = tuple[int, int, int, int, int, int]  # channels in and out, side, kernel, step, groups
RESNET_18: list[Layer] = [
    (3, 64, 224, 7, 2, 1),
    (64, 64, 56, 3, 1, 1),
    (64, 128, 56, 3, 2, 1),
    (64, 128, 56, 1, 2, 1),
    (128, 128, 28, 3, 1, 1),
    (128, 256, 28, 3, 2, 1),
    (128, 256, 28, 1, 2, 1),
    (256, 256, 14, 3, 1, 1),
    (256, 512, 14, 3, 2, 1),
    (512, 512, 7, 3, 1, 1),
]
RESNET_50: list[Layer] = [
    (64, 64, 56, 1, 1, 1),
    (64, 256, 56, 1, 1, 1),
    (256, 64, 56, 1, 1, 1),
    (256, 512, 56, 1, 2, 1),
    (512, 128, 28, 1, 1, 1),
    (128, 512, 28, 1, 1, 1),
    (1024, 256, 14, 1, 1, 1),
    (256, 1024, 14, 1, 1, 1),
    (2048, 512, 7, 1, 1, 1),
    (512, 2048, 7, 1, 1, 1),
]
MOBILENET: list[Layer] = [
    (3, 32, 224, 3, 2, 1),
    (32, 32, 112, 3, 1, 32),
    (16, 96, 112, 1, 1, 1),
    (96, 96, 112, 3, 2, 96),
    (96, 24, 56, 1, 1, 1),
    (144, 144, 56, 3, 1, 144),
    (192, 192, 28, 3, 1, 192),
    (384, 384, 14, 3, 1, 384),
    (384, 64, 14, 1, 1, 1),
    (576, 96, 14, 1, 1, 1),
    (960, 960, 7, 3, 1, 960),
    (320, 1280, 7, 1, 1, 1),
]
CONVNEXT: list[Layer] = [
    (3, 96, 224, 4, 4, 1),
    (96, 96, 56, 7, 1, 96),
    (96, 192, 56, 2, 2, 1),
    (192, 192, 28, 7, 1, 192),
    (384, 384, 14, 7, 1, 384),
    (768, 768, 7, 7, 1, 768),
]
U_NET: list[Layer] = [
    (3, 32, 128, 3, 1, 1),
    (32, 32, 128, 3, 1, 1),
    (32, 64, 64, 3, 1, 1),
    (64, 128, 32, 3, 1, 1),
    (256, 128, 32, 3, 1, 1),
    (128, 64, 64, 3, 1, 1),
    (64, 32, 128, 3, 1, 1),
]
NETWORKS = {
    "resnet18": RESNET_18,
    "resnet50": RESNET_50,
    "mobilenet": MOBILENET,
    "convnext": CONVNEXT,
    "unet": U_NET,
}


def layer(shape: Layer) -> tuple[nn.Module, torch.Tensor]:
    """A convolution with a ReLU, and an image."""
    inputs, outputs, side, kernel, step, groups = shape
    pad = 0 if kernel == step else kernel // 2
    made = nn.Conv2d(inputs, outputs, kernel, step, pad, groups=groups)
    image = torch.randn(1, inputs, side, side).to(memory_format=torch.channels_last)
    return nn.Sequential(made, nn.ReLU()).eval(), image


class Residual(nn.Module):
    """Two convolutions of 3 by 3, as a ResNet-18 has them."""

    def __init__(self, inputs: int, outputs: int, step: int) -> None:
        super().__init__()
        self.first = _normed(inputs, outputs, 3, step)
        self.second = _normed(outputs, outputs, 3)
        alike = step == 1 and inputs == outputs
        self.beside = nn.Identity() if alike else _normed(inputs, outputs, 1, step)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With a residual."""
        return torch.relu(self.second(torch.relu(self.first(x))) + self.beside(x))


class Inverted(nn.Module):
    """A wide convolution of each channel by itself between two of 1 by 1, as MobileNets have it."""

    def __init__(self, inputs: int, outputs: int, step: int, factor: int) -> None:
        super().__init__()
        wide = inputs * factor
        parts = [_normed(inputs, wide, 1), nn.ReLU6()] if factor > 1 else []
        parts += [_normed(wide, wide, 3, step, wide), nn.ReLU6(), _normed(wide, outputs, 1)]
        self.body, self.adds = nn.Sequential(*parts), step == 1 and inputs == outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With a residual where shapes agree."""
        return x + self.body(x) if self.adds else self.body(x)


def _normed(inputs: int, outputs: int, kernel: int, step: int = 1, groups: int = 1) -> nn.Module:
    made = nn.Conv2d(inputs, outputs, kernel, step, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(outputs))


def resnet_18() -> nn.Module:
    """As torchvision's."""
    blocks: list[nn.Module] = [_normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    inputs = 64
    for outputs, step in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Residual(inputs, outputs, step), Residual(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


def mobilenet() -> nn.Module:
    """As torchvision's MobileNet-v2."""
    blocks: list[nn.Module] = [_normed(3, 32, 3, 2), nn.ReLU6()]
    inputs = 32
    for factor, outputs, count, step in (
        (1, 16, 1, 1),
        (6, 24, 2, 2),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ):
        for n in range(count):
            blocks.append(Inverted(inputs, outputs, step if n == 0 else 1, factor))
            inputs = outputs
    blocks += [_normed(320, 1280, 1), nn.ReLU6(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*blocks, nn.Linear(1280, 1000))


class ChannelNorm(nn.LayerNorm):
    """Of each pixel's channels."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of an image."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class ConvNeXtBlock(nn.Module):
    """A wide convolution of each channel by itself, then two layers of each pixel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.spread = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.scale = nn.Parameter(torch.full((width,), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """With a residual."""
        inner = self.scale * self.mlp(self.norm(self.spread(x).permute(0, 2, 3, 1)))
        return x + inner.permute(0, 3, 1, 2)


def convnext() -> nn.Module:
    """As torchvision's smallest."""
    blocks: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), ChannelNorm(96)]
    inputs = 96
    for width, count in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != inputs:
            blocks += [ChannelNorm(inputs), nn.Conv2d(inputs, width, 2, 2)]
        blocks += [ConvNeXtBlock(width) for _ in range(count)]
        inputs = width
    blocks += [nn.AdaptiveAvgPool2d(1), ChannelNorm(768), nn.Flatten(), nn.Linear(768, 1000)]
    return nn.Sequential(*blocks)


class UNet(nn.Module):
    """Down to a sixteenth and back, by transposed convolutions, with what was on the way."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        wide = [width << n for n in range(5)]
        self.down = nn.ModuleList(_twice(a, b) for a, b in zip([3, *wide[:-1]], wide, strict=True))
        back = wide[::-1]
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairwise(back))
        self.merge = nn.ModuleList(_twice(2 * b, b) for b in back[1:])
        self.last = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A score a class, for each pixel."""
        passed: list[torch.Tensor] = []
        for n, layer_ in enumerate(self.down):
            x = layer_(nn.functional.max_pool2d(x, 2) if n else x)
            passed.append(x)
        for up, merge, other in zip(self.up, self.merge, passed[-2::-1], strict=True):
            x = merge(torch.cat([other, up(x)], 1))
        return self.last(x)


def _twice(inputs: int, outputs: int) -> nn.Module:
    made = (_normed(inputs, outputs, 3), nn.ReLU(), _normed(outputs, outputs, 3), nn.ReLU())
    return nn.Sequential(*made)


WHOLE: dict[str, Callable[[], nn.Module]] = {
    "resnet18": resnet_18,
    "mobilenet": mobilenet,
    "convnext": convnext,
    "unet": UNet,
}


RIVALS = ("ours", "onnxruntime")
SETTLE, MEASURE = 0.05, 0.03  # seconds of a round: others' threads spin on after their calls
Case = tuple[str, nn.Module, torch.Tensor]


def write(model: nn.Module, x: torch.Tensor, folder: Path) -> None:
    """What rivals read; ONNX Runtime's network is kept where there is one."""
    folder.mkdir(parents=True, exist_ok=True)
    dovetail.export(model, (x,), backend="cpu").save(folder / "model.dvt")
    if not (folder / "model.onnx").exists():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            torch.onnx.export(model, (x,), str(folder / "model.onnx"), dynamo=False)
    torch.save(x, folder / "x.pt")


def loaded(name: str, folder: Path) -> Callable[[], torch.Tensor]:
    """A rival's network, to call."""
    x = torch.load(folder / "x.pt")
    if name == "ours":
        run = dovetail.load(folder / "model.dvt", trust=True)
        return lambda: torch.as_tensor(run(x))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    given = {session.get_inputs()[0].name: x.contiguous().numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def serve(name: str, clock: Callable[[], float]) -> None:
    """Load a network when its folder is read, and run a round for each empty line.

    A round is answered with the seconds of its fastest call.
    """
    call: Callable[[], torch.Tensor] | None = None
    for line in sys.stdin:
        if line.strip():
            folder, call = Path(line.strip()), None
            call = loaded(name, folder)
            torch.save(call(), folder / f"{name}.pt")
            print("ready", flush=True)
            continue
        assert call is not None
        _best(call, SETTLE, clock)
        print(_best(call, MEASURE, clock), flush=True)


def _best(call: Callable[[], torch.Tensor], seconds: float, clock: Callable[[], float]) -> float:
    """The fastest of the calls that so many seconds have time for."""
    best, end = math.inf, time.perf_counter() + seconds
    while time.perf_counter() < end or best == math.inf:
        start = clock()
        call()
        best = min(best, clock() - start)
    return best


class Rival:
    """One process."""

    def __init__(self, name: str) -> None:
        command, pipe = [sys.executable, *sys.argv, "--serve", name], subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)

    def ask(self, line: str) -> str:
        """Its answer."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return self.process.stdout.readline().strip()

    def load(self, folder: Path) -> None:
        """Have it take another network."""
        assert self.ask(str(folder)) == "ready", f"{folder} does not run"

    def round(self) -> float:
        """Seconds of the fastest call of a round."""
        return float(self.ask(""))

    def end(self) -> None:
        """Have it leave."""
        self.process.communicate()


def fastest(rivals: dict[str, Rival], folder: Path, rounds: int) -> dict[str, float]:
    """Seconds of each, measured in turns."""
    best = dict.fromkeys(rivals, math.inf)
    for rival in rivals.values():
        rival.load(folder)
    first, second = (torch.load(folder / f"{name}.pt") for name in rivals)
    assert (first - second).abs().max() <= 1e-4 * second.abs().max(), "results differ"
    for _ in range(rounds):
        for name, rival in rivals.items():
            best[name] = min(best[name], rival.round())
    return best


def cases(only: list[str], *, whole: bool) -> Iterator[tuple[str, Callable[[], Case]]]:
    """What is measured, by name."""
    for network in only:
        if whole:
            if network in WHOLE:
                yield network, partial(_whole, network)
            continue
        for shape in NETWORKS[network]:
            yield f"{network} {shape}", partial(_layer, f"{network} {shape}", shape)


def _whole(network: str) -> Case:
    return network, WHOLE[network]().eval(), torch.randn(1, 3, 224, 224)


def _layer(name: str, shape: Layer) -> Case:
    return name, *layer(shape)


def place(root: Path, name: str) -> Path:
    """The folder of a case."""
    return root / "_".join(re.findall(r"\w+", name))


def measure(arguments: argparse.Namespace, root: Path) -> None:
    """Print a line a layer or network, then the geometric mean and the worst."""
    rivals, ratios = {name: Rival(name) for name in RIVALS}, dict[str, float]()
    for name, _ in cases(arguments.only, whole=arguments.whole):
        best = fastest(rivals, place(root, name), arguments.rounds)
        ratios[name] = best["ours"] / best["onnxruntime"]
        texts = "  ".join(f"{each} {t * 1e6:9.1f} us" for each, t in best.items())
        print(f"{name:42}{texts}  {ratios[name]:.2f}", flush=True)
    for rival in rivals.values():
        rival.end()
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = max(ratios, key=lambda n: ratios[n])
    print(f"geometric mean of {len(ratios)} {mean:.3f}, worst {ratios[worst]:.2f}: {worst}")


def main() -> None:
    """Write what rivals read, measure, or both."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--elapsed", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS))
    parser.add_argument("--write", type=Path, help="write what rivals read to this folder, and end")
    parser.add_argument("--read", type=Path, help="measure what such a folder holds")
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    if arguments.serve:
        serve(arguments.serve, time.perf_counter if arguments.elapsed else time.process_time)
        return
    with tempfile.TemporaryDirectory() as named:
        root = arguments.write or arguments.read or Path(named)
        if arguments.read is None:
            for name, make in cases(arguments.only, whole=arguments.whole):
                write(*make()[1:], place(root, name))
        if arguments.write is None:
            measure(arguments, root)


if __name__ == "__main__":
    main()
