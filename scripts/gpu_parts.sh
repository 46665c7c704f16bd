#!/bin/sh
# Runs the parts of `make gpu-check` and `make gpu-bench`, each in a separate process. Parts that fail or take longer
# than $LIMIT seconds are named at the end; all others leave their files under $OUT. $PARTS selects parts.
set -u

failed=
part() {
    name=$1
    shift
    case " ${PARTS:-$name} " in *" $name "*) ;; *) return ;; esac
    echo "== $name"
    timeout "$LIMIT" "$@" || failed="$failed $name(code $?)"
}

check() {
    # -W default: warnings of libraries on an unknown machine should be read, but must not fail a test.
    part tests "$BIN/python" -m pytest -m gpu -rs -W default --timeout "$LIMIT" tests/engine/test_gpu.py
    # shellcheck disable=SC2086  # one word a file
    part kernels "$BIN/python" -m pytest -rs -W default --timeout "$LIMIT" $TRITON_TESTS
    for each in attention graphs speculation soak; do
        part "$each" "$BIN/aerie" probe gpu-check $CONFIG --only "$each" --json "$OUT/check-$each.json" $OPTIONS
    done
}

bench() {
    for each in plain speculation attention kernels; do
        part "$each" "$BIN/aerie" probe gpu-bench $CONFIG --only "$each" --out "$OUT" $OPTIONS
    done
    part pair "$BIN/python" scripts/gpu_pair.py --json "$OUT/pair.json" $PAIR
}

"$BIN/python" scripts/gpu_ready.py || exit 1
case $1 in
check) check ;;
bench) bench ;;
*) echo "aerie: parts are check and bench" >&2 && exit 2 ;;
esac
[ -z "$failed" ] && exit 0
echo "aerie: failed:$failed; the other parts have left their results under $OUT" >&2
exit 1
