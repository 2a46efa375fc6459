#!/usr/bin/env bash
# Builds the wheel of mamba.txt again, with the same bytes: requirements/mamba.sh [REPOSITORY]. REPOSITORY is a local clone of
# mamba, else GitHub's is cloned. Needs .venv with the CPU stack: another setuptools writes another name of itself.
set -euo pipefail
umask 022 # the wheel holds the modes of its files
cd "$(dirname "$0")/.."
commit=e9594ce1c732d97440f0332fdc43170a2294dbfa
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
repository=${1:-$made/clone}
[ -n "${1:-}" ] || git clone --quiet --bare https://github.com/state-spaces/mamba "$repository"
mkdir "$made/source"
git -C "$repository" archive "$commit" | tar --extract --no-same-permissions --directory "$made/source"
SOURCE_DATE_EPOCH=$(git -C "$repository" log -1 --format=%ct "$commit") MAMBA_LOCAL_VERSION=${commit::8} \
    .venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir requirements/wheels "$made/source"
(cd requirements/wheels && sha256sum ./*.whl)
