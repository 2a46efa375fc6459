#!/usr/bin/env bash
# Makes .venv from the lock files: the GPU stack where nvidia-smi answers, else the CPU stack (STACK=cpu|gpu decides).
# Does nothing when .venv already holds what the lock files say.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
python=$venv/bin/python
stack=${STACK:-$(nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)}
lock=requirements/$stack.txt
dev=requirements/dev.txt
puzzles=requirements/puzzles.txt # its pycosat needs a C compiler; one environment goes without where there is none
# Built from source against the installed torch, so they come after everything else and without build isolation.
built_last='^(deepspeed|mamba-ssm|causal-conv1d)=='

fail() {
    echo "setup: $*" >&2
    exit 1
}

find_python() {
    local candidate
    for candidate in "${PYTHON:-python3.11}" python3; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    fail "Python 3.11 is needed and was not found; install it or name it: make setup PYTHON=/path/to/python3.11"
}

make_venv() {
    local found
    if [ -x "$python" ]; then
        "$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
            fail "$venv is not Python 3.11; remove it with 'make clean' and try again"
        return
    fi
    found=$(find_python)
    "$found" -m venv "$venv" || fail "'$found -m venv' failed; on Debian and Ubuntu install python3.11-venv"
}

# All versions are pinned and the locks are complete, so no installer resolves anything. uv takes a tenth of pip's time
# but does not read pip's configuration: where it finds no packages, pip does.
install() {
    UV_HTTP_RETRIES=1 "$venv/bin/uv" pip install --quiet --python "$python" --no-deps --no-build-isolation "$@" ||
        { echo "setup: uv could not install these; pip tries" >&2 && pip_install --no-build-isolation "$@"; }
}

pip_install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile "$@"
}

# torch's CPU build: pip's own configuration first (a local copy), asked once and not waited for; then PyTorch's index.
install_torch() {
    local torch
    torch=$(grep -E '^torch==' "$lock")
    if "$python" -c "import importlib.metadata as m, sys; sys.exit('torch==' + m.version('torch') != '$torch')" 2>/dev/null; then
        return
    elif [ "$stack" = gpu ]; then
        install "$torch"
    elif ! pip_install --retries 0 --timeout 15 "$torch" 2>/dev/null; then
        pip_install --index-url https://download.pytorch.org/whl/cpu "$torch" || fail "no source has $torch"
    fi
}

# Without bytecode an engine starts half a minute later: at first, or each time where PYTHONDONTWRITEBYTECODE is set.
# What no run imports is left out: tests, other model families, Ray's libraries above its core.
compile_bytecode() {
    local site unused
    unused='tests?/|transformers/models/(?!auto|mamba|nemotron|qwen3/|llama/)|ray/(rllib|data|tune|train|serve)/'
    unused+='|(anthropic|databricks|fontTools|networkx|pip|sklearn)/'
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -m compileall -q -j 0 -x "site-packages/(.*/)?($unused)" "$site" >/dev/null ||
        true # some packages ship templates that are no valid Python
}

[ -f "$lock" ] || fail "STACK=$stack has no lock file $lock; STACK is cpu or gpu"
stamp=$venv/installed
wanted=$(cat "$lock" "$dev" "$puzzles" requirements/install.sh | sha256sum)
if [ -x "$python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
    exit 0
fi

echo "setup: installing the $stack stack into $venv"
make_venv
[ -x "$venv/bin/uv" ] || pip_install "$(grep -E '^uv==' "$dev")"
install_torch
grep -vE "$built_last|^torch==" "$lock" >"$venv/wheels.txt"
grep -E "$built_last" "$lock" >"$venv/built-last.txt"
install -r "$dev" -r "$venv/wheels.txt"
DS_BUILD_OPS=0 install -r "$venv/built-last.txt"
install -r "$puzzles" || echo "setup: reasoning-gym was not installed, so the environment reasoning_gym is not there" >&2
compile_bytecode
echo "$wanted" >"$stamp"
