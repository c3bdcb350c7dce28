#!/bin/sh
# Creates .venv-site with the exact versions of site.txt and the project itself, editable.
#
#   enters: python3.11 or python3.12 on PATH, or PYTHON=...
#   leaves: .venv-site, and .venv-site/stamp with the hash of what it was made from
#
# The site needs no torch: 45 MB are downloaded, and a second call installs nothing.
set -eu
cd "$(dirname "$0")/.."
say() { echo "site: $*" >&2; }

want="$(cat requirements/site.txt pyproject.toml | sha256sum) $(pwd)"
[ "$(cat .venv-site/stamp 2>/dev/null)" != "$want" ] || exit 0
usable() {
    "$1" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' \
        >/dev/null 2>&1
}
rm -f .venv-site/stamp
if ! { [ -x .venv-site/bin/python ] && usable .venv-site/bin/python; }; then
    python=
    for candidate in ${PYTHON:-python3.11 python3.12 python3 /usr/bin/python3}; do
        if usable "$candidate"; then python=$candidate; break; fi
    done
    [ -n "$python" ] || { say "needs CPython 3.11 or 3.12 with venv and pip"; exit 2; }
    rm -rf .venv-site
    "$python" -m venv .venv-site
fi
say "installing $(grep -c == requirements/site.txt) pinned packages (log: .venv-site/install.log)"
: >.venv-site/install.log
pip() {
    .venv-site/bin/python -m pip install --disable-pip-version-check --no-input --no-deps \
        --progress-bar off "$@" >>.venv-site/install.log 2>&1 || {
        tail -n 12 .venv-site/install.log >&2
        say "pip failed; the whole log is .venv-site/install.log"
        exit 2
    }
}
pip -r requirements/site.txt
pip --no-build-isolation -e .
echo "$want" >.venv-site/stamp
