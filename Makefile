# make demo   sets up, then learns a kernel from simulated baskets, prints what it found and draws it
# make test   sets up, then runs the tests
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: demo test test-py312 test-oldest test-slow fuzz lint format docs pages benchmark release-check clean

demo: $(VENV)/.installed
	$(BIN)/python examples/basket_completion.py

# Most of a test is compilation of what runs once. Here XLA compiles without optimisation (tests/conftest.py).
# make test-slow QUICK= compiles as users do, and takes more than twice as long; so does make fuzz QUICK=
QUICK := NUMPYRO_NDPP_TESTS=quick

test: $(VENV)/.installed-test
	$(QUICK) $(BIN)/python -m pytest -m "not slow" -n auto --dist loadfile

# An interpreter by its version, on the path or of pyenv; nothing where there is none.
find-python = $(shell for python in python$(1) "$$(pyenv prefix $(1) 2>/dev/null)/bin/python"; do \
	"$$python" -c 'import sys; assert "%d.%d" % sys.version_info[:2] == "$(1)"; print(sys.executable)' 2>/dev/null \
	&& break; done)

# The other major of ArviZ, which comes with Python 3.12: what depends on it, where that interpreter exists.
PY312 = $(call find-python,3.12)
test-py312:
ifeq ($(PY312),)
	@echo "no Python 3.12 here: left out"
else
	$(MAKE) .venv-py312/.installed-test VENV=.venv-py312 PYTHON=$(PY312)
	$(QUICK) .venv-py312/bin/python -m pytest -m "not slow" -n auto tests/test_diagnostics.py
endif

# The oldest versions that pyproject.toml allows, on the oldest Python: what touches NumPyro, JAX, ArviZ, SciPy, pandas
# and matplotlib most. Old versions are deprecated users of their own dependencies, which are new.
PY311 = $(call find-python,3.11)
OLDEST_TESTS := $(addprefix tests/test_,package.py distributions.py numpyro_contract.py diagnostics.py updown.py \
	learning.py fits.py fit_checks.py baskets.py)
test-oldest:
ifeq ($(PY311),)
	@echo "no Python 3.11 here: left out"
else
	$(MAKE) .venv-oldest/.created VENV=.venv-oldest PYTHON=$(PY311)
	.venv-oldest/bin/python .ci/oldest_versions.py > .venv-oldest/constraints.txt
	PIP_CONSTRAINT=$(CURDIR)/.venv-oldest/constraints.txt $(MAKE) .venv-oldest/.installed-test VENV=.venv-oldest
	$(QUICK) .venv-oldest/bin/python -m pytest -m "not slow" -n auto --dist loadfile \
		-W ignore::DeprecationWarning $(OLDEST_TESTS)
endif

# A few slow tests compute for minutes: those are compiled as users do.
test-slow: $(VENV)/.installed-test
	$(QUICK) $(BIN)/python -m pytest -m "slow and not long" -n auto --dist worksteal
	$(BIN)/python -m pytest -m long -n auto --dist worksteal

# Random kernels against enumeration, as many as it is told: make fuzz KERNELS=100000 SEED=1
KERNELS ?= 10000
SEED ?= 0
fuzz: $(VENV)/.installed-test
	$(QUICK) $(BIN)/python tests/fuzz.py --kernels $(KERNELS) --seed $(SEED)
	$(QUICK) $(BIN)/python tests/fuzz.py --kernels $(KERNELS) --seed $(SEED) --float32

lint: $(VENV)/.installed-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.installed-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	$(BIN)/python docs/run_pages.py --check

# Runs the tutorials and writes what they print and draw into the pages; make docs only compares.
pages: $(VENV)/.installed-docs
	$(BIN)/python docs/run_pages.py

benchmark: $(VENV)/.installed-benchmark
	$(BIN)/python benchmarks/log_prob.py
	$(BIN)/python benchmarks/updown.py
	$(BIN)/python benchmarks/samplers.py
	$(BIN)/python benchmarks/paper_figures.py
# On baskets of your own: benchmarks/learning.py takes a folder of them, benchmarks/paper_tables.py the kernels it saves.

# Builds the package, looks into it, installs it into empty environments and uses it there, on every Python that exists
# here of those that pyproject.toml names. On one alone: make release-check VERSIONS=3.12, or VERSIONS=here.
VERSIONS ?=
release-check: $(VENV)/.installed-release
	$(BIN)/python .ci/release_check.py $(VERSIONS)

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	touch $@

$(VENV)/.installed: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

# Most modules are never imported. Those that are, Python compiles when it imports them.
$(VENV)/.installed-%: $(VENV)/.created pyproject.toml
	$(BIN)/python -m pip install --quiet --no-compile --editable '.[$*]'
	touch $@

clean:
	rm -rf $(VENV) .venv-py312 .venv-oldest docs/_build .pytest_cache .mypy_cache .ruff_cache
