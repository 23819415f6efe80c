# The groups of the second tier, each of which can run alone. Sourced by `./test`.
#
# The first tier runs small versions of these tests. BELLJAR_TEST_SIZE=full runs them at full size.

# NAME|description, in the order of `./test --all`.
GROUPS_OF_TESTS=(
    "lint|clippy with fault injection, and without the benchmark (the first tier runs the rest)"
    "docs|rustdoc without warnings"
    "cross|compile checks for another architecture and another operating system"
    "frameworks|agent frameworks that use the Python package"
    "mcp|real MCP clients"
    "clone|from a clone of the repository to a working agent"
    "survival|kill -9 of the server amid 1,000 executions, 50 times"
    "soak|100,000 mixed runs, 30 % of them abusive, without leaks"
    "timeouts|10,000 timeouts, with 4 concurrent runs per processor"
    "neighbors|an honest tenant beside a hostile one, for each kind of abuse"
    "hangups|10,000 clients that disconnect during a request"
    "fuzz|wire frames, paths, archives, bodies and policies, 5 minutes each"
    "fuzz_jail|messages of launcher, builder, zygote and child, 5 minutes each"
    "docker|Docker and gVisor: conformance and the escape suite"
    "vm|cgroup v2 and clock jumps, in a virtual machine"
    "licenses|licenses and sources of dependencies"
)

list_groups() {
    local entry name
    for entry in "${GROUPS_OF_TESTS[@]}"; do
        name=${entry%%|*}
        printf '  %-12s %s\n' "$name" "${entry#*|}"
        printf '  %-12s   %s\n' "" "$(last_pass "$name")"
    done
}

# Prints the id of the tree that is tested; nothing if it has changes that are not committed.
tested_tree() {
    [[ -n $(git status --porcelain 2>&1) ]] || git rev-parse 'HEAD^{tree}'
}

# Records that a group passed on this tree.
record_pass() {
    local tree
    tree=$(tested_tree)
    mkdir -p "$TARGET/test-groups"
    echo "${tree:-uncommitted} $(date -u +%F)" >"$TARGET/test-groups/$1"
}

# Says where a group last passed.
last_pass() {
    local tree date
    if ! read -r tree date 2>/dev/null <"$TARGET/test-groups/$1"; then
        echo "not passed yet"
    elif [[ $tree == "$(tested_tree)" ]]; then
        echo "passed on this tree, $date"
    else
        echo "passed on another tree ($tree), $date"
    fi
}

group_names() {
    printf '%s\n' "${GROUPS_OF_TESTS[@]%%|*}"
}

# Exits if a name is not a group.
check_groups() {
    local name
    for name in "$@"; do
        if ! group_names | grep -qxF -- "$name"; then
            echo "unknown group '$name'; ./test --groups lists all groups" >&2
            exit 2
        fi
    done
}

# Builds the debug binary, which some groups run without cargo.
build_for_groups() {
    step "build" suite survival --no-run
}

# suite NAME [OPTION…]: runs one integration test of the workspace, or of the one crate that has it. Cargo selects the
# features of dependencies by the packages on the command line: with the same ones as the first tier, nothing is
# compiled a second time.
suite() {
    cargo test --workspace --test "$@"
}

full_size() {
    BELLJAR_TEST_SIZE=full "$@"
}

group_lint() {
    step "clippy, without the benchmark" cargo clippy --quiet -p belljar --no-default-features -- -D warnings
    step "clippy, fault injection" cargo clippy --quiet -p belljar --features faults --all-targets -- -D warnings
}

group_docs() {
    RUSTDOCFLAGS="-D warnings" step "documentation" cargo doc --quiet --workspace --no-deps
}

group_cross() {
    compiles_for aarch64-unknown-linux-gnu
    compiles_for aarch64-apple-darwin
}

# Everything compiles for another architecture; every crate but the jail for another operating system.
compiles_for() {
    if rustup target add "$1" >/dev/null 2>&1; then
        step "compiles for $1" check_for "$1"
    else
        skip "compiles for $1" "its standard library could not be installed: rustup target add $1"
    fi
}

# SQLite is C, but nothing is linked here, so `true` can stand in for the C compiler.
check_for() {
    local name=${1//-/_}
    env "CC_$name=true" "AR_$name=true" "RANLIB_$name=true" cargo check --quiet -p belljar --target "$1"
}

group_frameworks() {
    tests "agent frameworks" scripts/test/python frameworks "$BELLJAR_TEST_PACKAGES" "$TARGET/debug/belljar"
}

group_mcp() {
    step "MCP clients" scripts/test/mcp run "$BELLJAR_TEST_PACKAGES" "$TARGET/debug/belljar"
}

group_clone() {
    tests "from a clone to an agent" env CARGO_TARGET_DIR="$TARGET" \
        scripts/test/python clone "$BELLJAR_TEST_PACKAGES" "$TARGET/debug/belljar"
}

group_survival() {
    # This test binary accepts only one filter.
    local filter
    for filter in killed many_sandboxes a_process_left; do
        tests "survival, $filter" full_size suite survival -- --show-output "$filter"
    done
}

group_soak() {
    tests "soak, server" full_size suite survival --release -- --show-output executions_of_every_kind
    tests "soak, command line" full_size suite leaks --release -- --show-output
}

group_timeouts() {
    tests "timeouts" full_size suite survival -- --show-output time_outs
}

group_neighbors() {
    tests "neighbors" full_size suite survival -- --show-output an_honest_tenant
}

group_hangups() {
    tests "clients that disconnect" full_size suite survival -- --show-output clients_that_hang_up
}

group_fuzz() {
    local crate
    for crate in belljar-guest belljar-engine belljar-analysis; do
        tests "fuzz, $crate" full_size cargo test -p "$crate" --lib -- --show-output fuzz_
    done
}

group_fuzz_jail() {
    tests "fuzz, belljar-jail" full_size cargo test -p belljar-jail --lib -- --show-output fuzz_
}

group_docker() {
    local filter
    for filter in docker gvisor; do
        tests "conformance, $filter" suite conformance -- "$filter"
    done
    tests "escape suite, docker" suite escape -- docker
}

group_vm() {
    if [[ -x scripts/vm/run ]]; then
        step "virtual machine" scripts/vm/run
    else
        skip "virtual machine" "scripts/vm/run is missing"
    fi
}

group_licenses() {
    step "cargo-deny" install_cargo_deny
    licenses
}
