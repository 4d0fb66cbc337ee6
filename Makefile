# make serve       start the embedded model on http://127.0.0.1:8000 (ARGS="--port 9000" and more: triptych serve --help)
# make test        all tests that need no GPU (ARGS="-k sampling")
# make test-cluster  `ray up` of three machines made of namespaces (root, iproute2, openssh-server, rsync): takes seven minutes
# make check       lint, format, types
# make soak        three tiers under load for half an hour: does what they hold stay where it is? (ARGS="--seconds 180")
# make nightly     what takes a night: each process killed and stopped at each step 300 times, the table of faults 20 times, then the soak
# make demo        start a server, ask about pictures in tests/data, show answers and where the time went
# make bench       three tiers against one process, on this machine; writes bench/results/
# make bench-peer  this machine's CPU: ours beside a peer (ARGS="--mmbench FILE --peer 'COMMAND {model} {port}'"); writes bench/results/
# make bench-router  what a router adds to a request and what it costs, before workers that answer at once; writes bench/results/
# make bench-encoder  the vision tower of Qwen2.5-VL-7B against transformers', on the GPU of PYTHON; writes bench/results/
# make bench-h200  the goals' table, on the H200 of PYTHON (ARGS="--mmbench PATH"; without a GPU: ARGS="--mmbench PATH --dry-run")
# make bench-handoff  hand-offs of rows and KV between two processes on the GPU of PYTHON; writes bench/results/
# make load-aiperf  NVIDIA's load generator against three tiers with images, in an environment of its own (1.2 GB); writes bench/results/
# make load-guidellm  the same with guidellm (6 GB)
# make test-gpu    tests that need an NVIDIA GPU, with the PYTHON that has torch for it
# make tiny-vl     make the embedded model on one NVIDIA GPU, from nothing or from where this command was stopped
# make eval        ask the embedded model all that docs/tiny-vl.md has figures of; prints, writes them there and to bench/results/
# make screenshots  pictures of the page at / and of dashboards, of servers under load, into docs/ (Debian: apt-get install chromium prometheus)
# make proto       generate triptych/pb again after a change in proto/
# make clean       remove .venv and build
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

# What tools/tiny_vl draws with, for a PYTHON without it. Their files alone are wanted, nothing that the packages need.
FONTS  := font-caladea font-fredoka-one font-hanken-grotesk font-manrope font-source-sans-pro font-source-serif-pro matplotlib

.DEFAULT_GOAL := help
.PHONY: help serve test test-cluster soak nightly check demo bench bench-peer bench-router bench-encoder bench-h200 bench-handoff load-aiperf load-guidellm test-gpu tiny-vl eval screenshots proto links clean
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
	$(BIN)/python -m pytest -rs -m "not gpu and not cluster" $(ARGS)

test-cluster: $(STAMP) links
	$(BIN)/python -m pytest -rs -m cluster tests/three_hosts tests/cluster/test_fault_hosts.py $(ARGS)

soak: $(STAMP)
	$(BIN)/python -m tests.soak $(ARGS)

# ARGS are the first command's, as --rounds 20. The soak is wanted also where it has failed.
nightly: $(STAMP)
	@status=0; \
	$(BIN)/python -m tests.faults $(ARGS) || status=1; \
	$(BIN)/python -m tests.cluster.fault_table --rounds 20 --output build/fault-table.json || status=1; \
	$(BIN)/python -m tests.soak || status=1; \
	exit $$status

check: $(STAMP) links
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

demo: $(STAMP)
	$(BIN)/triptych demo $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m bench.three_tiers $(ARGS)

bench-peer: $(STAMP)
	$(BIN)/python -m bench.peer_cpu $(ARGS)

bench-router: $(STAMP)
	$(BIN)/python -m bench.router_latency --output bench/results/router-latency.json $(ARGS)

bench-encoder:
	$(PYTHON) -m bench.encoder $(ARGS)

bench-h200:
	PYTHON=$(PYTHON) bench/h200.sh $(ARGS)

bench-handoff:
	$(PYTHON) -m bench.handoff $(ARGS)

# Their requirements are not ours: each has a virtual environment of its own.
AIPERF   := aiperf==0.13.0
GUIDELLM := guidellm[vision]==0.8.1

build/%/.installed: Makefile
	$(PYTHON) -m venv build/$*
	build/$*/bin/pip install --disable-pip-version-check -q '$(TOOL)'
	@touch $@

load-aiperf: TOOL := $(AIPERF)
load-aiperf: $(STAMP) build/aiperf/.installed
	$(BIN)/python -m bench.foreign_load aiperf --python build/aiperf/bin/python

load-guidellm: TOOL := $(GUIDELLM)
load-guidellm: $(STAMP) build/guidellm/.installed
	$(BIN)/python -m bench.foreign_load guidellm --python build/guidellm/bin/python

# No virtual environment: torch for the machine's GPU is where PYTHON has it.
test-gpu:
	$(PYTHON) -c 'import triptych.services' 2>/dev/null || \
	  $(PYTHON) -m pip install -q --no-deps --no-build-isolation -e .
	$(PYTHON) -m pytest -rs -m gpu tests/gpu tests/tiny_vl/test_gpu.py $(ARGS)

# No virtual environment here either. ARGS="--seconds 600" ends a leg after that long: the same command begins the next one
# from what build/tiny-vl holds, until all steps are done and the model takes the embedded one's place.
tiny-vl:
	$(PYTHON) -c 'import triptych.multimodal' 2>/dev/null || \
	  $(PYTHON) -m pip install -q --no-deps --no-build-isolation -e .
	$(PYTHON) -c 'from tools.tiny_vl.fonts import FACES, HELD_OUT; [face.path() for face in FACES + HELD_OUT]' 2>/dev/null || \
	  $(PYTHON) -m pip install -q --no-deps -c constraints.txt $(FONTS)
	$(PYTHON) -m tools.tiny_vl train --device cuda --graph --state build/tiny-vl --output triptych/models/tiny_vl $(ARGS)

# ARGS are the first step's. Exit code 1 says that figures are below their bounds: the others are wanted all the same, and it fails in the end.
# Any other says that there are no figures, so nothing is written.
eval: $(STAMP)
	@status=0; \
	step() { "$$@" || { code=$$?; test $$code -eq 1 || exit $$code; status=1; }; }; \
	step $(BIN)/python -m tools.tiny_vl evaluate $(ARGS); \
	step $(BIN)/python -m tools.tiny_vl evaluate --held-out --samples 100; \
	step $(BIN)/python -m tests.tiny_vl.measure_faults; \
	step $(BIN)/python -m tools.tiny_vl card; \
	exit $$status

# ARGS are the first command's.
screenshots: $(STAMP)
	$(BIN)/python -m tools.screenshots $(ARGS)
	$(BIN)/python -m tests.dashboards.picture

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
