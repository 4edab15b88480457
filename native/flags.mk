# How the runtime is compiled: read by the Makefile, for the library, and by setup.py, for the
# extension. One line a variable, nothing but words.

# -ffp-contract: fused multiply-add where the processor has it. Nobody reads errno or the
# floating-point exception flags, so loops over them may be vectorised.
COMPILING := -std=c11 -O3 -ffp-contract=fast -fno-math-errno -fno-trapping-math -Wall -Wextra -fvisibility=hidden -pthread

# Files from anywhere are parsed in here. Each is used where the compiler offers it; tests read the
# binaries (tests/native/test_hardening.py).
HARDENING := -fstack-protector-strong -fstack-clash-protection -fcf-protection=full -D_FORTIFY_SOURCE=2
# Addresses are resolved when the library is loaded and read-only from then on; no stack that can be
# executed.
LINKING := -Wl,-z,relro,-z,now -Wl,-z,noexecstack
