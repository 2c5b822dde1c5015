#!/bin/sh
# Generates Python from each *.proto of journal/ and coordinator/; with --check, prints stale files.
set -eu
cd "$(dirname "$0")/.."

out=.ns
if [ "${1:-}" = --check ]; then
    out=$(mktemp -d)
    trap 'rm -rf "$out"' EXIT
fi

for proto in $(cd .ns && find -L logtx/journal logtx/coordinator -name "*.proto" | sort); do
    # The root is .ns, so that generated imports read `logtx.journal...`.
    .venv/bin/python -m grpc_tools.protoc -I .ns --python_out="$out" --pyi_out="$out" \
        ".ns/$proto"
done

[ "$out" != .ns ] || exit 0
for generated in $(find "$out/logtx" -type f); do
    current=${generated#"$out"/logtx/}
    cmp -s "$generated" "$current" || stale="${stale:-} $current"
done
if [ -n "${stale:-}" ]; then
    echo "logtx: stale generated files, run 'make proto':$stale" >&2
    exit 1
fi
