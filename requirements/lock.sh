#!/usr/bin/env bash
# Makes cpu.txt, gpu.txt, puzzles.txt and dev.txt again from the .in files. Further arguments go to uv, for example
# `--find-links DIR` where torch's CPU build lies in a folder.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
head="# Complete lock: install with --no-deps. Made by requirements/lock.sh."

compile() {  # compile NAME ARGUMENTS...
    local name=$1
    shift
    "$uv" pip compile --quiet --no-header --python-version 3.11 "requirements/$name.in" "$@" >"requirements/$name.new"
    { echo "$head"; cat "requirements/$name.new"; } >"requirements/$name.txt"
    rm "requirements/$name.new"
}

compile cpu --override requirements/overrides.txt --index-strategy unsafe-best-match \
    --extra-index-url https://download.pytorch.org/whl/cpu "$@"
compile gpu "$@"
# what reasoning-gym needs and the stacks do not hold
compile puzzles "$@"
grep -E '^[a-z]' requirements/puzzles.txt >requirements/puzzles.new
{ echo "$head"; grep -vxFf <(cat requirements/cpu.txt requirements/gpu.txt) requirements/puzzles.new; } >requirements/puzzles.txt
rm requirements/puzzles.new
# without torch, which TRL names: it is the one package whose version differs between the stacks
compile dev --constraint requirements/cpu.txt --constraint requirements/gpu.txt \
    --override <(echo "torch; sys_platform == 'never'") "$@"
