# make demo    compile a small transformer and compare it with eager
# make test    the whole test suite
# make check   formatter, linter, types, import contracts, C warnings
# make sweep   every operator of PyTorch's op_db and 2,000 random graphs against eager (long)
# make bench   the benchmarks of benchmarks/
#
# Each does its own set-up: a virtual environment in .venv, the package with its C extension.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
CC     ?= cc

NATIVE   := $(wildcard native/include/*.h native/src/*.c native/python/*.c)
C_SOURCE := $(wildcard native/include/*.h native/src/*.c native/python/*.c native/tests/*.c)
CFLAGS   := -std=c11 -O2 -Wall -Wextra -Werror -Wshadow -Wconversion -Wstrict-prototypes
INSTALLED := $(VENV)/.installed

.PHONY: demo sweep test test-fast check format bench clean setup

setup: $(INSTALLED)

demo: $(INSTALLED)
	@$(BIN)/python examples/demo.py

test: $(INSTALLED) native/build/test_size
	@native/build/test_size
	@$(BIN)/python -m pytest -q -n 2 --dist loadgroup $(ARGS)

sweep: $(INSTALLED)
	@DOVETAIL_SWEEP=1 DOVETAIL_RANDOM_GRAPHS=2000 $(BIN)/python -m pytest -q -n 2 \
	    tests/codegen/test_op_db.py tests/codegen/test_random_graphs.py $(ARGS)

test-fast: $(INSTALLED)
	@$(BIN)/python -m pytest -q -m "not e2e" $(ARGS)

check: $(INSTALLED) native/build/test_size
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/codespell src tests tools docs benchmarks examples native README.md CHANGELOG.md CONTRIBUTING.md
	$(BIN)/clang-format --dry-run --Werror $(C_SOURCE)
	$(CC) $(CFLAGS) -fsyntax-only -Inative/include native/src/*.c
	$(CC) $(CFLAGS) -Wno-conversion -fsyntax-only -Inative/include \
	    -I$$($(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("include"))') \
	    native/python/*.c

format: $(INSTALLED)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/clang-format -i $(C_SOURCE)

bench: $(INSTALLED)
	@for script in $(filter-out %/common.py,$(wildcard benchmarks/*.py)); do \
	    $(BIN)/python $$script || exit 1; \
	done

# The package is installed in place, so only what is compiled or declared asks for a new install.
$(INSTALLED): pyproject.toml setup.py constraints.txt $(NATIVE)
	@test -x $(BIN)/pip || $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "dovetail needs Python 3.11 or newer: make $(MAKECMDGOALS) PYTHON=python3.12")'
	@test -x $(BIN)/pip || $(PYTHON) -m venv --clear $(VENV)
	@echo "installing dovetail into $(VENV) (the first time takes a minute)"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt setuptools
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt \
	    --no-build-isolation -e '.[torch,cpu,dev]'
	@touch $@

native/build/test_%: native/tests/test_%.c $(wildcard native/src/*.c) $(wildcard native/include/*.h)
	@mkdir -p native/build
	@$(CC) $(CFLAGS) -g -fsanitize=address,undefined -fno-sanitize-recover=all \
	    -Inative/include -o $@ $< $(wildcard native/src/*.c)

clean:
	rm -rf $(VENV) build native/build src/dovetail/*.so src/*.egg-info
