#!/bin/sh
# Run the C extension's tests with the sanitizers for addresses and undefined behaviour, and its
# fuzzer for half a minute. With --fuzz, run the fuzzer alone; further arguments are its own.
set -eu
cd "$(dirname "$0")/.."

cc=${CC:-cc}
asan=$("$cc" -print-file-name=libasan.so)
case "$asan" in
/*) ;;
*)
    echo "logtx: $cc has no libasan: install the sanitizers of your compiler, such as gcc's libasan." >&2
    exit 1
    ;;
esac
trap '.venv/bin/python make/native.py' EXIT
# A shell that a signal ends does not come there by itself.
trap 'exit 1' HUP INT TERM
.venv/bin/python make/native.py -fsanitize=address,undefined -fno-sanitize-recover=undefined \
    -fno-omit-frame-pointer -O1 -g

# Python itself leaves memory at its end, so what leaks is left to a test of 100,000 transactions,
# and to `make leaks`. These run without: the sanitizer keeps what was freed.
sanitized() {
    ASAN_OPTIONS=detect_leaks=0 LD_PRELOAD="$asan" PYTHONMALLOC=malloc "$@"
}

if [ "${1:-}" = --fuzz ]; then
    shift
    sanitized .venv/bin/python -m tests.journal.native.fuzz "$@"
    exit
fi
sanitized .venv/bin/pytest -q tests/journal/native tests/producer/test_counted.py \
    tests/consumer/test_columns.py tests/consumer/test_consumer.py tests/consumer/test_rebalance.py \
    tests/consumer/spill/test_store.py tests/consumer/test_ranges.py \
    -k "not nothing_is_left_of_many and not memory and not mock and not kafka and not million and not installed" "$@"
sanitized .venv/bin/python -m tests.journal.native.fuzz --seconds 30
