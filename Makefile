# Two commands do everything on a fresh machine: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
WORKERS ?= 2

# Simulated GPUs need another wheel of TensorFlow, so they have an environment of their own.
SIMULATOR ?= .simulator
SIMULATED_GPUS := KERAS_MGPU_SIMULATED_GPUS=4 PYTHONPATH=$(CURDIR)
CXX_FOUND := $(shell command -v g++ || command -v c++)

.PHONY: help demo test quick simulate simulate-quick torture compatibility check format docs bench bench-simulated clean

help:
	@echo "make demo    split a small model, train it, and check it against the unsplit one"
	@echo "make test    run all tests (about 13 minutes on two cores)"
	@echo "make quick   run some tests of every part (2 minutes), for use while editing"
	@echo "make simulate  run the tests of what runs on GPUs on four simulated ones"
	@echo "make simulate-quick  a part of them, which make test runs as well"
	@echo "make torture kill runs at 200 random points in time, flip more bits, split larger models"
	@echo "make compatibility  all tests on older versions of Python, TensorFlow and Keras"
	@echo "make check   formatter, linter, types"
	@echo "make docs    write docs/api.md from the docstrings"
	@echo "make bench   run the benchmarks"
	@echo "make bench-simulated  how fast steps are on simulated GPUs (12 minutes)"

$(VENV)/installed: setup.py pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

demo: $(VENV)/installed
	$(BIN)/python examples/demo.py

test: $(VENV)/installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q
	$(MAKE) simulate-quick

# What it leaves out of `make test` stands in tests/support/slow.py.
quick: $(VENV)/installed
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal -q --quick

$(SIMULATOR)/installed: tests/simgpu/requirements.txt
	test -x $(SIMULATOR)/bin/python || $(PYTHON) -m venv $(SIMULATOR)
	$(SIMULATOR)/bin/python -m pip install --quiet --upgrade pip
	$(SIMULATOR)/bin/python -m pip install --quiet --requirement $<
	touch $@

# TESTS names files or folders, all by default. What is left out stands in tests/support/simulated.py.
ifneq ($(CXX_FOUND),)
simulate: $(SIMULATOR)/installed
	$(SIMULATED_GPUS) $(SIMULATOR)/bin/python -m pytest -n $(WORKERS) --dist worksteal -q $(TESTS)

simulate-quick: $(SIMULATOR)/installed
	$(SIMULATED_GPUS) $(SIMULATOR)/bin/python -m pytest -n $(WORKERS) --dist worksteal -q --quick
else
simulate simulate-quick:
	@echo "Tests on simulated GPUs are left out: they need a C++ compiler (g++) to build the simulator."
endif

KILLS ?= 200
torture: $(VENV)/installed
	KERAS_MGPU_TORTURE=$(KILLS) $(BIN)/python -m pytest -q -s tests/checkpoints/test_faults.py tests/test_applications.py

# Other versions of Python, TensorFlow and Keras, each in an environment of its own.
compatibility:
	$(PYTHON) tests/compatibility.py

check: $(VENV)/installed
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(VENV)/installed
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/installed
	$(BIN)/python docs/make_api.py

# The peer that a split model is measured beside comes only for this.
bench: $(VENV)/installed
	$(BIN)/python -m pip install --quiet --editable ".[bench]"
	$(BIN)/python benchmarks/run.py

# Not a part of `make bench`: it needs the simulator's environment.
bench-simulated: $(SIMULATOR)/installed
	PYTHONPATH=$(CURDIR) $(SIMULATOR)/bin/python benchmarks/run.py simulated

clean:
	rm -rf $(VENV) $(SIMULATOR) .compatibility build *.egg-info .pytest_cache .mypy_cache .ruff_cache
