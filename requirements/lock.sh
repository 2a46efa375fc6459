#!/usr/bin/env bash
# Makes cpu.txt, gpu.txt, puzzles.txt, trackers.txt and dev.txt again from the .in files. What the lock files hold stays at its version
# where the .in files allow it. Arguments go to uv, for example `--upgrade-package mlflow` or `--upgrade`. TORCH_CPU says
# where torch's CPU build is: an index, or a folder of wheels.
set -euo pipefail
cd "$(dirname "$0")/.."
uv=.venv/bin/uv
head="# Complete lock: install with --no-deps. Made by requirements/lock.sh."

compile() {  # compile NAME ARGUMENTS...
    local name=$1
    shift
    cp "requirements/$name.txt" "requirements/$name.new"
    resolve 3.11 "$name" "$@"
    { echo "$head"; cat "requirements/$name.new"; } >"requirements/$name.txt"
    local later
    for later in 3.12 3.13; do  # one lock serves them all
        [ "$name" != cpu ] || [ ! -d "$torch_cpu" ] || { echo "cpu.txt: not compared for $later, torch comes from a folder"; continue; }
        resolve "$later" "$name" "$@"
        cmp --silent <(pins "requirements/$name.txt") <(pins "requirements/$name.new") ||
            { echo "$name.txt does not serve Python $later:"; diff <(pins "requirements/$name.txt") <(pins "requirements/$name.new"); exit 1; }
    done
    rm "requirements/$name.new"
}

resolve() {  # resolve PYTHON NAME ARGUMENTS...
    "$uv" pip compile --quiet --no-header --python-version "$1" "requirements/$2.in" \
        --output-file "requirements/$2.new" "${@:3}" >/dev/null
}

leave_own() {  # leave_own NAME: what the stacks do not hold
    grep -E '^[a-z]' "requirements/$1.txt" >"requirements/$1.new"
    { echo "$head"; grep -vxFf <(cat requirements/cpu.txt requirements/gpu.txt) "requirements/$1.new"; } >"requirements/$1.txt"
    rm "requirements/$1.new"
}

pins() { grep -E '^[a-z]' "$1"; }

torch_cpu=${TORCH_CPU:-https://download.pytorch.org/whl/cpu}
case $torch_cpu in
    http*) from=(--extra-index-url "$torch_cpu" --index-strategy unsafe-best-match) ;;
    *) from=(--find-links "$torch_cpu") ;;
esac
compile cpu requirements/base.in --override requirements/overrides.txt "${from[@]}" "$@"
# installed next to reasoning-gym, which pins some versions
compile gpu requirements/base.in --constraint requirements/puzzles.txt "$@"
# what reasoning-gym needs and the stacks do not hold
grep -E '^[a-z]' requirements/cpu.txt >>requirements/puzzles.txt
compile puzzles "$@"
leave_own puzzles
# the same of W&B
compile trackers --constraint requirements/cpu.txt --constraint requirements/gpu.txt "$@"
leave_own trackers
# without torch, which TRL names: it is the one package whose version differs between the stacks
without_torch=$(mktemp)
echo "torch; sys_platform == 'never'" >"$without_torch"
compile dev --constraint requirements/cpu.txt --constraint requirements/gpu.txt \
    --override "$without_torch" "$@"
rm "$without_torch"
# what is installed together shares no file
wheels=()
[ ! -d "$torch_cpu" ] || wheels=(--find-links "$torch_cpu")
for stack in cpu gpu; do
    .venv/bin/python requirements/overlaps.py "requirements/$stack.txt" requirements/dev.txt requirements/puzzles.txt requirements/trackers.txt "${wheels[@]}"
done
