#!/bin/sh
# Runs Spark's main tests against another version of PySpark: make/spark.sh VERSION [pytest's options].
# That version lies in the cache, and comes before the one of .venv on Python's path.
set -eu
cd "$(dirname "$0")/.."

version=$1
shift
cache=$(.venv/bin/python -c 'from logtx.integration.local.jars import cache_dir; print(cache_dir().parent)')
home=$cache/pyspark/$version
if [ ! -d "$home" ]; then
    echo "logtx: fetching PySpark $version into $home (450 MB)"
    mkdir -p "$cache/pyspark"
    part=$(mktemp -d "$cache/pyspark/part-XXXXXX")
    trap 'rm -rf "$part"' EXIT
    # Built by the tools of make/build.lock, which .venv has.
    .venv/bin/python -m pip --disable-pip-version-check install --no-input --quiet \
        --no-build-isolation --target "$part/$version" "pyspark==$version"
    mv "$part/$version" "$home"
fi

export PYTHONPATH="$home${PYTHONPATH:+:$PYTHONPATH}"
found=$(.venv/bin/python -c 'import pyspark; print(pyspark.__version__)')
[ "$found" = "$version" ] || { echo "logtx: found PySpark $found, not $version" >&2; exit 1; }
echo "logtx: PySpark $version"
set -- -q "$@"
for name in sink source data_loss subscription idempotence identity shipping; do
    set -- "$@" "tests/integration/spark/test_$name.py"
done
exec .venv/bin/pytest "$@"
