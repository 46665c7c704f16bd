#!/bin/sh
# Runs what `make gpu-check` and `make gpu-bench` are made of, each part in a process of its own: what fails or takes longer
# than $LIMIT seconds is named at the end, and the others have run and left their files under $OUT. $PARTS chooses some.
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
    # -W default: what libraries warn of on a machine that nobody has seen is to be read, not to end a test.
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
