#!/bin/sh
# One command for the goals' table on an H200: bench/h200.sh --mmbench PATH [--topology epd] [--only start,w1] [--dry-run]
# PYTHON names the interpreter that has torch for the GPU. bench/h200.py says what is done and what is written.
set -eu
cd "$(dirname "$0")/.."
PYTHON="${PYTHON:-python3}"
"$PYTHON" -c 'import triptych.services' 2>/dev/null ||
    "$PYTHON" -m pip install -q --no-deps --no-build-isolation -e .
exec "$PYTHON" -m bench.h200 "$@"
