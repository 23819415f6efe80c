//! Runs a workload as a plain command: the bare control, and other isolation tools.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use belljar_engine::plan::WORKSPACE;

use crate::error::{BenchError, quote_path};
use crate::sample::Sample;
use crate::workload::{CodeSample, Workload};

/// Placeholder for the folder with the code, in the words of a command.
pub(crate) const FOLDER: &str = "{folder}";

/// A command that runs a workload.
#[derive(Debug, Clone)]
pub(crate) struct CommandBench {
    pub(crate) name: &'static str,
    pub(crate) words: Vec<String>,
    /// The whole environment; `None` inherits belljar's own.
    pub(crate) env: Option<Vec<(String, String)>>,
    pub(crate) file: &'static str,
    /// Folder that holds one code folder per worker.
    pub(crate) place: PathBuf,
}

impl CommandBench {
    /// Creates the control: the environment and command line of a cold sandbox, without the sandbox.
    pub(crate) fn control(probed: &str, workload: &Workload, place: &Path) -> Result<Self, BenchError> {
        let (environment, command) = probed.split_once("\0\0").ok_or_else(|| {
            BenchError::machine(format!(
                "{}: the probe printed something unexpected: {probed:?}",
                workload.name
            ))
        })?;
        let variables = environment.split('\0').filter_map(|entry| entry.split_once('='));
        let words = command.split_terminator('\0').map(|word| match word.strip_prefix(WORKSPACE) {
            Some(rest) => format!("{FOLDER}{rest}"),
            None => word.to_owned(),
        });
        Ok(Self {
            name: "bare",
            words: words.collect(),
            env: Some(variables.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()),
            file: workload.file,
            place: place.to_owned(),
        })
    }

    /// Runs a code sample. Writes its file first, then measures from `posix_spawn` to the end of both
    /// outputs.
    pub(crate) fn run_once(&self, worker: usize, piece: &CodeSample) -> Result<Sample, BenchError> {
        let mut command = self.command(worker, piece).map_err(|error| self.failure(&error.to_string()))?;
        let started = Instant::now();
        let output = command.output();
        let took = started.elapsed();
        let output = output.map_err(|error| self.failure(&error.to_string()))?;
        check(&output, piece).map_err(|why| self.failure(&why))?;
        Ok(Sample { took, warmth: None })
    }

    /// Checks that the command works here at all, within a bounded time.
    pub(crate) fn try_once(&self, piece: &CodeSample) -> Result<(), String> {
        let mut command = self.command(0, piece).map_err(|error| error.to_string())?;
        check(&output_with_timeout(&mut command)?, piece)
    }

    fn command(&self, worker: usize, piece: &CodeSample) -> io::Result<Command> {
        let folder = self.place.join(worker.to_string());
        fs::create_dir_all(&folder)?;
        fs::write(folder.join(self.file), &piece.code)?;
        let folder_name = folder.to_string_lossy();
        let mut words = self.words.iter().map(|word| word.replace(FOLDER, &folder_name));
        let mut command = Command::new(words.next().unwrap_or_default());
        command.args(words).current_dir(&folder).stdin(Stdio::null());
        if let Some(env) = &self.env {
            command.env_clear().envs(env.iter().cloned());
        }
        // Ctrl-C must reach only belljar: a run that it killed would look like a failure.
        command.process_group(0);
        Ok(command)
    }

    fn failure(&self, why: &str) -> BenchError {
        let program = self.words.first().map(Path::new).map(quote_path).unwrap_or_default();
        BenchError::machine(format!(
            "{} run of {program} failed: {why}; start the benchmark again",
            self.name
        ))
    }
}

fn check(output: &Output, piece: &CodeSample) -> Result<(), String> {
    if output.status.success() && output.stdout == piece.answer.as_bytes() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let line = said.lines().rev().find(|line| !line.trim().is_empty());
    Err(line
        .map_or_else(|| format!("{}, with unexpected output", output.status), |line| line.trim().to_owned()))
}

const COMMAND_TIMEOUT: Duration = Duration::from_secs(20);

/// Runs a command with little output, within a bounded time.
pub(crate) fn output_with_timeout(command: &mut Command) -> Result<Output, String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let end = Instant::now() + COMMAND_TIMEOUT;
    while !has_ended(&mut child)? {
        if Instant::now() >= end {
            // The command may exit just now by itself; either way it is reaped below.
            let _killed = child.kill();
            let _waited = child.wait();
            return Err(format!("no answer within {} seconds", COMMAND_TIMEOUT.as_secs()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().map_err(|error| error.to_string())
}

fn has_ended(child: &mut Child) -> Result<bool, String> {
    child.try_wait().map(|status| status.is_some()).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::WORKLOADS;

    #[test]
    fn the_control_uses_the_sandboxs_command_and_environment() {
        let probed = "PATH=/usr/bin\0A=b=c\0\0/usr/bin/python3\0/workspace/main.py\0";
        let control = CommandBench::control(probed, &WORKLOADS[0], Path::new("/tmp/x")).unwrap();
        assert_eq!(control.words, ["/usr/bin/python3", "{folder}/main.py"]);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(control.env, Some(vec![pair("PATH", "/usr/bin"), pair("A", "b=c")]));
        assert!(CommandBench::control("nothing", &WORKLOADS[0], Path::new("/")).is_err());
    }
}
