# Runs steps, counts what they did, and says so in the end. Sourced by `./test`.

PASSED=0
FAILED=0
SKIPPED=()
SKIPPED_HERE=0
LOGS="$TARGET/test-logs"

# step NAME COMMAND…: one thing that passes or fails; its output is shown when it fails.
step() {
    local name=$1
    shift
    if logged "$name" "$@"; then
        PASSED=$((PASSED + 1))
    else
        FAILED=$((FAILED + 1))
    fi
}

# tests NAME COMMAND…: the same for a command that runs many tests and reports each binary's count.
tests() {
    local name=$1 status=0 log passed failed
    shift
    logged "$name" "$@" || status=$?
    log=$(log_of "$name")
    read -r passed failed < <(counts "$log")
    # A command that failed with no failed test did not get that far.
    if ((status != 0 && failed == 0)); then
        failed=1
    fi
    take_skips "$log"
    echo "    $((passed - SKIPPED_HERE)) passed, $failed failed, $SKIPPED_HERE skipped"
    PASSED=$((PASSED + passed - SKIPPED_HERE))
    FAILED=$((FAILED + failed))
}

# A test that misses something prints `skipped: WHY`, and has passed as far as its harness knows.
take_skips() {
    local log=$1 line
    SKIPPED_HERE=0
    while IFS= read -r line; do
        SKIPPED+=("${line#skipped: }")
        SKIPPED_HERE=$((SKIPPED_HERE + 1))
    done < <(grep -o 'skipped: .*' "$log" | sort -u)
    while IFS= read -r line; do
        SKIPPED+=("${line/ ... ignored/: ignored}")
    done < <(sed -n 's/^test \(.* \.\.\. ignored.*\)/\1/p' "$log")
}

skip() {
    SKIPPED+=("$1: $2")
    echo "==> $1 … skipped: $2"
}

log_of() {
    echo "$LOGS/${1//[^a-z0-9]/-}.log"
}

logged() {
    local name=$1 log start=$SECONDS
    shift
    log=$(log_of "$name")
    mkdir -p "$LOGS"
    printf '==> %s … ' "$name"
    if "$@" >"$log" 2>&1 </dev/null; then
        echo "ok, $((SECONDS - start)) s"
        return
    fi
    echo "FAILED, $((SECONDS - start)) s"
    why "$log" | tail -n 200 | sed 's/^/    /'
    return 1
}

# Of many tests, what those said that failed; of anything else, how its output ends.
why() {
    if grep -q '^---- .* stdout ----$' "$1" && grep -q '^failures:$' "$1"; then
        awk '/^failures:$/ { shown = 1 } shown; /^test result: / { shown = 0 }' "$1"
    else
        cat "$1"
    fi
}

# Sums lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
counts() {
    awk '/^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
        }
    } END { print passed + 0, failed + 0 }' "$1"
}

summary() {
    echo
    if ((${#SKIPPED[@]})); then
        echo "Skipped:"
        printf '  %s\n' "${SKIPPED[@]}"
    fi
    echo "$PASSED passed, $FAILED failed, ${#SKIPPED[@]} skipped"
    ((FAILED == 0))
}
