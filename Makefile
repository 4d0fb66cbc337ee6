# make serve · make test · make check · make demo · make bench · make proto · make test-gpu
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
PROTOS := $(wildcard proto/*.proto)

.PHONY: serve test check demo bench proto links test-gpu clean

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

serve: $(STAMP)
	$(BIN)/triptych serve $(ARGS)

test: $(STAMP) links
	$(BIN)/python -m pytest -m "not gpu" $(ARGS)

test-gpu:
	$(PYTHON) -m pytest -m gpu tests/gpu $(ARGS)

check: $(STAMP) links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/triptych demo

bench: $(STAMP)
	$(BIN)/python bench/three_tiers.py

proto: $(STAMP)
	$(BIN)/python tools/generate_proto.py

# One folder in which every room sits under its import name: type checkers do not read package-dir.
links:
	mkdir -p build/links/triptych
	for entry in triptych/*; do ln -sfn ../../../$$entry build/links/$$entry; done
	ln -sfn ../../../services build/links/triptych/services
	ln -sfn ../../../router build/links/triptych/router

clean:
	rm -rf build $(VENV)
