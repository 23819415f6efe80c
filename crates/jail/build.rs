//! Compiles the shared objects that are loaded into warm interpreters: small, without the standard library,
//! from `src/bare`. They are embedded in the binary.

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=src/bare");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    for name in ["python", "node"] {
        let mut rustc = Command::new(variable("RUSTC"));
        rustc.args(["--edition", "2024", "--crate-type", "cdylib", "--crate-name", name]);
        rustc.args(["--target", &variable("TARGET"), "-C", "panic=abort", "-C", "opt-level=2"]);
        rustc.args(["-C", "strip=symbols", "-C", "lto=fat", "-A", "warnings"]);
        rustc.args(linker(&variable("TARGET"), &variable("HOST")));
        if std::env::var_os("CARGO_FEATURE_FAULTS").is_some() {
            rustc.args(["--cfg", "feature=\"faults\""]);
        }
        rustc.arg(format!("src/bare/{name}.rs")).arg("-o").arg(out.join(format!("{name}.so")));
        let status = rustc.status().expect("rustc can be started");
        assert!(status.success(), "src/bare/{name}.rs does not compile: {rustc:?}");
    }
}

/// Returns the linker options. No library is linked, so the linker bundled with rustc is enough when
/// cross-compiling.
fn linker(target: &str, host: &str) -> &'static [&'static str] {
    if target == host {
        // Resolves symbols when the object is loaded; lazy binding would resolve them again in every forked
        // child.
        &["-C", "link-args=-nostdlib -Wl,-z,now"]
    } else {
        &["-C", "linker=rust-lld", "-C", "linker-flavor=ld.lld", "-C", "link-args=-z now"]
    }
}
