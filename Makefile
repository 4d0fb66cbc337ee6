# make serve       start the embedded model on http://127.0.0.1:8000 (ARGS="--port 9000" and more: triptych serve --help)
# make test        all tests that need no GPU (ARGS="-k sampling")
# make check       lint, format, types
# make demo        start a server, ask about pictures in tests/data, show answers and where the time went
# make bench       three tiers against one process, on this machine; writes bench/results/
# make test-gpu    tests that need an NVIDIA GPU, with the PYTHON that has torch for it
# make proto       generate triptych/pb again after a change in proto/
# make clean       remove .venv and build
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help serve test check demo bench test-gpu proto links clean
.DELETE_ON_ERROR:

help:
	@sed -n 's/^# make /make /p' Makefile

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed; name one with: make PYTHON=python3.12 ..."; exit 1; }
	@test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	@echo "installing into $(VENV); the first time this downloads several gigabytes (torch)"
	$(BIN)/pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

serve: $(STAMP)
	$(BIN)/triptych serve $(ARGS)

test: $(STAMP) links
	$(BIN)/python -m pytest -m "not gpu" $(ARGS)

check: $(STAMP) links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/triptych demo $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench.three_tiers $(ARGS)

# No virtual environment: torch for the machine's GPU is where PYTHON has it.
test-gpu:
	$(PYTHON) -c 'import triptych.services' 2>/dev/null || \
	  $(PYTHON) -m pip install -q --no-deps --no-build-isolation -e .
	$(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

proto: $(STAMP)
	$(BIN)/python tools/generate_proto.py

# One folder in which every room sits under its import name: type checkers do not read package-dir.
links:
	@mkdir -p build/links/triptych
	@for entry in triptych/*; do ln -sfn ../../../$$entry build/links/$$entry; done
	@ln -sfn ../../../services build/links/triptych/services
	@ln -sfn ../../../router build/links/triptych/router
	@find -L build/links -type l -delete  # what was renamed or removed

clean:
	rm -rf build $(VENV)
