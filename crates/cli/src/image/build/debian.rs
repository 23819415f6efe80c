//! Builds images from Debian packages with `mmdebstrap`, without a registry. Needs root, or subordinate ids
//! for the user.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use belljar_engine::provider::Sink;

use super::log::BuildLog;
use super::recipe::{ImageRecipe, package_sources};
use crate::error::CliError;

/// Arguments that make `apt-get` print the package sources of this machine.
const ASK_APT: [&str; 5] =
    ["indextargets", "--format", "$(REPO_URI) $(LABEL)", "Created-By: Packages", "Origin: Debian"];

/// Builds the image's root as an archive in an unnamed temporary file, which is removed when it is closed.
pub(super) fn root(
    recipe: &ImageRecipe,
    certificates: Option<&Path>,
    shown: &mut BuildLog,
) -> Result<File, CliError> {
    let asked = Command::new("apt-get").args(ASK_APT).stdin(Stdio::null()).stderr(Stdio::null()).output();
    let policy = asked.map(|output| String::from_utf8_lossy(&output.stdout).into_owned()).unwrap_or_default();
    let unwritable = |error| {
        CliError::host(format!(
            "create a temporary file for the image: {error}; set TMPDIR to a writable folder"
        ))
    };
    let archive = tempfile::tempfile().map_err(unwritable)?;
    let mut command = Command::new("mmdebstrap");
    command.args(recipe.mmdebstrap_arguments(&package_sources(&policy), certificates));
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command.stdout(archive.try_clone().map_err(unwritable)?);
    shown.progress("building from Debian packages");
    let mut child = command.spawn().map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => CliError::host(
            "building an image from Debian packages needs mmdebstrap, which is not installed; install it \
             (usually: sudo apt-get install mmdebstrap), or start Docker",
        ),
        _ => CliError::host(format!("mmdebstrap: {error}")),
    })?;
    if let Some(stderr) = child.stderr.take() {
        for line in BufReader::new(stderr).split(b'\n').map_while(Result::ok) {
            shown.progress(String::from_utf8_lossy(&line).trim_start_matches("I: ").trim());
        }
    }
    let status = child.wait().map_err(|error| CliError::host(format!("mmdebstrap: {error}")))?;
    if status.success() {
        return Ok(archive);
    }
    Err(CliError::host(format!(
        "mmdebstrap could not build the image ({status}); it needs a Debian mirror, and root or subordinate \
         ids (newuidmap, and a range in /etc/subuid). Its last output:\n{}",
        shown.last_lines()
    )))
}
