#!/usr/bin/env bash
# The next half hour of measurements on one H200, in three parts of at most nine and a half minutes.
# results/README.md says what they are for, and which packed folders they need in packed/.
#
#     CLOZELAB_COMMIT=HASH bash tools/next_half_hour.sh 1 OUT      # or 2, or 3; OUT gets the records
#
# 1  The rest of bert-tasks and bert-masking-untuned, and unchanged-tokens.
# 2  The same, continued.
# 3  The speed of steps: since attention sums the gradient of its bias, with CUDA graphs, and since
#    another process prepares the steps. The first two rows are measured beside transformers.
#
# MINUTES is the time of a part. Whatever is done is in OUT at once, so that a stop loses only what
# still runs. TRY=1 tries part 3 on a CPU at the smallest sizes.
set -u
cd "$(dirname "$0")/.."
: "${CLOZELAB_COMMIT:?names the commit of this tree}"
mkdir -p "$2"
part=$1 out=$(cd "$2" && pwd)
python=${PYTHON:-python3} place=${PLACE:-/tmp/measured} work=$(mktemp -d)
export CLOZELAB_COMMIT PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
tiny=(${TRY:+--size 2x64 --sequences 4 --length 64 --steps 5})
peer=(--against transformers)

unpack() { # folders, from packed/NAME.tar.xz
    mkdir -p "$place"
    for name; do
        [ -d "$place/$name" ] || tar xJf "packed/$name.tar.xz" -C "$place" || exit 1
    done
}

# Name and words of clozelab bench, in the order in which they are measured.
rows=(
    "roberta roberta --size base ${peer[*]}"
    "bert bert --size base --length 128 ${peer[*]}"
    "xlnet xlnet --size base --length 512 --sequences 32"
    "mini roberta --size mini --sequences 512 --length 128"
    "swift swift --sequences 512"
    "large bert --size large --length 512"
    "large-graphs bert --size large --length 512 --graphs"
)

bench() { # a row, and more options
    local name words
    read -r name words <<<"$1"
    if [ -n "${TRY:-}" ]; then words=${words/--graphs/}; fi # which a CPU does not have
    # shellcheck disable=SC2086
    timeout 240 "$python" -m clozelab bench $words ${tiny[@]+"${tiny[@]}"} --data "$place/wiki" "${@:2}"
}

test_kernels() { # what no GPU has run: the gradient of the bias, and products added in place
    PYTHONPATH=$PYTHONPATH:$place/pytest timeout 240 "$python" -m pytest -p no:cacheprovider -n 4 -q \
        tests/kernels -k "bias or in_place or plain_layers or half_precision" >"$out/tests.txt" 2>&1
}

compile() { # some at a time: the measurements find all of it in the compilers' caches
    for row in "${rows[@]}"; do
        while [ "$(jobs -rp | wc -l)" -ge 4 ]; do wait -n; done
        bench "$row" --steps 5 >>"$work/compile.log" 2>&1 &
    done
    wait
}

studies() { # minutes, and the options of run_studies.py
    nvidia-cuda-mps-control -d || true
    "$python" tools/run_studies.py "${QUEUE:-results/queue.toml}" --task-data "$place/tasks" --out "$out" \
        --minutes "${MINUTES:-$1}" "${@:2}"
}

case $part in
1 | 2)
    unpack wiki tasks
    studies 9.4 --corpus "$place/wiki" --side-by-side 2 \
        --only bert-masking-untuned unchanged-tokens bert-tasks
    ;;
3)
    end=$(awk "BEGIN {print int(60 * ${MINUTES:-9})}")
    unpack wiki pytest
    test_kernels &
    compile
    tail -n 15 "$out/tests.txt" "$work/compile.log"
    echo "== after $SECONDS s: compiled"
    for row in "${rows[@]}"; do
        ((SECONDS + 95 < end)) || break # and 50 s for the roofline
        bench "$row" --out "$work/${row%% *}.json" || continue
        tar cf "$out/bench.tar" -C "$work" --exclude compile.log .
        echo "== after $SECONDS s: ${row%% *}"
    done
    timeout $((end > SECONDS ? end - SECONDS : 1)) "$python" benchmarks/roofline.py --data "$place/wiki" \
        --out "$out/roofline.json" --only "roberta base" ${TRY:+--size 2x64 --sequences 4}
    ;;
*) echo "next_half_hour.sh: part 1, 2 or 3" && exit 2 ;;
esac
echo "== after $SECONDS s: done"
