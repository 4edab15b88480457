"""A function on a GPU: the kernel it becomes, how blocks of threads do it, and Triton's text.

All but the last step runs without a GPU: kernels are made for a machine that need not be there.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.backends.cuda.code import schedule_blocks
from dovetail.codegen.triton.render import render
from dovetail.ir.kernel_text import print_kernel
from dovetail.ir.target import TARGETS
from dovetail.report.stages import cpu_segments, kernels_of
from dovetail.schedule.text import print_schedule

H200 = TARGETS["sm_90"]


class Norm(nn.Module):
    """RMS norm of rows of 4,096 bfloat16."""

    def forward(self, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w


def main() -> None:
    model = Norm().eval()
    x, w = torch.empty(8192, 4096, dtype=torch.bfloat16), torch.empty(4096, dtype=torch.bfloat16)
    (segment,) = cpu_segments(model, (x, w))
    (kernel,) = kernels_of(segment, H200)
    print(f"1. the kernel, whoever runs it:\n{print_kernel(kernel)}")
    kernel, schedule = schedule_blocks(kernel, H200)
    print(f"2. how a block of threads of an H200 does it:\n{print_schedule(schedule)}")
    print(f"3. as Triton's text:\n{render(kernel, schedule)}")
    if not torch.cuda.is_available():
        print("4. no CUDA device: nothing to run")
        return
    run, x, w = torch.compile(model, backend="cuda"), torch.randn_like(x).cuda(), w.fill_(1).cuda()
    with torch.no_grad():
        off = (run(x, w).double() - model(x.double(), w.double())).norm() / x.double().norm()
    print(f"4. run, with an error of {off:.0e} of the norm")


if __name__ == "__main__":
    main()
