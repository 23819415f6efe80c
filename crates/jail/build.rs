//! Compiles what is loaded into warm interpreters: small shared objects without the standard library, from
//! `src/bare`. They become part of the binary.

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
        let status = rustc.status().expect("the compiler that compiles this starts");
        assert!(status.success(), "src/bare/{name}.rs does not compile: {rustc:?}");
    }
}

/// No library is linked, so for another processor the linker that comes with the compiler will do.
fn linker(target: &str, host: &str) -> &'static [&'static str] {
    if target == host {
        // Every name is looked up when the object is loaded: lazily, it would be looked up in each child anew.
        &["-C", "link-args=-nostdlib -Wl,-z,now"]
    } else {
        &["-C", "linker=rust-lld", "-C", "linker-flavor=ld.lld", "-C", "link-args=-z now"]
    }
}
