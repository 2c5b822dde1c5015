#!/bin/sh
# Writes all lock files. The build tools' lock is a subset of requirements.lock.
# Hashes only: which index to install from is up to the installing machine.
set -eu
cd "$(dirname "$0")/.."

compile() {
    .venv/bin/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}

# Pins stay as they are, except with `make lock ARGS=--upgrade`.
compile pyproject.toml make/build.in --extra local --extra etcd --extra spark --extra dev "$@" -o requirements.lock
compile make/build.in --constraints requirements.lock -o make/build.lock
# In a lock of its own: 35 MB that only a machine without Java needs.
compile make/jdk.in "$@" -o make/jdk.lock
# And 100 MB that only `make wheels` needs.
compile make/wheels.in --constraints requirements.lock "$@" -o make/wheels.lock

if grep -n -e '://' -e "$PWD" requirements.lock make/*.lock; then
    echo "logtx: the lines above name a registry or a path of this machine" >&2
    exit 1
fi
.venv/bin/python -m logtx.integration.local.jars --lock
.venv/bin/python -m logtx.benchmarks.spark.jars --lock
