//! The command line about itself: completions for shells, and pages of a manual. Both are made from what the parser of
//! flags knows, so they say what `--help` says.

use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use clap::builder::Resettable;
use clap::{Args, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use roff::{Roff, roman};

use crate::args::Cli;
use crate::failure::{Failure, shown};

const NAME: &str = "belljar";

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  belljar completions bash > ~/.local/share/bash-completion/completions/belljar
  belljar completions zsh > ~/.zfunc/_belljar           with fpath+=~/.zfunc in ~/.zshrc
  belljar completions fish > ~/.config/fish/completions/belljar.fish
  eval \"$(belljar completions bash)\"                    for this shell only";

/// `belljar completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// Shell to write them for
    shell: Shell,
}

const MAN_EXAMPLES: &str = "\
Examples:
  belljar man | man -l -                                read the first page
  belljar man sandbox exec | man -l -                   and that of a command
  belljar man --folder ~/.local/share/man/man1          all of them: man belljar-sandbox-exec";

/// `belljar man`.
#[derive(Debug, Args)]
#[command(after_help = MAN_EXAMPLES)]
pub(crate) struct ManArgs {
    /// Command whose page to print
    #[arg(value_name = "COMMAND")]
    path: Vec<String>,
    /// Folder to write the pages of all commands to; made where there is none
    #[arg(long, value_name = "DIR", conflicts_with = "path")]
    folder: Option<PathBuf>,
}

/// Prints what a shell reads to complete our flags.
pub(crate) fn completions(args: &CompletionsArgs) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), NAME, &mut script);
    print(&script)
}

/// Prints a page of the manual, or writes all of them.
pub(crate) fn man(args: &ManArgs) -> Result<u8, Failure> {
    let mut root = Cli::command().disable_help_subcommand(true);
    // Only then do commands know their full names.
    root.build();
    if let Some(folder) = &args.folder {
        let failed = |error| Failure::host(format!("{}: {error}", shown(folder)));
        fs::create_dir_all(folder).map_err(failed)?;
        write_pages(&root, folder).map_err(failed)?;
        return Ok(0);
    }
    let command = args.path.iter().try_fold(&root, |command, name| {
        let unknown = || {
            Failure::invalid(format!("'{}' is no command; 'belljar help' lists them", args.path.join(" ")))
        };
        command.find_subcommand(name).ok_or_else(unknown)
    })?;
    print(&page(command).map_err(|error| Failure::host(error.to_string()))?)
}

fn write_pages(command: &Command, folder: &Path) -> io::Result<()> {
    fs::write(folder.join(Man::new(command.clone()).get_filename()), page(command)?)?;
    command.get_subcommands().try_for_each(|part| write_pages(part, folder))
}

/// The page of one command. Its examples are set as they are typed, which a page's usual text is not.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    let man = Man::new(command.clone().after_help(Resettable::Reset));
    man.source(concat!("belljar ", env!("CARGO_PKG_VERSION"))).render(&mut page)?;
    if let Some(said) = command.get_after_help() {
        verbatim(&said.to_string()).to_writer(&mut page)?;
    }
    Ok(page)
}

/// A section whose heading is the first line.
fn verbatim(said: &str) -> Roff {
    let (heading, lines) = said.split_once(":\n").unwrap_or(("Notes", said));
    let mut section = Roff::new();
    section.control("SH", [heading.to_uppercase().as_str()]).control("nf", []);
    for line in lines.lines() {
        section.text([roman(line)]);
    }
    section.control("fi", []);
    section
}

/// Whoever has read enough is no failure; a full disk is.
fn print(text: &[u8]) -> Result<u8, Failure> {
    let mut out = io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::host(format!("standard output: {error}")))
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
