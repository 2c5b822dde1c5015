#!/bin/sh
# Build what an index of packages takes: the source, a wheel without the C extension for any
# platform, and one with it for each of those below, or for the one that is named as zig names it.
#
#     make/wheels.sh [FOLDER [TARGET]]
set -eu
cd "$(dirname "$0")/.."

folder=${1:-dist}
only=${2:-}
python=$PWD/.venv/bin/python

"$python" -m pip --disable-pip-version-check install --no-input --quiet --require-hashes \
    -r make/wheels.lock
rm -f "$folder"/logtx-*.whl "$folder"/logtx-*.tar.gz

# hatchling and uv are those of make/build.lock.
build() {
    .venv/bin/uv build --quiet --offline --no-build-isolation --python "$python" --out-dir "$folder" "$@"
}

# From the source that is published, so the extension of the checkout stays as it is.
wheel() {
    LOGTX_WHEEL=$2 CC="'$python' -m ziglang cc -target $1 -s" build --wheel "$folder"/logtx-*.tar.gz
}

# Says which libraries and versions of their symbols the extension needs, and fails if these are
# newer than the name promises. $1: part of the name.
check() {
    said=$("$python" -m auditwheel show "$folder"/*"$1"*.whl | tr '\n' ' ')
    case "$said" in
    *'following platform tag: "'"$1"'"'*) ;;
    *)
        echo "logtx: this is not $1: $said" >&2
        exit 1
        ;;
    esac
}

build --sdist
wheel none any
while read -r target name promised; do
    case "$only" in '' | "$target")
        wheel "$target" "$name"
        [ -z "$promised" ] || check "$promised"
        ;;
    esac
done <<END
x86_64-linux-gnu.2.17 manylinux_2_17_x86_64.manylinux2014_x86_64 manylinux_2_17_x86_64
aarch64-linux-gnu.2.17 manylinux_2_17_aarch64.manylinux2014_aarch64 manylinux_2_17_aarch64
x86_64-linux-musl musllinux_1_2_x86_64
aarch64-linux-musl musllinux_1_2_aarch64
x86_64-macos.11.0 macosx_11_0_x86_64
aarch64-macos.11.0 macosx_11_0_arm64
END
ls -l "$folder"
