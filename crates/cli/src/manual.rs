//! Shell completions and manual pages. Both are generated from the flag parser, so they match `--help`.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, roman};

use crate::args::Cli;
use crate::error::{CliError, quote_path};

const NAME: &str = "belljar";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar           add fpath+=~/.zfunc to ~/.zshrc
  belljar completions fish > ~/.config/fish/completions/belljar.fish
  eval \"$(belljar completions bash)\"                    for the current shell only";

/// Arguments of `belljar completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell to generate completions for
    shell: Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  belljar man | man -l -                                read the main page
  belljar man sandbox exec | man -l -                   read the page of a command
  belljar man --folder ~/.local/share/man/man1          install all; then: man belljar-sandbox-exec";

/// Arguments of `belljar man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Command whose page to print
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,
    /// Write the pages of all commands to this folder, which is created if missing
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    folder: Option<PathBuf>,
}

/// Prints a shell completion script.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    print(&script)
}

/// Prints a manual page, or writes all of them.
pub(crate) fn man(args: &ManArgs) -> Result<u8, CliError> {
    let mut root = Cli::command().disable_help_subcommand(true);
    // Commands know their full names only after this call.
    root.build();
    if let Some(folder) = &args.folder {
        let failed = |error| CliError::host(format!("{}: {error}", quote_path(folder)));
        fs::create_dir_all(folder).map_err(failed)?;
        write_pages(&root, folder).map_err(failed)?;
        return Ok(0);
    }
    let command = args.path.iter().try_fold(&root, |command, name| {
        let unknown = || {
            CliError::invalid(format!(
                "unknown command '{}'; list commands with: belljar help",
                args.path.join(" ")
            ))
        };
        command.find_subcommand(name).ok_or_else(unknown)
    })?;
    print(&page(command).map_err(|error| CliError::host(error.to_string()))?)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::write(folder.join(Man::new(command.clone()).get_filename()), page(command)?)?;
    command.get_subcommands().try_for_each(|part| write_pages(part, folder))
}

/// Renders the page of one command. Examples are set verbatim, unlike a page's other text.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone().after_help(Resettable::Reset));
    man.source(concat!("belljar ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    if let Some(notes) = command.get_after_help() {
        verbatim(&notes.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// Renders a verbatim section whose heading is the text's first line.
fn verbatim(notes: &str) -> Roff {
    let (heading, lines) = notes.split_once(":\n").unwrap_or(("Notes", notes));
    let mut section = Roff::new();
    section.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
    for line in lines.lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}

/// Writes to standard output. A closed pipe is not a failure, but a full disk is.
fn print(text: &[u8]) -> Result<u8, CliError> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(CliError::host(format!("standard output: {error}")))
        }
        _ => Ok(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_keep_their_lines() {
        let page = verbatim("Examples:\n  a -b   \\c\n\n.d").render();
        assert!(page.contains(".SH EXAMPLES\n.nf\n"), "{page}");
        assert!(page.contains("\n  a \\-b   \\\\c\n"), "{page}");
        assert!(page.contains("\n\\&.d\n"), "{page}");
        assert!(verbatim("Exit status: 0.").render().contains("NOTES"));
    }
}
