#!/usr/bin/env bash
# The next half hour of measurements on one H200, in three parts of at most nine and a half minutes.
# results/README.md says what they are for, and which packed folders they need in packed/.
#
#     CLOZELAB_COMMIT=HASH bash tools/next_half_hour.sh 1 OUT      # or 2, or 3; OUT gets the records
#
# 1  What has not run on a GPU: values and gradients of all kernels, layers compiled in half
#    precision, and losses of whole steps in plain and in fast arithmetic. Then the speed and memory
#    of steps beside transformers, and where a step's time goes.
# 2  The rest of modern-block-untuned and mask-rate-schedule-untuned.
# 3  What is left of these, then spanbert-masking-untuned and wwm-zh-untuned.
#
# MINUTES is the time of a part. Whatever is done is in OUT at once, so that a stop loses only what
# still runs. TRY=1 tries part 1 on a CPU at the smallest sizes, with Triton's interpreter.
set -u
cd "$(dirname "$0")/.."
: "${CLOZELAB_COMMIT:?names the commit of this tree}"
mkdir -p "$2"
part=$1 out=$(cd "$2" && pwd)
python=${PYTHON:-python3} place=${PLACE:-/tmp/measured} work=$(mktemp -d)
export CLOZELAB_COMMIT PYTHONPATH=src${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
tiny=(${TRY:+--size 2x64 --sequences 4 --length 64 --steps 5})
small=(${TRY:+--size 2x64 --sequences 4})
shapes=(--size mini --steps 100 --at-once 6)
if [ -n "${TRY:-}" ]; then
    export TRITON_INTERPRET=1
    shapes=(--size tiny --steps 12 --at-once 1)
fi

unpack() { # folders, from packed/NAME.tar.xz
    mkdir -p "$place"
    for name; do
        [ -d "$place/$name" ] || tar xJf "packed/$name.tar.xz" -C "$place" || exit 1
    done
}

row() { # the words of clozelab bench for a recipe
    case $1 in
    roberta) echo roberta --size base ;;
    bert) echo bert --size base --length 128 ;;
    xlnet) echo xlnet --size base --length 512 --sequences 32 ;;
    esac
}

correct() {
    "$python" benchmarks/kernel_times.py --check --out "$out/kernels-check.json" &
    PYTHONPATH=$PYTHONPATH:$place/pytest timeout 240 "$python" -m pytest -p no:cacheprovider -n 6 \
        tests/kernels/test_fused.py >"$out/tests.txt" 2>&1 &
    timeout 240 "$python" benchmarks/curves.py --data "$place/wiki" --out "$out/curves.json" \
        xlnet roberta bert "${shapes[@]}" &
    compile
    wait
    tail -n 15 "$out/tests.txt" "$work"/compile-*.log
}

compile() { # what is measured afterwards finds all of it in the compilers' caches
    for recipe in roberta bert xlnet; do
        # shellcheck disable=SC2046
        bench "$recipe" --steps 5 >"$work/compile-$recipe.log" 2>&1 &
    done
}

bench() { # a recipe, and more options of clozelab bench
    local peer=(--against transformers)
    if [ "$1" = xlnet ]; then peer=(); fi # compiling its peer takes longer than there is time
    # shellcheck disable=SC2046
    timeout 240 "$python" -m clozelab bench $(row "$1") "${tiny[@]}" "${peer[@]}" --data "$place/wiki" "${@:2}"
}

studies() { # minutes, and the options of run_studies.py
    nvidia-cuda-mps-control -d || true
    "$python" tools/run_studies.py "${QUEUE:-results/queue.toml}" --task-data "$place/tasks" --out "$out" \
        --minutes "${MINUTES:-$1}" "${@:2}"
}

case $part in
1)
    end=$(awk "BEGIN {print int(60 * ${MINUTES:-9.3})}")
    unpack wiki pytest
    correct
    echo "== after $SECONDS s: values are compared"
    for recipe in roberta bert; do
        bench $recipe --out "$out/bench-$recipe.json"
        echo "== after $SECONDS s: $recipe"
    done
    timeout $((end - SECONDS)) "$python" benchmarks/roofline.py --data "$place/wiki" --out "$out/roofline.json" \
        --only xlnet "roberta mini" "roberta base" "bert base 128" swift deberta "${small[@]}"
    ;;
2)
    unpack wiki tasks
    studies 9.2 --corpus "$place/wiki" --side-by-side 2 \
        --only modern-block-untuned mask-rate-schedule-untuned spanbert-masking-untuned
    ;;
3)
    unpack wiki zhwiki-24mb tasks
    studies 8 --corpus "$place/wiki" "$place/zhwiki-24mb" --side-by-side 3 \
        --only modern-block-untuned mask-rate-schedule-untuned spanbert-masking-untuned wwm-zh-untuned
    ;;
*) echo "next_half_hour.sh: part 1, 2 or 3" && exit 2 ;;
esac
echo "== after $SECONDS s: done"
