#!/bin/sh
# Creates .venv with the exact versions of a lock file and the project itself, editable.
#
#   enters: python3.11 or python3.12 on PATH; PYTHON=... picks one, FORGE_LOCK=cpu|gpu a lock
#   leaves: .venv, and .venv/forgedsl.stamp with the hash of what it was made from
#
# A second call compares the stamp and installs nothing. An interrupted call is taken up where it
# stopped: half-written packages are removed first (check.py), finished ones stay.
set -eu
cd "$(dirname "$0")/.."
say() { echo "setup: $*" >&2; }
die() { say "$*"; exit 2; }

lock=${FORGE_LOCK:-cpu}
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true)
[ -n "${FORGE_LOCK:-}" ] || [ "${gpus:-0}" -eq 0 ] || lock=gpu
[ -f "requirements/$lock.txt" ] || die "no lock named \"$lock\"; FORGE_LOCK is cpu or gpu"

stamp=.venv/forgedsl.stamp
want="$lock $(cat requirements/"$lock".txt requirements/dev.txt requirements/compiled.txt \
    pyproject.toml | sha256sum) $(pwd)"
if [ -x .venv/bin/forgec ] && [ "$(cat $stamp 2>/dev/null)" = "$want" ]; then
    exit 0
fi

# 3.11 first: it is the version all published numbers were measured with.
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
        >/dev/null 2>&1
}
if [ ! -x .venv/bin/python ] || ! usable .venv/bin/python || ! .venv/bin/python -m pip --version \
    >/dev/null 2>&1; then
    python=
    for candidate in ${PYTHON:-python3.11 python3.12 python3 /usr/bin/python3}; do
        if usable "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || die "needs CPython 3.11 or 3.12 with venv and pip; looked for \
${PYTHON:-python3.11, python3.12, python3} on PATH (found: $(python3 --version 2>&1 || true)). \
On Debian and Ubuntu: apt install python3-venv. Another place: make setup PYTHON=/path/to/python3.12"
    say "new .venv with $("$python" --version) ($python)"
    rm -rf .venv
    "$python" -m venv .venv
fi

case $lock in
    gpu) say "$gpus GPU(s) found: requirements/gpu.txt" ;;
    cpu) say "no GPU found: requirements/cpu.txt" ;;
esac
doing=installing
[ ! -f $stamp ] || doing="something changed since the last set-up: checking"
count=$(cat "requirements/$lock.txt" requirements/dev.txt | grep -c ==)
say "$doing $count pinned packages (about a minute, about 3 GB; log: .venv/install.log)"
rm -f $stamp
started=$(date +%s)
.venv/bin/python requirements/check.py repair
pip() {
    .venv/bin/python -m pip install --disable-pip-version-check --no-input --no-compile \
        --progress-bar off "$@" >>.venv/install.log 2>&1 || {
        tail -n 12 .venv/install.log >&2
        die "pip failed; the whole log is .venv/install.log. Run the same command again to resume."
    }
}
: >.venv/install.log
pip --no-deps "$(grep '^uv==' requirements/dev.txt)"
# Installs the pins of files: uv does it in a tenth of pip's time.
install() {
    .venv/bin/python requirements/check.py install "$@" >>.venv/install.log 2>&1 && return
    say "uv could not install $* (see .venv/install.log); pip does it, in one to three minutes"
    for file; do set -- "$@" -r "$file"; shift; done
    pip --no-deps "$@"
}
install "requirements/$lock.txt" requirements/dev.txt
headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("include"))')
if command -v cc >/dev/null && [ -f "$headers/Python.h" ]; then
    install requirements/compiled.txt
else
    say "no C compiler with the headers of Python: requirements/compiled.txt is left out"
fi
extra=$(.venv/bin/python requirements/check.py cuda)
if [ "$lock" = cpu ] && [ -n "$extra" ]; then
    say "this torch is the CUDA build; adding the libraries it loads (see requirements/cpu.txt)"
    # shellcheck disable=SC2086  # one requirement per word
    pip $extra
fi
pip --no-deps --no-build-isolation -e .
say "compiling what a run imports"
.venv/bin/python requirements/check.py bytecode "$lock" >>.venv/install.log 2>&1
echo "$want" >$stamp
say "ready after $(($(date +%s) - started)) s"
