"""Kernels through both readers, and through all that runs them: they agree, or it is a finding.

Each seed makes a kernel, changes it, and changes its bytes. C and Python accept the same bytes.
What they accept runs interpreted and, where llvmlite is installed, as code that was made of it as
for an unsigned file: both give the same results, or the same class of error. Where a kernel's
results do not depend on rounding or on the order of its points they are the oracle's too. Buffers
lie between others' memory, which nothing may touch.

    python -m tests.native.kernel_fuzz COUNT [SEED [JOBS]]

Needs NumPy and the C extension; no torch.
"""

import collections
import functools
import math
import multiprocessing
import sys
import warnings

import numpy as np

from dovetail import _native, errors
from dovetail.codegen.llvm.guard import is_open
from dovetail.file import container
from dovetail.file.encode import code_section
from dovetail.file.kernel_decode import decode_kernels
from dovetail.file.kernel_encode import encode_kernels
from dovetail.file.processors import PROCESSORS, target_here
from dovetail.ir.dtypes import FLOATS, INTEGERS
from dovetail.ir.kernel import Apply, Axis, Load, Reduce, Scan, Store
from dovetail.ir.kernel_call import call_inputs, call_outputs, call_sizes
from dovetail.ir.ops import REDUCTIONS
from dovetail.ir.program import Buffer, Copy, KernelCall, Program
from dovetail.ir.size import evaluate
from dovetail.ir.tensor import TensorDesc
from dovetail.testing.kernel_reference import _KernelRun
from tests.artifact.program_files import program_bytes
from tests.native.kernel_changes import changed_bytes, changed_kernel, odd_number
from tests.native.random_kernels import RandomKernel

PAD = 64  # elements of others' memory on either side of a buffer
MOST_WORK = 1 << 17  # points of a kernel that is run
LONGEST = 1 << 12  # elements of a buffer
INSPECT = 4
# Operations that leave rounding no choice, and that NumPy has as they are here.
EXACT = {
    *("neg", "abs", "not", "isnan", "floor", "ceil", "trunc", "cast", "add", "sub", "mul"),
    *("floordiv", "floormod", "min", "max", "eq", "ne", "lt", "le", "gt", "ge", "and", "or"),
    *("xor", "where", "check", "check_index", "check_bounds", "check_divisor"),
}
WAYS = {
    **dict.fromkeys(("check", "check_index"), "index"),
    **dict.fromkeys(("floordiv", "floormod", "div_int"), "divide"),
    "check_bounds": "bounds",
    "check_divisor": "divisor",
}


class Finding(AssertionError):
    """The two sides disagree."""


# ---- reading -----------------------------------------------------------------------------------


def accepts(read, *args):
    """Whether a reader takes it; anything but one of our errors is a finding."""
    try:
        read(*args)
    except errors.DovetailError:
        return False
    return True


@functools.cache
def _relu():
    text = Buffer("x", "input", TensorDesc("float32", (4,), (1,)))
    out = Buffer("y", "output", TensorDesc("float32", (4,), (1,)))
    return Program("p", (text, out), (KernelCall("relu@1", ("y",), ("x",), ()),), ("y",))


def agree_on(section):
    """Whether both readers accept a section; a Finding where they differ."""
    data = program_bytes(_relu(), [container.section(container.KERNEL_IR, section)])
    in_c = accepts(_native.Artifact, data, INSPECT)
    in_python = accepts(decode_kernels, section)
    if in_c != in_python:
        raise Finding(f"C {in_c}, Python {in_python}: {section.hex()}")
    return in_c


# ---- running -----------------------------------------------------------------------------------


class Case:
    """A kernel as read from a file, and what it is called with."""

    def __init__(self, section, attributes, lengths, random):
        (self.kernel,) = decode_kernels(section)
        self.section = section
        sizes = call_sizes(self.kernel)
        more = [odd_number(random) for _ in range(len(sizes) - len(attributes))]
        self.attributes = (*attributes, *more)[: len(sizes)]
        self.values = {size.args[0]: n for size, n in zip(sizes, self.attributes, strict=True)}
        self.arrays = {}
        for number, b in enumerate(self.kernel.buffers):
            length = lengths[number] if number < len(lengths) else int(random.integers(40))
            self.arrays[b.name] = data_of(b.dtype, min(length, LONGEST) + 2 * PAD, random)

    def may_run(self):
        """Whether it takes a moment only, and NumPy has its types."""
        work = self._points(self.kernel.axes)
        for loop in self.kernel.loops:
            work += self._points((*self.kernel.axes, *loop.axes))
        return work < MOST_WORK and all(b.dtype != "bfloat16" for b in self.kernel.buffers)

    def _points(self, axes):
        return math.prod(max(evaluate(axis.extent, self.values), 0) for axis in axes)

    def program(self):
        """One call on views into the middle of larger buffers, which come back as a whole."""
        buffers, before, after, results = [], [], [], []
        for b in self.kernel.buffers:
            length = len(self.arrays[b.name])
            whole = TensorDesc(b.dtype, (length,), (1,))
            part = TensorDesc(b.dtype, (length - 2 * PAD,), (1,))
            buffers.append(Buffer(f"{b.name}_given", "input", whole))
            owner = f"{b.name}_given"
            if b.role != "in":
                owner = f"{b.name}_used"
                buffers.append(Buffer(owner, "temporary", whole))
                buffers.append(Buffer(f"{b.name}_back", "output", whole))
                before.append(Copy(owner, f"{b.name}_given"))
                after.append(Copy(f"{b.name}_back", owner))
                results.append(f"{b.name}_back")
            buffers.append(Buffer(b.name, "view", part, owner, PAD))
        outputs = tuple(b.name for b in call_outputs(self.kernel))
        inputs = tuple(b.name for b in call_inputs(self.kernel))
        call = KernelCall("kernel@1", outputs, inputs, self.attributes)
        code = (*before, call, *after)
        return Program("p", tuple(buffers), code, tuple(results))

    def artifact(self):
        described = container.section(container.KERNEL_IR, self.section)
        generated = {"kernel@1": self.kernel.name}
        return _native.Artifact(program_bytes(self.program(), [described], generated), 0, b"")

    def outcome(self, artifact):
        """Results by buffer, or the class of the error."""
        given = [self.arrays[b.name] for b in self.kernel.buffers]
        try:
            results = artifact(*given)
        except errors.DovetailError as error:
            return type(error)
        named = [b.name for b in self.kernel.buffers if b.role != "in"]
        return {n: np.asarray(r) for n, r in zip(named, results, strict=True)}


def data_of(dtype, length, random):
    """Small numbers, mostly not negative: places to gather from."""
    dtype = "int16" if dtype == "bfloat16" else dtype  # NumPy has none: such a case is not run
    found = random.integers(-2 if random.integers(4) == 0 else 0, 20, length)
    return np.abs(found).astype(dtype) if dtype in ("uint8", "bool") else found.astype(dtype)


class SmallKernel(RandomKernel):
    """A random kernel that walks few points."""

    def __init__(self, seed):
        self.lengths = {}
        super().__init__(seed)

    def axis(self, name):
        made = super().axis(name)
        loop = name.partition("_")[0]  # the kernel's own axes are i0, i1, …, a loop's j0_0, j0_1, …
        around = [n for other, n in self.lengths.items() if other[0] == "i" or loop in other]
        length = evaluate(made.extent, self.sizes)
        if length * math.prod(around) > LONGEST:
            made, length = Axis(name, 1), 1
        self.lengths[name] = length
        return made


def made_case(seed):
    """The section of a seed's kernel, and the case of it."""
    made = SmallKernel(seed)
    random = made.random
    kernel = changed_kernel(made.kernel, random, int(random.integers(5)))
    sizes = [evaluate(size, made.sizes) for size in call_sizes(kernel)]
    if sizes and random.integers(4) == 0:
        sizes[random.integers(len(sizes))] = odd_number(random)
    lengths = [len(made.arrays[b.name]) for b in kernel.buffers]
    if random.integers(4) == 0:
        lengths[random.integers(len(lengths))] = int(random.integers(20))
    return encode_kernels([kernel]), sizes, lengths, random


# ---- comparing ---------------------------------------------------------------------------------


class Unordered(Exception):
    """What a kernel gives depends on the order of its points."""


class Watching(_KernelRun):
    """The oracle, which stops where the order of points would matter."""

    stored: set

    def shape(self, loop):
        """The points of a loop, with all dimensions of the kernel."""
        walked = {a.name for a in (*self.kernel.axes, *loop.axes)}
        return [self.extent[n] if n in walked else 1 for n in self.order]

    def step(self, i, loop):
        if 0 not in self.shape(loop) or isinstance(i, Reduce):
            super().step(i, loop)
        elif i.name:  # nothing is computed for a loop of no points
            self.values[i.name] = self.np.zeros(self.shape(loop), i.dtype)

    def value(self, i):
        if isinstance(i, Load) and i.buffer in self.written:
            raise Unordered
        return super().value(i)

    def store(self, i, loop):
        if i.buffer in self.stored:
            raise Unordered
        self.stored.add(i.buffer)
        places = self.np.broadcast_to(self.place(i.index), self.shape(loop))
        if len(self.np.unique(places)) != places.size:
            raise Unordered
        super().store(i, loop)


def oracle(case):
    """Results by buffer; None where there is no single answer."""
    lengths = [evaluate(axis.extent, case.values) for axis in case.kernel.all_axes()]
    if not is_exact(case.kernel) or max(lengths, default=0) > MOST_WORK:
        return None
    arrays = {n: a.copy() for n, a in case.arrays.items()}
    parts = {n: a[PAD : len(a) - PAD] for n, a in arrays.items()}
    run = Watching(case.kernel, parts, case.values)
    run.stored = set()
    run.written = {b.name for b in case.kernel.buffers if b.role != "in"}
    try:
        run.run()
    except Unordered:
        return None
    return {b.name: arrays[b.name] for b in case.kernel.buffers if b.role != "in"}


def is_exact(kernel):
    """Whether rounding and the order of a fold leave no choice."""
    types = {i.name: i.dtype for i in kernel.instructions()}
    for i in kernel.instructions():
        given = [types[name] for name in getattr(i, "args", ())]
        if isinstance(i, Apply) and i.op not in EXACT:
            return False
        if isinstance(i, Apply) and i.op == "cast" and given[0] in FLOATS and i.dtype not in FLOATS:
            return False
        if isinstance(i, Reduce | Scan):
            folds_other = REDUCTIONS[i.op].arity == 1 and given[0] != i.dtype
            if folds_other or (i.op in ("sum", "prod") and i.dtype not in INTEGERS):
                return False
    return all(b.dtype != "float16" for b in kernel.buffers) and stores_fit(kernel, types)


def stores_fit(kernel, types):
    """Whether no store turns a float into an integer."""
    dtypes = {b.name: b.dtype for b in kernel.buffers}
    stores = [i for i in kernel.instructions() if not i.name]
    return all(types[s.value] not in FLOATS or dtypes[s.buffer] in FLOATS for s in stores)


def compare(case, got, wanted, sides):
    """A Finding unless two outcomes are one."""
    if isinstance(wanted, type) or isinstance(got, type):
        both = isinstance(wanted, type) and isinstance(got, type)
        if got is not wanted and not (both and len(ways_to_fail(case.kernel)) > 1):
            raise Finding(f"{sides}: {got} and {wanted}: {case.section.hex()} {case.attributes}")
        return
    for name, array in wanted.items():
        if not np.array_equal(array, got[name], equal_nan=array.dtype.kind == "f"):
            raise Finding(f"{sides}: {name} differs: {case.section.hex()} {case.attributes}")


def ways_to_fail(kernel):
    """The errors that a kernel's data can bring about; each may be the one that is told."""
    ways = {WAYS.get(i.op) for i in kernel.instructions() if isinstance(i, Apply)}
    if any(isinstance(i, Load | Store) and is_open(i) for i in kernel.instructions()):
        ways.add("outside")
    return ways - {None}


def check_pads(case, got):
    """Nothing beside a buffer was touched."""
    for name, array in got.items():
        before = case.arrays[name]
        for part in (slice(None, PAD), slice(len(before) - PAD, None)):
            if not np.array_equal(array[part], before[part]):
                raise Finding(f"wrote beside {name}: {case.section.hex()} {case.attributes}")


def run_case(case, code, told):
    """Run a case all ways there are; count what happened."""
    interpreted = case.outcome(case.artifact())
    told["failed" if isinstance(interpreted, type) else "gave results"] += 1
    if not isinstance(interpreted, type):
        check_pads(case, interpreted)
        expected = oracle(case)
        if expected is not None:
            told["as the oracle"] += 1
            compare(case, interpreted, expected, "interpreted and oracle")
    if code is None:
        return
    artifact = case.artifact()
    artifact.use_code(code)
    if artifact.code() != 1:
        raise Finding(f"not compiled: {case.section.hex()}")
    compiled = case.outcome(artifact)
    told["compiled"] += 1
    if not isinstance(compiled, type):
        check_pads(case, compiled)
    failed = isinstance(interpreted, type)
    if not reads_what_it_writes(case.kernel) if failed else oracle(case) is not None:
        compare(case, compiled, interpreted, "compiled and interpreted")


def reads_what_it_writes(kernel):
    """Whether the order of its points, which is free, may decide what a kernel's data are."""
    written = {b.name for b in kernel.buffers if b.role != "in"}
    return any(isinstance(i, Load) and i.buffer in written for i in kernel.instructions())


# ---- many --------------------------------------------------------------------------------------


def read_seed(seed, told):
    """The cases of a seed that can be run; its changed bytes go through both readers."""
    section, sizes, lengths, random = made_case(seed)
    sections = [section, *(changed_bytes(section, random) for _ in range(4))]
    for data in sections:
        told["sections"] += 1
        if not agree_on(data):
            continue
        told["accepted"] += 1
        case = Case(data, sizes, lengths, random)
        if case.may_run():
            yield case


def compiled_code(case, target=None):
    """A code section for a case's kernel, as for an unsigned file; None without llvmlite."""
    from dovetail.backends.cpu.code import scheduled
    from dovetail.codegen.llvm.module import generate
    from dovetail.codegen.llvm.target import assemble, missing

    if missing():
        return None
    target = target or target_here()
    try:
        code = generate(scheduled({"k0": case.kernel}, target), target, guarded=True)
    except (
        errors.SizeError
    ):  # so many points that no number holds them: interpreted, see regenerate()
        return None
    assemble.cache_clear()
    return code_section([(PROCESSORS[target.name], code)]).pieces[0]


def run_seeds(seeds, compiles=True, target=None):
    """Counts of what happened; a Finding names its seed."""
    told = collections.Counter()
    for seed in seeds:
        told["kernels"] += 1
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                for case in read_seed(seed, told):
                    run_case(case, compiled_code(case, target) if compiles else None, told)
        except Exception as error:
            raise Finding(f"seed {seed}: {error!r}") from error
    return told


def main(count, seed=1, jobs=1):
    """Seeds from ``seed`` on, in several processes."""
    step = 500
    parts = [range(at, min(at + step, seed + count)) for at in range(seed, seed + count, step)]
    total = collections.Counter()
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        for told in pool.imap_unordered(run_seeds, parts):
            total += told
    print(", ".join(f"{number} {what}" for what, number in total.items()), "no finding", sep="; ")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
