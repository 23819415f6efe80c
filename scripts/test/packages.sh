# Installs what the tests need: system, Python and Node.js packages. Sourced by `./test`.

# COMMAND-OR-FILE:DEBIAN-PACKAGE
FIRST_TIER=(
    /usr/bin/python3:python3
    bash:bash
    node:nodejs
    npm:npm
    ruby:ruby
    perl:perl
    php:php-cli
    lua:lua5.4
    gcc:gcc
    g++:g++
    /usr/include/stdio.h:libc6-dev
    git:git
    curl:curl
    openssl:openssl
    newuidmap:uidmap
    busybox:busybox-static
    docker-registry:docker-registry
    setpriv:util-linux
    strace:strace
)
SECOND_TIER=(
    Rscript:r-base-core
    go:golang-go
    rustc:rustc
    javac:default-jdk-headless
    debootstrap:debootstrap
    mmdebstrap:mmdebstrap
    dockerd:docker.io
    runsc:runsc
)

require_rust() {
    local wanted found
    wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
    found=$(cargo --version 2>/dev/null | awk '{ print $2 }') || true
    if [[ -z $found || $(printf '%s\n' "$wanted" "$found" | sort -V | head -1) != "$wanted" ]]; then
        echo "Rust $wanted or later is needed${found:+ (this is $found)}; https://rustup.rs says how to install it:" >&2
        echo "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh" >&2
        exit 1
    fi
    if ! cargo fmt --version &>/dev/null || ! cargo clippy --version &>/dev/null; then
        rustup component add rustfmt clippy
    fi
}

install_packages() {
    local wanted=("${FIRST_TIER[@]}")
    if ((ALL)); then
        wanted+=("${SECOND_TIER[@]}")
    fi
    system_packages "${wanted[@]}"
    prepared "Python packages" python_packages
    prepared "Node.js packages" node_packages
    prepared "uv and bun" installers
    prepared "schemathesis" scripts/test/schemathesis install "$BELLJAR_TEST_PACKAGES"
    prepared "tools for the Python package" scripts/test/python install "$BELLJAR_TEST_PACKAGES"
    if ((ALL)); then
        prepared "newer Node.js" newer_node
        prepared "unpacked root" unpacked_root
        prepared "S3 server" s3_server
        prepared "SDKs of remote services" service_sdks
        prepared "MCP clients" scripts/test/mcp install "$BELLJAR_TEST_PACKAGES"
    fi
}

# A failed installation is not a failed test: the tests that need it are skipped.
prepared() {
    logged "$@" || echo "    the tests that need them will be skipped"
}

system_packages() {
    local entry missing=()
    # Some are in sbin, which is not on the PATH of ordinary users.
    local PATH=$PATH:/usr/sbin:/sbin
    for entry in "$@"; do
        command -v "${entry%:*}" >/dev/null || [[ -e ${entry%:*} ]] || missing+=("${entry##*:}")
    done
    python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
    if ((${#missing[@]} == 0)); then
        return
    fi
    if ! command -v apt-get >/dev/null; then
        echo "==> system packages … apt-get is missing; please install: ${missing[*]}"
    elif ((EUID == 0)); then
        prepared "system packages (${missing[*]})" apt_install "${missing[@]}"
    elif command -v sudo >/dev/null && { sudo -n true 2>/dev/null || { [[ -t 0 ]] && sudo -v; }; }; then
        prepared "system packages (${missing[*]})" apt_install "${missing[@]}"
    else
        echo "==> system packages … please run: apt-get install --no-install-recommends ${missing[*]}"
    fi
}

as_root() {
    if ((EUID == 0)); then "$@"; else sudo -n "$@"; fi
}

apt_install() {
    local apt=(as_root env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=300)
    "${apt[@]}" update
    "${apt[@]}" install --yes --no-install-recommends "$@"
}

# A virtual environment for the tests; a complete one is kept.
python_packages() {
    local venv="$BELLJAR_TEST_PACKAGES/venv"
    if ! "$venv/bin/python3" -c 'import numpy, pandas, matplotlib' 2>/dev/null; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python3" -m pip install --quiet numpy pandas matplotlib
    fi
}

# An S3 server, for tests of the shared layer cache.
s3_server() {
    local venv="$BELLJAR_TEST_PACKAGES/s3"
    if [[ ! -x $venv/bin/moto_server ]]; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python3" -m pip install --quiet 'moto[s3,server]==5.*'
    fi
}

# The official SDKs of remote services.
service_sdks() {
    local venv="$BELLJAR_TEST_PACKAGES/remote"
    if ! "$venv/bin/python3" -c 'import e2b, agentrun' 2>/dev/null; then
        rm -rf "$venv"
        python3 -m venv "$venv"
        "$venv/bin/python3" -m pip install --quiet 'e2b==2.*' 'agentrun-sdk==0.0.*'
    fi
}

# Fast package installers: only the uv and bun binaries, without the packages they come in.
installers() (
    local folder="$BELLJAR_TEST_PACKAGES/installers" around
    mkdir -p "$folder"
    around=$(mktemp -d)
    trap 'rm -rf "$around"' EXIT
    if [[ ! -x $folder/uv ]]; then
        python3 -m venv "$around/venv"
        "$around/venv/bin/python3" -m pip install --quiet uv
        cp "$around/venv/bin/uv" "$folder/uv"
    fi
    if [[ ! -x $folder/bun ]]; then
        npm install --no-audit --no-fund --ignore-scripts --prefix "$around" bun
        cp "$(find "$around/node_modules/@oven" -path '*/bin/bun' | head -1)" "$folder/bun"
    fi
)

node_packages() (
    local wanted=(express sharp)
    if ((ALL)); then
        wanted+=(bun)
    fi
    mkdir -p "$BELLJAR_TEST_PACKAGES/node"
    cd "$BELLJAR_TEST_PACKAGES/node"
    local package
    for package in "${wanted[@]}"; do
        if [[ ! -d node_modules/$package ]]; then
            [[ -f package.json ]] || echo '{"private": true}' >package.json
            npm install --no-audit --no-fund "${wanted[@]}"
            return
        fi
    done
)

# A Node.js that runs TypeScript directly; distributions still ship older ones.
newer_node() {
    local folder="$BELLJAR_TEST_PACKAGES/newer-node"
    if [[ ! -x $folder/node_modules/node/bin/node ]]; then
        mkdir -p "$folder"
        npm install --no-audit --no-fund --prefix "$folder" node@24
    fi
}

# A small Debian root, for `--image DIR`.
unpacked_root() {
    local root="$BELLJAR_TEST_PACKAGES/root" suite
    [[ ! -x $root/usr/bin/node ]] || return 0
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-stable}")
    as_root env PATH="$PATH:/usr/sbin:/sbin" debootstrap --variant=minbase --include=python3,nodejs "$suite" "$root.new" &&
        as_root rm -rf "$root" && as_root mv "$root.new" "$root"
}

install_cargo_deny() {
    command -v cargo-deny >/dev/null || cargo install --locked cargo-deny
}
