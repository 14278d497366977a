#!/usr/bin/env bash
# All that only a machine with an accelerator can check, in under six minutes, as one JSON file.
#
#   benchmarks/gpu_check.sh [OUTPUT.json]       on a GPU
#   benchmarks/gpu_check.sh --dry-run           on the simulated accelerator: checks the script
#
# Needs torch with the accelerator's build and, for the tests, the packages of the `test` extra.
# PYTHON names the interpreter; default: python3.
set -euo pipefail
cd "$(dirname "$0")/.."
export PYTHONPATH="$PWD${PYTHONPATH:+:$PYTHONPATH}"
python="${PYTHON:-python3}"
if [ "${1:-}" = --dry-run ]; then
    exec timeout 360 "$python" benchmarks/gpu.py --dry-run
fi
exec timeout 360 "$python" benchmarks/gpu.py --out "${1:-${OUT:-benchmarks/results}/gpu.json}"
