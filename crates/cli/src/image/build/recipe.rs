//! The recipe of an image, in two forms: arguments of a Dockerfile, and arguments of `mmdebstrap`.

use std::collections::HashMap;
use std::path::Path;

use belljar_images::ImageName;

use crate::error::CliError;

/// The Dockerfile of every image; images differ by its arguments.
const DOCKERFILE: &str = include_str!("../../../../../packaging/image/Dockerfile");
/// The script that removes what programs in a sandbox do not need, and its name in the build context.
const SLIM: &str = include_str!("../../../../../packaging/image/slim.sh");
const SLIM_NAME: &str = "slim.sh";
/// Default base image, and the Debian release that it is.
pub(super) const BASE: &str = "debian:bookworm-slim";
const SUITE: &str = "bookworm";
/// The packages that the Dockerfile installs.
const PACKAGES: [&str; 8] = [
    "passwd",
    "ca-certificates",
    "git",
    "python3",
    "python3-pip",
    "python3-pytest",
    "python3-requests",
    "nodejs",
];
/// The Dockerfile's instructions after its packages, for an imported image.
pub(super) const CHANGES: [&str; 3] = ["USER sandboxuser", "WORKDIR /workspace", "CMD [\"python3\"]"];
/// Maximum number of added packages of one kind.
const MAX_PACKAGES: usize = 200;
/// Path of the certificates inside the root while packages are fetched.
const CERTIFICATES: &str = "/tmp/certificates.pem";

/// An image to build. Its names were validated.
#[derive(Debug)]
pub(super) struct ImageRecipe {
    pub(super) name: ImageName,
    apt: Vec<String>,
    python: Vec<String>,
}

impl ImageRecipe {
    pub(super) fn new(tag: &str, apt: &[String], python: &[String]) -> Result<Self, CliError> {
        let name = ImageName::parse(tag).map_err(|error| CliError::invalid(format!("--tag: {error}")))?;
        if tag.starts_with('/') || tag.contains('@') || tag == ImageName::SEALED || tag == "host" {
            return Err(CliError::invalid("--tag: use a name such as team/tools or team/tools:2"));
        }
        // A Debian package name, optionally with a version or a release.
        check_names("--apt", apt, "+.-=~:/")?;
        // A Python package name, optionally with extras and versions.
        check_names("--install", python, "._-[],=<>!~*")?;
        Ok(Self { name, apt: apt.to_vec(), python: python.to_vec() })
    }

    /// Returns the arguments of the Dockerfile.
    pub(super) fn dockerfile_arguments(&self, base: &str) -> HashMap<String, String> {
        let all = [("BASE", base.to_owned()), ("APT", self.apt.join(" ")), ("PIP", self.python.join(" "))];
        all.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }

    /// Creates Docker's build context: an archive of the Dockerfile and its script.
    pub(super) fn build_context() -> Result<Vec<u8>, CliError> {
        let mut archive = tar::Builder::new(Vec::new());
        let packed =
            [("Dockerfile", DOCKERFILE), (SLIM_NAME, SLIM)].into_iter().try_for_each(|(name, text)| {
                let mut header = tar::Header::new_gnu();
                header.set_size(text.len() as u64);
                header.set_mode(0o644);
                archive.append_data(&mut header, name, text.as_bytes())
            });
        let packed = packed.and_then(|()| archive.into_inner());
        packed.map_err(|error| CliError::host(format!("pack the Dockerfile: {error}")))
    }

    /// Returns the arguments of `mmdebstrap`, which builds the same image from these sources as an archive on
    /// standard output. Package names contain no quotes, and `pip` runs no code of a package to install it.
    pub(super) fn mmdebstrap_arguments(
        &self,
        sources: &[String],
        certificates: Option<&Path>,
    ) -> Vec<String> {
        let include: Vec<&str> = PACKAGES.into_iter().chain(self.apt.iter().map(String::as_str)).collect();
        let mut words = vec!["--variant=apt".to_owned(), format!("--include={}", include.join(","))];
        let mut hook = |line: &str| words.push(format!("--customize-hook={line}"));
        hook("chroot \"$1\" useradd --create-home --shell /bin/bash sandboxuser");
        hook("chroot \"$1\" install -d -o sandboxuser -g sandboxuser /workspace");
        if !self.python.is_empty() {
            let mut trust = String::new();
            if let Some(path) = certificates {
                hook(&format!("upload {} {CERTIFICATES}", quoted(&path.display().to_string())));
                trust = format!("PIP_CERT={CERTIFICATES} ");
            }
            let names: Vec<String> = self.python.iter().map(|name| quoted(name)).collect();
            hook(&format!(
                "chroot \"$1\" env {trust}PIP_BREAK_SYSTEM_PACKAGES=1 python3 -m pip install --no-cache-dir \
                 --only-binary=:all: --root-user-action=ignore {}",
                names.join(" ")
            ));
            hook(&format!("rm -f \"$1\"{CERTIFICATES}"));
        }
        hook(&format!("chroot \"$1\" sh -c {} {SLIM_NAME} {}", quoted(SLIM), self.apt.join(" ")));
        words.extend([SUITE.to_owned(), "-".to_owned()]);
        words.extend(sources.iter().cloned());
        words
    }
}

/// Returns Debian's package sources, from what `apt-get indextargets` prints for this machine: lines of an
/// address and a label. If empty, `mmdebstrap` uses its defaults.
pub(super) fn package_sources(policy: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for (address, label) in policy.lines().filter_map(|line| line.trim().split_once(' ')) {
        let suites: &[&str] = match label {
            "Debian" => &["", "-updates"],
            "Debian-Security" => &["-security"],
            _ => &[],
        };
        for line in suites.iter().map(|kind| format!("deb {address} {SUITE}{kind} main")) {
            if !lines.contains(&line) {
                lines.push(line);
            }
        }
    }
    lines
}

/// Quotes a word for a shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn check_names(flag: &str, names: &[String], also: &str) -> Result<(), CliError> {
    if names.len() > MAX_PACKAGES {
        return Err(CliError::invalid(format!("{flag}: at most {MAX_PACKAGES} packages")));
    }
    let is_name = |name: &&String| {
        name.starts_with(|first: char| first.is_ascii_alphanumeric())
            && name.len() <= 200
            && name.chars().all(|c| c.is_ascii_alphanumeric() || also.contains(c))
    };
    match names.iter().find(|name| !is_name(name)) {
        None => Ok(()),
        Some(wrong) => {
            Err(CliError::invalid(format!("{flag}: '{}' is not a package name", wrong.escape_debug())))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe(apt: &[&str], python: &[&str]) -> Result<ImageRecipe, CliError> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        ImageRecipe::new("belljar/default", &owned(apt), &owned(python))
    }

    #[test]
    fn dockerfile_and_mmdebstrap_agree() {
        assert!(DOCKERFILE.contains(&format!("\nARG BASE={BASE}\nFROM ${{BASE}}\n")));
        assert!(BASE.contains(SUITE));
        for package in PACKAGES {
            assert!(DOCKERFILE.contains(&format!(" {package}")), "{package}");
        }
        for change in CHANGES {
            assert!(DOCKERFILE.contains(&format!("\n{change}\n")), "{change}");
        }
        let words = recipe(&[], &[]).unwrap().mmdebstrap_arguments(&[], None).join("\n");
        for line in ["useradd --create-home --shell /bin/bash sandboxuser", "install -d -o sandboxuser"] {
            assert!(DOCKERFILE.contains(line) && words.contains(line), "{line}");
        }
        let mut archive = Vec::new();
        let context = ImageRecipe::build_context().unwrap();
        for entry in tar::Archive::new(context.as_slice()).entries().unwrap() {
            archive.push(entry.unwrap().path().unwrap().display().to_string());
        }
        assert_eq!(archive, ["Dockerfile", "slim.sh"]);
        assert!(DOCKERFILE.contains("\nCOPY slim.sh ") && DOCKERFILE.contains("sh /tmp/slim.sh $APT"));
        assert!(words.contains(&quoted(SLIM)), "{words}");
    }

    #[test]
    fn packages_of_both_kinds_are_added() {
        let recipe = recipe(&["git", "g++=4:12.2.0-3"], &["numpy==2.*", "uvicorn[standard]>=0.3"]).unwrap();
        let arguments = recipe.dockerfile_arguments("python:3.12-slim");
        assert_eq!(arguments["BASE"], "python:3.12-slim");
        assert_eq!(arguments["APT"], "git g++=4:12.2.0-3");
        assert_eq!(arguments["PIP"], "numpy==2.* uvicorn[standard]>=0.3");
        let words = recipe
            .mmdebstrap_arguments(&["deb http://m/ bookworm main".to_owned()], Some(Path::new("/c'a.pem")));
        assert!(
            words[1].starts_with("--include=passwd,") && words[1].ends_with(",nodejs,git,g++=4:12.2.0-3")
        );
        let hooks = words.join("\n");
        assert!(hooks.contains("upload '/c'\\''a.pem' /tmp/certificates.pem\n"), "{hooks}");
        assert!(
            hooks.contains("--only-binary=:all:") && hooks.contains(" 'numpy==2.*' 'uvicorn[standard]>=0.3'")
        );
        assert_eq!(words[words.len() - 3..], ["bookworm", "-", "deb http://m/ bookworm main"]);
    }

    #[test]
    fn invalid_names_are_refused() {
        for bad in ["", "-y", "a b", "a;b", "$(x)", "a'b", "../x", "a\n", &"x".repeat(201)] {
            assert!(recipe(&[bad], &[]).unwrap_err().message.starts_with("--apt: "), "{bad}");
            assert!(recipe(&[], &[bad]).unwrap_err().message.starts_with("--install: "), "{bad}");
        }
        for bad in ["", "UPPER", "/srv/x", "sealed", "host", "x@sha256:1"] {
            assert!(ImageRecipe::new(bad, &[], &[]).unwrap_err().message.starts_with("--tag: "), "{bad}");
        }
    }

    #[test]
    fn package_sources_follow_this_machines_apt() {
        let policy = "http://m/debian/ Debian\nhttp://m/debian/ Debian\nhttp://m/security/ Debian-Security\n\
                    https://other/ Other\nhttp://m/backports/ Debian Backports\n";
        assert_eq!(
            package_sources(policy),
            [
                "deb http://m/debian/ bookworm main",
                "deb http://m/debian/ bookworm-updates main",
                "deb http://m/security/ bookworm-security main"
            ]
        );
        assert!(package_sources("").is_empty());
    }
}
