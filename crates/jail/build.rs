//! Compiles the shared objects that are loaded into warm interpreters: small, without the standard library,
//! from the crate `belljar-zygote`. They are embedded in the binary.

use std::path::{Path, PathBuf};
use std::process::Command;

const SOURCES: &str = "../zygote/src";

fn main() {
    println!("cargo::rerun-if-changed={SOURCES}");
    if variable("CARGO_CFG_TARGET_OS") != "linux" {
        return;
    }
    let out = PathBuf::from(variable("OUT_DIR"));
    let library = out.join("libbelljar_zygote.rlib");
    compile("belljar_zygote", "rlib", "lib.rs", &library, &[]);
    let mut options =
        vec!["-C".to_owned(), "strip=symbols".to_owned(), "-C".to_owned(), "lto=fat".to_owned()];
    options.extend(["--extern".to_owned(), format!("belljar_zygote={}", library.display())]);
    options.extend(linker(&variable("TARGET"), &variable("HOST")).iter().map(|&option| option.to_owned()));
    for (name, root) in [("python", "python/module.rs"), ("node", "node/addon.rs")] {
        compile(name, "cdylib", root, &out.join(format!("{name}.so")), &options);
    }
}

fn compile(name: &str, crate_type: &str, root: &str, output: &Path, options: &[String]) {
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition", "2024", "--crate-type", crate_type, "--crate-name", name]);
    rustc.args(["--target", &variable("TARGET"), "-C", "panic=abort", "-C", "opt-level=2"]);
    if std::env::var_os("CARGO_FEATURE_FAULTS").is_some() {
        rustc.args(["--cfg", "feature=\"faults\""]);
    }
    rustc.args(options).arg(Path::new(SOURCES).join(root)).arg("-o").arg(output);
    let status = rustc.status().expect("rustc can be started");
    assert!(status.success(), "{root} does not compile: {rustc:?}");
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_default()
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
