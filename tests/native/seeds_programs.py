"""Seeds of programs: what the runtime's own kernels, hosts and plug-ins are asked to do."""

# Symbols that are values of inputs, and sizes of every operation.
VALUES = """\
program @values
symbol n = %n in -4..9
symbol s0 = %x[0] in 0..9
symbol s1 = %x[1] in 1..9
input %n: int64[]
input %x: float32[s0, s1]
temporary %r: int64[max(n, 0)]
temporary %t: int64[max(n, 0)]
output %y: float32[s0 * s1 // 1, 2]
output %z: int64[min(max(n, 0), 4)]
output %o: int64[]
view %v: float32[s0 * s1] strides [2] of %y
view %w: float32[s0 * s1] strides [2] of %y at 1
view %f: float32[s0 * s1] of %x
view %h: int64[min(max(n, 0), 4)] of %t
guard s0 % 1 == n - n
guard (s0 + 1) // 1 == s0 + 1
kernel %r = arange@1(; n, -2)
kernel %t = neg@1(%r)
kernel %o = size@1(; n * 2 - s0)
kernel %v = add@1(%f, %f)
kernel %w = mul@1(%f, %f)
copy %z = %h
return %y, %z, %o
"""

# Temporaries as large as a number says, so large that no memory holds them.
WIDE = """\
program @wide
symbol n = %n in 2..9223372036854775807
symbol s0 = %x[0] in 2..9223372036854775807
input %n: int64[]
input %x: float64[s0]
temporary %a: int64[n]
temporary %b: int64[n]
temporary %c: int64[n]
temporary %d: int64[n]
temporary %e: int64[n, 2]
temporary %f: int64[n]
view %g: int64[n] strides [2] of %e
output %y: int64[1]
output %z: float64[s0]
view %v: int64[1] of %f
kernel %a = arange@1(; 0, 1)
kernel %b = neg@1(%a)
kernel %c = add@1(%a, %b)
kernel %d = mul@1(%c, %a)
kernel %g = add@1(%d, %b)
kernel %f = sub@1(%a, %g)
copy %y = %v
kernel %z = exp@1(%x)
return %y, %z
"""

# A tensor with a halo, written through a window, and packed constants.
LAYOUTS = """\
program @layouts
symbol s0 = %x[2] in 0..9
input %x: float32[1, 2, s0, 3]
input %q: float32[s0, 2] as [d0 / 4: (s0 + 3) // 4, d1: 2, d0: 4]
constant %w: float32[3, 5] as [d1 / 4: 2, d0: 3, d1: 4]
constant %v: float32[7, 3] as [(d0 + 1) / 6: 2, d1: 3, (d0 + 1) / 2: 3, d0 + 1: 2]
temporary %h: float32[1, 2, s0, 3] as [d0: 1, d2 + 1: s0 + 2, d3 + 1: 5, d1: 2]
view %inside: float32[1, 2, s0, 3] strides [1, 1, 10, 2] of %h at 12
temporary %p: float32[s0, 2] as [d0 / 4: (s0 + 3) // 4, d1: 2, d0: 4]
output %y: float32[1, s0 + 2, 5, 2]
output %z: float32[2, 3, 4]
output %u: float32[(s0 + 3) // 4, 2, 4]
output %t: float32[2, 3, 3, 2]
copy %inside = %x
kernel %y = relu@1(%h)
kernel %z = neg@1(%w)
kernel %p = neg@1(%q)
kernel %u = add@1(%p, %p)
kernel %t = abs@1(%v)
return %y, %z, %u, %t
"""

# Inputs that are written to, and state, in one program.
WRITES = """\
program @writes
symbol s0 = %a[0] in 1..9
input %a: float32[s0, 2]
input %b: float32[s0, 2]
input %i: int32[s0]
state %seen: float32[2]
temporary %c: float32[s0, 2]
temporary %d: float32[s0, 2] of %c
temporary %m: float32[2]
temporary %n: float32[2]
view %row: float32[2] of %a
output %y: float32[s0, 2]
kernel %c = add@1(%a, %b)
kernel %d = relu@1(%c)
kernel %m = sum@1(%d; 1, 0)
kernel %n = maximum@1(%m, %seen)
copy %a = %d
copy %seen = %n
copy %row = %n
copy %y = %a
return %y
"""

# Inputs that are written to, of which one has no elements.
EMPTY = """\
program @empty
symbol s0 = %a[0] in 0..9
input %a: float32[s0]
input %b: float32[s0]
input %c: float32[0]
temporary %d: float32[s0]
output %y: float32[s0]
kernel %d = add@1(%a, %b)
copy %a = %d
copy %b = %a
copy %y = %d
return %y
"""

# Two plug-ins and the host, by turns.
TURNS = """\
program @turns
device accel_c {"version": "1.0", "abi": "1.0", "needs": {"memory.used": 0, "executed": 0}}
device small {"version": "1", "abi": "1.0", "needs": {}}
symbol s0 = %x[0] in 1..8
input %x: float32[s0, 2]
constant %k: float32[2, 2] on accel_c
temporary %a: float32[s0, 2] on accel_c
temporary %b: float32[s0, 2] on accel_c
temporary %h: float32[s0, 2]
host %c: float32[s0, 2]
temporary %s: float32[s0, 2] on small
temporary %r: float32[s0, 2] on small
temporary %e: float32[s0, 2] on accel_c
temporary %g: float32[s0, 2] on accel_c
output %y: float32[s0, 2]
output %z: float32[s0, 2]
copy %a = %x
launch %b = accel_c:matmul@1 aten.mm.default(%a, %k) {}
copy %h = %b
copy %s = %h
launch %r = small:relu@1 aten.relu.default(%s) {}
copy %y = %r
call %c = aten.relu.default [{"buffer": "h"}] {}
copy %e = %c
launch %g = accel_c:relu@1 aten.relu.default(%e) {"a": [1, 2], "b": [{"float": "0x1.0p+0"}, \
{"float": "0x1.0p+1"}], "c": "text", "d": null, "e": {"size": "s0"}}
copy %z = %g
return %y, %z
"""

# State that a device keeps: shown where it lies and replaced, copied, and only looked at.
KEPT = """\
program @kept
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[2, 2]
state %p: float32[2, 2]
state %q: float32[2, 2]
state %r: float32[2]
temporary %a: float32[2, 2] on accel_c
temporary %b: float32[2, 2] on accel_c
temporary %c: float32[2, 2] on accel_c
temporary %d: float32[2, 2] on accel_c
temporary %e: float32[2, 2] on accel_c
temporary %f: float32[2] on accel_c
view %v: float32[2] on accel_c of %c at 1
output %y: float32[2, 2]
output %z: float32[2]
copy %a = %x
copy %b = %p
launch %c = accel_c:matmul@1 aten.mm.default(%a, %b) {}
copy %p = %c
copy %d = %q
launch %d = accel_c:relu@1 aten.relu.default(%b) {}
copy %q = %d
copy %e = %q
copy %r = %v
copy %f = %r
copy %y = %e
copy %z = %f
return %y, %z
"""

# A launch whose kernel is another than the plug-in has for the operation.
OTHERWISE = """\
program @otherwise
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
input %x: float32[2, 4]
temporary %d: float32[2, 4] on accel_c
temporary %r: float32[2, 4] on accel_c
output %y: float32[2, 4]
copy %d = %x
launch %r = accel_c:softmax@1 aten.relu.default(%d) {}
copy %y = %r
return %y
"""

# Rows with gaps between them, on the host and on a device.
ROWS = """\
program @rows
device accel_c {"version": "1.0", "abi": "1.0", "needs": {}}
symbol s0 = %x[0] in 1..8
input %x: float32[s0, 2] strides [4, 1]
temporary %a: float32[s0, 2] strides [4, 1] on accel_c
temporary %b: float32[s0, 2] strides [4, 1] on accel_c
view %v: float32[s0] strides [4] on accel_c of %b at 1
temporary %c: float32[s0] strides [4] on accel_c
output %y: float32[s0, 2] strides [4, 1]
output %z: float32[s0] strides [4]
copy %a = %x
launch %b = accel_c:relu@1 aten.relu.default(%a) {}
launch %c = accel_c:relu@1 aten.relu.default(%v) {}
copy %y = %b
copy %z = %c
copy %x = %b
return %y, %z
"""

# Reductions, norms and indexing of the runtime's own, in several types.
TABLE = """\
program @table
symbol s0 = %x[0] in 1..6
input %x: float64[s0, 4]
input %i: int32[s0]
input %m: bool[s0, 4]
constant %w: float64[4]
temporary %a: float64[s0, 4]
temporary %b: float64[s0, 1]
temporary %c: float64[4]
temporary %d: bool[s0, 4]
temporary %e: bool[s0, 4]
temporary %f: float32[s0, 4]
temporary %g: float64[2, s0, 4]
temporary %p: float64[s0, 4, 4]
output %y: float64[s0, 4]
output %z: float64[s0]
output %l: bool[s0, 4]
output %t: int32[s0]
output %u: float64[s0, 8]
output %q: float64[s0, 4]
kernel %a = clamp@1(%x; -0x1.0p+0, 0x1.0p+1)
kernel %b = mean@1(%a; 2, 1)
kernel %c = var@1(%a; 1, 0, 0x0.0p+0)
kernel %d = lt@1(%a, %b)
kernel %e = logical_and@1(%d, %m)
kernel %l = logical_not@1(%e)
kernel %y = log_softmax@1(%a; 1)
kernel %z = amax@1(%x; 2, 0)
kernel %t = mul@1(%i, %i)
kernel %u = cat@1(%a, %x; 1)
kernel %f = copy@1(%a)
kernel %q = leaky_relu@1(%x; 0x1.0p-3)
return %y, %z, %l, %t, %u, %q
"""

# Many results of one host call, in place and not, some that nobody needs.
MANY = "program @many\nsymbol s0 = %x[0] in 1..4\ninput %x: float32[s0]\n"
MANY += "".join(f"host %h{n}: float32[s0]\n" for n in range(4))
MANY += "".join(f"output %o{n}: float32[s0]\n" for n in range(30))
MANY += "call " + ", ".join(["%h0", "_", "%h1", *(f"%o{n}" for n in range(29))])
MANY += ' = aten.split.Tensor [{"buffer": "x"}, 1] {"dim": 0}\n'
MANY += 'call %h2, %h3 = aten.unbind.int [{"buffer": "h0"}, {"float": "0x1.0p+0"}] {}\n'
MANY += "copy %h2 = %h1\ncopy %o29 = %h2\n"
MANY += "return " + ", ".join(["%h3", *(f"%o{n}" for n in range(30))]) + "\n"

# More symbols than a call may have.
SYMBOLS = "program @symbols\n"
SYMBOLS += "".join(f"symbol s{n} = %x[0] in 0..9223372036854775807\n" for n in range(66))
SYMBOLS += "input %x: float32[s0]\noutput %y: float32[s0]\nkernel %y = relu@1(%x)\nreturn %y\n"

# Native code that reports errors of its own: no kernel IR says what it does.
MOODY = """\
program @moody
symbol s0 = %x[0] in 1..9
input %x: float32[s0]
output %y: float32[s0]
kernel %y = moody@1(%x; s0)
return %y
"""

# Native code beside the same kernel as kernel IR: tests/native/seed_code.c.
TWICE = """\
kernel twice(in x: float32, out y: float32) over [i: s0] {
  loop [] {
    a: float32 = load x[0 | i * (1)]
    b: float32 = add(a, a)
    store y[0 | i * (1)] = b
  }
}
"""
NATIVE = """\
program @native
symbol s0 = %x[0] in 1..9
symbol s1 = %z[0] in 0..9223372036854775807
input %x: float32[s0]
input %z: float32[s1]
temporary %t: float32[s0]
temporary %u: float32[s1]
output %y: float32[s0]
output %r: float32[s1]
kernel %t = twice@1(%x; s0)
kernel %y = twice@1(%t; s0)
kernel %u = twice@1(%z; s1)
kernel %r = neg@1(%u)
return %y, %r
"""
