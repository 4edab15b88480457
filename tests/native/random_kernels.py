"""Random kernels, whose results do not depend on the order of rounding, and their buffers."""

import numpy as np

from dovetail.ir.kernel import (
    Apply,
    Axis,
    Const,
    Index,
    Kernel,
    KernelBuffer,
    Load,
    Loop,
    Position,
    Reduce,
    Scan,
    Store,
)
from dovetail.ir.size import Size, evaluate

EXTENTS = (1, 2, 3, 5, 8, 33, 600)
BINARY = ("add", "sub", "mul", "min", "max")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge")
TYPES = ("float32", "float64", "int64", "int32", "int16", "int8", "uint8", "bool")


class RandomKernel:
    """Builds one kernel; ``sizes`` gives the value of its symbol, ``buffers`` its memory."""

    def __init__(self, seed):
        self.random = np.random.default_rng(seed)
        self.sizes = {"s": int(self.random.choice(EXTENTS[:-1]))}
        self.arrays, self.roles = {}, {}
        self.types = {}
        self.count = 0
        names = [f"i{n}" for n in range(self.random.integers(0, 4))]
        kept = tuple(self.axis(name) for name in names)
        loops = [self.loop(kept, number) for number in range(self.random.integers(1, 4))]
        loops.append(Loop((), self.stores(kept)))
        buffers = tuple(
            KernelBuffer(n, str(a.dtype), self.roles[n]) for n, a in sorted(self.arrays.items())
        )
        self.kernel = Kernel(f"random_{seed}", buffers, kept, tuple(loops))

    def chance(self, of=2):
        return self.random.integers(of) == 0

    def axis(self, name):
        extent = int(self.random.choice(EXTENTS if self.chance(4) else EXTENTS[:5]))
        return Axis(name, Size.symbol("s") if self.chance(4) else extent)

    def name(self):
        self.count += 1
        return f"v{self.count}"

    def new(self, dtype):
        name = self.name()
        self.types[name] = dtype
        return name

    def of_type(self, dtype):
        return [n for n, t in self.types.items() if t == dtype]

    def pick(self, items):
        return items[self.random.integers(len(items))]

    # ---- memory ----------------------------------------------------------------------------

    def place(self, axes, *, whole=False):
        """A dense index over some of the axes in some order, and how many elements it spans."""
        chosen = [a for a in axes if whole or not self.chance(4)]
        self.random.shuffle(chosen)
        step, terms = 1, []
        for axis in chosen:
            terms.append((axis.name, self.symbolic(step)))
            step *= evaluate(axis.extent, self.sizes)
        offset = 0 if whole else int(self.random.integers(3))
        return Index(offset, tuple(terms[::-1])), step + offset

    def symbolic(self, number):
        """A stride, sometimes as an expression."""
        s = self.sizes["s"]
        if number % s == 0 and self.chance(3):
            return Size.binary("mul", number // s, Size.symbol("s"))
        return number

    def data(self, dtype, count):
        found = self.random.integers(-9, 10, count)
        return np.abs(found).astype(dtype) if dtype in ("uint8", "bool") else found.astype(dtype)

    def load(self, axes):
        dtype = self.pick(TYPES)
        index, span = self.place(axes)
        buffer = f"x{len(self.arrays)}"
        self.arrays[buffer], self.roles[buffer] = self.data(dtype, span), "in"
        masks = self.of_type("bool")
        mask = self.pick(masks) if masks and self.chance(3) else None
        return Load(self.new(dtype), dtype, buffer, index, mask)

    # ---- instructions ----------------------------------------------------------------------

    def loop(self, kept, number):
        own = tuple(self.axis(f"j{number}_{n}") for n in range(self.random.integers(0, 3)))
        before = dict(self.types)
        axes = (*kept, *own)
        body = [self.instruction(axes) for _ in range(self.random.integers(2, 10))]
        if len(own) == 1 and self.chance():
            body.append(self.scan())
            body += [self.apply() for _ in range(self.random.integers(0, 3))]
        folds = {}
        for _ in range(self.random.integers(1, 3) if own else 0):
            fold = self.fold(body, axes)
            folds[fold.name] = fold.dtype
            body.append(fold)
        if own:
            self.types = before | folds
        return Loop(own, tuple(body))

    def instruction(self, axes):
        kind = self.random.integers(6)
        if kind == 0 or not self.types:
            return self.load(axes)
        if kind == 1:
            dtype = self.pick(TYPES)
            value = self.data(dtype, 1)[0].item()
            return Const(self.new(dtype), dtype, value)
        if kind == 2:
            index, _ = self.place(axes)
            return Position(self.new("int64"), index)
        return self.apply()

    def apply(self):
        dtype = self.types[self.pick(sorted(self.types))]
        args = tuple(self.pick(self.of_type(dtype)) for _ in range(2))
        kind = self.random.integers(4)
        masks = self.of_type("bool")
        if kind == 0:
            return Apply(self.new("bool"), "bool", self.pick(COMPARE), args)
        if kind == 1 and masks:
            mask = self.pick(masks)
            return Apply(self.new(dtype), dtype, "where", (mask, *args))
        if kind == 2:
            wide = "float64" if dtype.startswith("float") else self.pick(TYPES)
            return Apply(self.new(wide), wide, "cast", args[:1])
        return Apply(self.new(dtype), dtype, self.pick(BINARY), args)

    def scan(self):
        """A scan of something seen in this loop, which later instructions may use."""
        value = self.pick(sorted(self.types))
        dtype = self.types[value]
        exact = dtype.startswith(("int", "uint"))
        ops = ("any", "all") if dtype == "bool" else ("max", "min", *(["sum", "prod"] * exact))
        return Scan(self.new(dtype), dtype, self.pick(ops), (value,))

    def fold(self, body, axes):
        """A fold of something computed in this loop."""
        if not self.types:
            body.append(self.load(axes))
        value = self.pick(sorted(self.types))
        dtype = self.types[value]
        if self.chance(3):
            index, _ = self.place(axes, whole=True)
            body.append(Position(self.name(), index))
            op = self.pick(("argmax", "argmin"))
            return Reduce(self.name(), "int64", op, (value, body[-1].name))
        exact = dtype in ("int64", "int32")
        ops = ("any", "all") if dtype == "bool" else ("max", "min", *(["sum", "prod"] * exact))
        return Reduce(self.name(), dtype, self.pick(ops), (value,))

    def stores(self, kept):
        if not self.types:
            return (self.load(kept), *self.stores(kept))
        body = []
        for n in range(self.random.integers(1, 4)):
            value = self.pick(sorted(self.types))
            index, span = self.place(kept, whole=True)
            self.arrays[f"out{n}"] = np.zeros(span, self.types[value])
            self.roles[f"out{n}"] = "out"
            body.append(Store(f"out{n}", index, value))
        return tuple(body)
