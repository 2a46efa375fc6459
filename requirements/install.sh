#!/usr/bin/env bash
# Makes .venv from the lock files: the GPU stack where nvidia-smi answers, else the CPU stack (STACK=cpu|gpu decides).
# FUSED=1 adds, on the GPU stack, the one package that has to be compiled. Does nothing when .venv already holds all that.
set -euo pipefail
cd "$(dirname "$0")/.."

venv=.venv
python=$venv/bin/python
stack=${STACK:-$(nvidia-smi >/dev/null 2>&1 && echo gpu || echo cpu)}
lock=requirements/$stack.txt
dev=requirements/dev.txt
puzzles=requirements/puzzles.txt # its pycosat needs a C compiler; one environment goes without where there is none
trackers=requirements/trackers.txt     # W&B, for those who report there too
mamba=requirements/mamba.txt     # of the GPU stack
fused=requirements/fused.txt
log=$venv/setup.log # what uv, pip and compilers say
# Built from source against the installed torch, so it comes after everything else and without build isolation.
built_last='^deepspeed=='
cuda=13    # what the GPU stack's torch is built with
driver=580 # the first that runs CUDA 13 (NVIDIA, CUDA Toolkit Release Notes, table of driver versions)

fail() {
    echo "setup: $*" >&2
    exit 1
}

# The locked versions are those for this one platform. Said before anything is downloaded.
system=$(uname -s) architecture=$(uname -m)
case $system/$architecture in
    Linux/x86_64 | Linux/amd64) ;;
    *) fail "Temper runs on Linux on x86-64, and this is $system on $architecture;" \
        "set it up on such a machine, a virtual one too" ;;
esac

say_log() {
    local status=$?
    if [ $status != 0 ] && [ -s "$log" ]; then
        echo "setup: failed; the end of $log:" >&2
        tail -n 20 "$log" >&2
    fi
}
trap say_log EXIT

# Said before anything is downloaded. STACK=gpu goes on: a data centre's compatibility package may stand for the driver.
check_driver() {
    local found
    found=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) || true
    case $found in
        [0-9]*) [ "${found%%.*}" -lt "$driver" ] || return 0 ;;
        *) found="no version" ;;
    esac
    if [ -z "${STACK:-}" ]; then
        fail "torch of CUDA $cuda needs NVIDIA's driver $driver or later, nvidia-smi tells $found;" \
            "update the driver, or make setup STACK=cpu (STACK=gpu installs all the same)"
    fi
    echo "setup: torch of CUDA $cuda needs NVIDIA's driver $driver or later, nvidia-smi tells $found; STACK=gpu installs all the same" >&2
}

find_nvcc() {
    local home=${CUDA_HOME:-${CUDA_PATH:-}}
    if [ -n "$home" ]; then
        echo "$home/bin/nvcc"
    else
        command -v nvcc || echo /usr/local/cuda/bin/nvcc
    fi
}

check_nvcc() {
    local nvcc found
    nvcc=$(find_nvcc)
    found=$("$nvcc" -V 2>/dev/null | sed -nE 's/.*release ([0-9]+)\..*/\1/p') || true
    [ "$found" = "$cuda" ] ||
        fail "FUSED=1 compiles causal-conv1d, which needs the CUDA toolkit $cuda; $nvcc tells ${found:-nothing};" \
            "install that toolkit (CUDA_HOME says where), or go without: models with Mamba layers train without it too"
}

# The locks are made for these versions (lock.sh).
is_known() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3.11 python3.12 python3.13 python3}; do
        if is_known "$candidate"; then
            echo "$candidate"
            return
        fi
    done
}

# uv, from this machine or as a package, brings Python into .venv, and .venv's own pip.
fetch_python() {
    local uv
    echo "setup: no Python 3.11 to 3.13 here; uv fetches 3.11 into $venv (30 MB)"
    uv=$(command -v uv) || {
        uv=$venv/fetch/bin/uv
        python3 -m pip install --quiet --disable-pip-version-check --target "$venv/fetch" "$(grep -E '^uv==' "$dev")" ||
            fail "no Python 3.11 to 3.13 was found, and neither uv nor a Python with pip to fetch one;" \
                "install one of them, or name it: make setup PYTHON=/path/to/python3.11"
    }
    UV_PYTHON_INSTALL_DIR=$PWD/$venv/python "$uv" venv --quiet --allow-existing --seed --managed-python --python 3.11 "$venv" ||
        fail "uv could not fetch Python 3.11; install it or name it: make setup PYTHON=/path/to/python3.11"
}

make_venv() {
    local found
    if [ -x "$python" ]; then
        is_known "$python" ||
            fail "$venv is not Python 3.11 to 3.13; remove it with 'make clean' and try again"
        return
    fi
    found=$(find_python)
    if [ -z "$found" ]; then
        [ -z "${PYTHON:-}" ] || fail "PYTHON=$PYTHON is not Python 3.11, 3.12 or 3.13"
        fetch_python
        return
    fi
    "$found" -m venv "$venv" || fail "'$found -m venv' failed; on Debian and Ubuntu install python3-venv or that of the version"
}

# All versions are pinned and the locks are complete, so no installer resolves anything. uv takes a tenth of pip's time
# but does not read pip's configuration: where it finds no packages, pip does.
install() {
    UV_HTTP_RETRIES=1 "$venv/bin/uv" pip install --quiet --python "$python" --no-deps --no-build-isolation "$@" 2>>"$log" ||
        { echo "setup: uv could not install these; pip tries" >&2 && pip_install --no-build-isolation "$@"; }
}

pip_install() {
    "$python" -m pip install --quiet --disable-pip-version-check --no-deps --no-compile "$@" 2>>"$log"
}

# torch's CPU build: pip's own configuration first (a local copy), asked once and not waited for; then PyTorch's index.
install_torch() {
    local torch
    torch=$(grep -E '^torch==' "$lock")
    if "$python" -c "import importlib.metadata as m, sys; sys.exit('torch==' + m.version('torch') != '$torch')" 2>/dev/null; then
        return
    elif [ "$stack" = gpu ]; then
        install "$torch"
    elif ! log=/dev/null pip_install --retries 0 --timeout 15 "$torch"; then # a miss is no fault
        pip_install --index-url https://download.pytorch.org/whl/cpu "$torch" || fail "no source has $torch"
    fi
}

# Without bytecode an engine starts half a minute later: at first, or each time where PYTHONDONTWRITEBYTECODE is set.
# What no run imports is left out: tests, other model families, Ray's libraries above its core.
compile_bytecode() {
    local site unused
    unused='tests?/|transformers/models/(?!auto|gemma/|gpt2/|llama/|mamba|nemotron|qwen|t5/|zamba2/)|ray/(rllib|data|tune|train|serve)/'
    unused+='|(anthropic|databricks|fontTools|pip|sklearn)/'
    site=$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    "$python" -W ignore -m compileall -q -j 0 -x "site-packages/(.*/)?($unused)" "$site" >/dev/null ||
        true # some packages ship templates that are no valid Python
}

# DeepSpeed's own kernels are compiled where they first run, if at all, so no CUDA toolkit is needed to install it. Its setup
# imports MLflow, which would tell that it is used.
install_deepspeed() {
    DS_BUILD_OPS=0 DS_IGNORE_CUDA_DETECTION=1 MLFLOW_DISABLE_TELEMETRY=true install -r "$venv/built-last.txt"
}

install_fused() {
    echo "setup: causal-conv1d: a wheel that its makers built for this torch, else it is compiled, for 5 to 20 minutes" \
        "with 8 cores (an estimate; MAX_JOBS limits the compilers, which take up to 4 GB each)"
    install -r "$fused"
}

# The command `temper` in .venv/bin and the package `temper`, both of this checkout. mypy needs the link: it follows no
# editable install.
install_package() {
    rm -f "$venv"/lib/python*/site-packages/temper.pth "$venv/bin/temper"
    install --editable .
    mkdir -p .types
    ln -sfn .. .types/temper
}

[ -f "$lock" ] || fail "STACK=$stack has no lock file $lock; STACK is cpu or gpu"
fuse=no
[ "$stack" = cpu ] || [ -z "${FUSED:-}" ] || fuse=yes
stamp=$venv/installed
wanted=$(cat "$lock" "$dev" "$puzzles" "$trackers" "$mamba" requirements/install.sh | sha256sum)
base=no
if [ ! -x "$python" ] || [ "$(cat "$stamp" 2>/dev/null)" != "$wanted" ]; then
    base=yes
elif [ $fuse = no ] || cmp -s "$fused" "$venv/installed-fused"; then
    exit 0
fi

rm -f "$log"
[ "$stack" = cpu ] || check_driver
[ $fuse = no ] || check_nvcc
if [ $base = yes ]; then
    echo "setup: installing the $stack stack into $venv, several GB: minutes"
    rm -f "$venv/installed-fused"
    make_venv
    [ -x "$venv/bin/uv" ] || pip_install "$(grep -E '^uv==' "$dev")"
    install_torch
    grep -vE "$built_last|^torch==" "$lock" >"$venv/wheels.txt"
    grep -E "$built_last" "$lock" >"$venv/built-last.txt"
    install -r "$dev" -r "$venv/wheels.txt"
    install_deepspeed
    install -r "$puzzles" || echo "setup: reasoning-gym was not installed, so the environment reasoning_gym is not there" >&2
    install -r "$trackers" || echo "setup: W&B was not installed, so tracking.also can't name it" >&2
    [ "$stack" = cpu ] || install -r "$mamba"
    compile_bytecode
    install_package
    [ ! -s "$log" ] || echo "setup: what the installers warned of is in $log"
    echo "setup: the command is $venv/bin/temper; '. $venv/bin/activate' makes that 'temper'"
    echo "$wanted" >"$stamp"
fi
if [ $fuse = yes ]; then
    install_fused
    cp "$fused" "$venv/installed-fused"
fi
