"""Convolutions of our own beside ONNX Runtime's, layer by layer and as whole networks.

Convolutions of a ResNet-18, a ResNet-50, a MobileNet-v2, a ConvNeXt and a U-Net, with a bias and
a ReLU, are exported and run beside ONNX Runtime's; with ``--whole``, networks beside its networks.
Layers take and give channels-last images of ours, as inside a network; ONNX Runtime takes row-major
ones and changes their layout itself, so that whole networks are the fair comparison. Each has a
process of its own, because threads that wait for work spin on a core that the other's need; they
are called from Python, in turns. The fastest of some rounds counts, by default in processor time,
which others on the machine disturb less. A ratio below 1 says that ours is faster.

    python benchmarks/conv.py [--threads N] [--rounds N] [--elapsed] [--only NETWORK ...] [--whole]
"""

from __future__ import annotations

import argparse
import math
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
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


WHOLE: dict[str, Callable[[], nn.Module]] = {"resnet18": resnet_18, "mobilenet": mobilenet}


RIVALS = ("ours", "onnxruntime")
CALLS = 4  # of a round: the first is not counted


def write(model: nn.Module, x: torch.Tensor, folder: Path) -> None:
    """What rivals read."""
    dovetail.export(model, (x,), backend="cpu").save(folder / "model.dvt")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(model, (x,), str(folder / "model.onnx"), dynamo=False)
    torch.save(x, folder / "x.pt")


def loaded(name: str, folder: Path) -> Callable[[], torch.Tensor]:
    """A rival's network, to call."""
    x = torch.load(folder / "x.pt")
    if name == "ours":
        run = dovetail.load(folder / "model.dvt")
        return lambda: torch.as_tensor(run(x))
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"), options)
    given = {session.get_inputs()[0].name: x.contiguous().numpy()}
    return lambda: torch.from_numpy(session.run(None, given)[0])


def serve(name: str, folder: Path, clock: Callable[[], float]) -> None:
    """Run a round for each line that is read, and answer with the seconds of its fastest call."""
    call = loaded(name, folder)
    torch.save(call(), folder / f"{name}.pt")
    print("ready", flush=True)
    for _ in sys.stdin:
        best = math.inf
        for n in range(CALLS):
            start = clock()
            call()
            best = min(best, clock() - start) if n else best
        print(best, flush=True)


class Rival:
    """One process."""

    def __init__(self, name: str, folder: Path) -> None:
        command = [sys.executable, *sys.argv, "--serve", name, str(folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == "ready", f"{name} does not run"

    def round(self) -> float:
        """Seconds of the fastest call of a round."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(file=self.process.stdin, flush=True)
        return float(self.process.stdout.readline())

    def end(self) -> None:
        """Have it leave."""
        self.process.communicate()


def fastest(model: nn.Module, x: torch.Tensor, rounds: int) -> dict[str, float]:
    """Seconds of each, measured in turns."""
    best = dict.fromkeys(RIVALS, math.inf)
    with tempfile.TemporaryDirectory() as named:
        folder = Path(named)
        write(model, x, folder)
        rivals = {name: Rival(name, folder) for name in RIVALS}
        first, second = (torch.load(folder / f"{name}.pt") for name in RIVALS)
        assert (first - second).abs().max() <= 1e-4 * second.abs().max(), "results differ"
        for _ in range(rounds):
            for name, rival in rivals.items():
                best[name] = min(best[name], rival.round())
        for rival in rivals.values():
            rival.end()
    return best


def cases(only: list[str], *, whole: bool) -> Iterator[tuple[str, nn.Module, torch.Tensor]]:
    """What is measured, by name."""
    for network in only:
        if whole:
            if network in WHOLE:
                yield network, WHOLE[network]().eval(), torch.randn(1, 3, 224, 224)
            continue
        for shape in NETWORKS[network]:
            yield f"{network} {shape}", *layer(shape)


def main() -> None:
    """Print a line a layer or network, then the geometric mean and the worst."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--elapsed", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--only", nargs="*", default=list(NETWORKS))
    parser.add_argument("--serve", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(arguments.threads)
    torch.set_grad_enabled(False)
    clock = time.perf_counter if arguments.elapsed else time.process_time
    if arguments.serve:
        name, folder = arguments.serve
        serve(name, Path(folder), clock)
        return
    ratios: dict[str, float] = {}
    for name, model, x in cases(arguments.only, whole=arguments.whole):
        best = fastest(model, x, arguments.rounds)
        ratios[name] = best["ours"] / best["onnxruntime"]
        texts = "  ".join(f"{each} {t * 1e6:9.1f} us" for each, t in best.items())
        print(f"{name:42}{texts}  {ratios[name]:.2f}", flush=True)
    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
    worst = max(ratios, key=lambda n: ratios[n])
    print(f"geometric mean of {len(ratios)} {mean:.3f}, worst {ratios[worst]:.2f}: {worst}")


if __name__ == "__main__":
    main()
