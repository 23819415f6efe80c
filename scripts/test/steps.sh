# Runs steps, counts what they did, and says so in the end. Sourced by `./test`.

PASSED=0
FAILED=0
SKIPPED=()
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
    local name=$1 status=0 passed failed ignored
    shift
    logged "$name" "$@" || status=$?
    read -r passed failed ignored < <(counts "$(log_of "$name")")
    # A command that failed with no failed test did not get that far.
    if ((status != 0 && failed == 0)); then
        failed=1
    fi
    echo "    $passed passed, $failed failed"
    PASSED=$((PASSED + passed))
    FAILED=$((FAILED + failed))
    local index
    for ((index = 0; index < ignored; index++)); do
        SKIPPED+=("$name: a test is marked as ignored")
    done
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
    tail -n 200 "$log" | sed 's/^/    /'
    return 1
}

# Sums lines such as `test result: ok. 3 passed; 0 failed; 1 ignored; …`.
counts() {
    awk '/^test result: / {
        for (i = 2; i <= NF; i++) {
            if ($i ~ /^passed/) passed += $(i - 1)
            if ($i ~ /^failed/) failed += $(i - 1)
            if ($i ~ /^ignored/) ignored += $(i - 1)
        }
    } END { print passed + 0, failed + 0, ignored + 0 }' "$1"
}

# A test that finds what it needs missing says so in a file, and passes as far as its harness knows.
take_skips_of_tests() {
    [[ -f $BELLJAR_TEST_SKIPS ]] || return 0
    local line
    while IFS= read -r line; do
        SKIPPED+=("$line")
        PASSED=$((PASSED - 1))
    done < <(sort -u "$BELLJAR_TEST_SKIPS")
}

summary() {
    take_skips_of_tests
    echo
    if ((${#SKIPPED[@]})); then
        echo "Skipped:"
        printf '  %s\n' "${SKIPPED[@]}"
    fi
    echo "$PASSED passed, $FAILED failed, ${#SKIPPED[@]} skipped"
    ((FAILED == 0))
}
