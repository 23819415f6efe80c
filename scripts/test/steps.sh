# Runs steps and counts their results. Sourced by `./test`.

PASSED=0
FAILED=0
SKIPPED=()
SKIPPED_HERE=0
LOGS="$TARGET/test-logs"

# step NAME COMMAND…: runs a command that counts as one test; shows its output if it fails.
step() {
    local name=$1
    shift
    if logged "$name" "$@"; then
        PASSED=$((PASSED + 1))
    else
        FAILED=$((FAILED + 1))
    fi
}

# tests NAME COMMAND…: runs a command with many tests, and adds the counts that its test binaries print.
tests() {
    local name=$1 status=0 log passed failed
    shift
    logged "$name" "$@" || status=$?
    log=$(log_of "$name")
    read -r passed failed < <(counts "$log")
    # A command that failed without a failed test counts as one failure, e.g. a compile error.
    if ((status != 0 && failed == 0)); then
        failed=1
    fi
    take_skips "$log"
    echo "    $((passed - SKIPPED_HERE)) passed, $failed failed, $SKIPPED_HERE skipped"
    PASSED=$((PASSED + passed - SKIPPED_HERE))
    FAILED=$((FAILED + failed))
}

# A test that lacks a requirement prints `skipped: REASON` and passes. Collects the reasons.
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
    failure_output "$log" | tail -n 200 | sed 's/^/    /'
    return 1
}

# Prints the output of failed tests; for other commands, the whole log.
failure_output() {
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
