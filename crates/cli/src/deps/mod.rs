//! `belljar deps`: shows the packages that code needs, and manages the layer store. `detect` only reads code:
//! it runs and installs nothing.

mod layer_store;
mod lock;
mod prepare;
pub(crate) mod settings;
mod show;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use belljar_analysis::imports::{
    DetectedImports, ImportLanguage, PackageRegistry, PackageResolution, PythonVersion, Requirement,
    Resolver, ResolverSettings, SourceCode, UnresolvedName, detect,
};
use clap::{Args, Subcommand};

use crate::config::Config;
use crate::env::Environment;
use crate::error::{CliError, quote_path};
use crate::{input, language};

use layer_store::LayerCommand;

const EXAMPLES: &str = "\
Examples:
  belljar deps detect job.py                            packages that a file imports
  belljar deps detect -c 'import cv2, yaml'             packages that a line of Python imports
  belljar deps detect - --language ts < job.ts          packages of code from standard input
  belljar deps detect job.py --dep 'acme-sdk==2.1'      add a package that is not imported by name
  belljar deps detect requirements.txt                  also pyproject.toml, package.json, locks
  belljar deps detect job.py --json                     print JSON

Exit status: 0; 1 when a package is unknown or refused; 125 when the code could not be read.";

/// Arguments of `belljar deps`.
#[derive(Debug, Args)]
pub(crate) struct DepsArgs {
    #[command(subcommand)]
    command: DepsCommand,
}

#[derive(Debug, Subcommand)]
enum DepsCommand {
    /// Shows the packages that code needs, and why, without running or installing anything
    #[command(after_help = EXAMPLES)]
    Detect(DetectArgs),
    /// Installs the packages that code needs, so that running it does not have to
    #[command(after_help = prepare::EXAMPLES)]
    Prepare(prepare::PrepareArgs),
    /// Locks profiles' Python packages to exact versions and hashes, and installs them
    #[command(after_help = lock::EXAMPLES)]
    Lock(lock::LockArgs),
    #[command(flatten)]
    Layers(LayerCommand),
}

impl DepsArgs {
    pub(crate) fn json(&self) -> bool {
        match &self.command {
            DepsCommand::Detect(args) => args.json,
            DepsCommand::Prepare(args) => args.json(),
            DepsCommand::Lock(args) => args.json(),
            DepsCommand::Layers(command) => command.json(),
        }
    }
}

#[derive(Debug, Args)]
struct DetectArgs {
    /// File with the code, or a package list such as requirements.txt; '-' reads code from standard input
    #[arg(value_name = "FILE")]
    source: Option<PathBuf>,
    /// Code to analyze, given inline; Python unless --language is set
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true, conflicts_with = "source")]
    code: Option<OsString>,
    /// Language of the code [default: by file extension or #! line]
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Add a package that the code needs
    #[arg(long = "dep", value_name = "NAME", allow_hyphen_values = true)]
    packages: Vec<String>,
    /// File or folder beside the code, whose modules are not packages
    #[arg(long = "file", value_name = "SRC[:DEST]")]
    files: Vec<String>,
    /// Python version whose standard library applies, 3.8 to 3.14
    #[arg(long, value_name = "3.X", default_value = "3.12", value_parser = parse_python)]
    python: PythonVersion,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

fn parse_python(text: &str) -> Result<PythonVersion, String> {
    PythonVersion::parse(text).ok_or_else(|| "write a version from 3.8 to 3.14".to_owned())
}

/// The packages that code needs.
#[derive(Debug)]
struct Detected {
    registry: PackageRegistry,
    /// Whether the code has syntax errors, so that imports may have been missed.
    broken: bool,
    answer: PackageResolution,
}

/// Runs the given subcommand.
pub(crate) fn run(args: DepsArgs, environment: &Environment, config: Config) -> Result<u8, CliError> {
    match args.command {
        DepsCommand::Detect(args) => run_detect(&args, &config.dependencies),
        DepsCommand::Prepare(args) => prepare::run(args, environment, &config),
        DepsCommand::Lock(args) => lock::run(&args, environment, &config),
        DepsCommand::Layers(command) => layer_store::run(&command, &config.layers),
    }
}

/// Finds the imports, resolves them to packages and prints these.
fn run_detect(args: &DetectArgs, settings: &ResolverSettings) -> Result<u8, CliError> {
    let detected = match args.source.as_deref().and_then(manifest_name) {
        Some((path, name)) => detect_in_manifest(path, name, args, settings)?,
        None => detect_in_code(args, settings)?,
    };
    if args.json {
        show::json(&detected)
    } else {
        show::text(&detected)
    }
    Ok(u8::from(detected.answer.unresolved.iter().any(UnresolvedName::is_fatal)))
}

fn manifest_name(path: &Path) -> Option<(&Path, &str)> {
    let name = path.file_name()?.to_str()?;
    Requirement::parse_manifest(name, "").map(|_| (path, name))
}

fn detect_in_manifest(
    path: &Path,
    name: &str,
    args: &DetectArgs,
    settings: &ResolverSettings,
) -> Result<Detected, CliError> {
    let text = utf8(input::code(path)?)?;
    let listed = Requirement::parse_manifest(name, &text).into_iter().collect::<Result<Vec<_>, _>>();
    let mut given = listed.map_err(|error| CliError::invalid(error.to_string()))?.concat();
    let npm = ["package.json", "package-lock.json", "bun.lock"].contains(&name);
    let registry = if npm { PackageRegistry::Npm } else { PackageRegistry::Pypi };
    given.extend(packages(args, registry)?);
    let answer = Resolver::new(registry, settings).resolve(&DetectedImports::default(), &given);
    Ok(Detected { registry, broken: false, answer })
}

fn detect_in_code(args: &DetectArgs, settings: &ResolverSettings) -> Result<Detected, CliError> {
    let (code, language) = code(args)?;
    let registry = language.registry();
    let given = packages(args, registry)?;
    let local: BTreeSet<String> = args.files.iter().filter_map(|file| importable_name(file)).collect();
    let found = detect(SourceCode { code: &code, language, python: args.python, local: &local })
        .map_err(|error| CliError::invalid(error.to_string()))?;
    let answer = Resolver::new(registry, settings).resolve(&found, &given);
    Ok(Detected { registry, broken: found.broken, answer })
}

fn code(args: &DetectArgs) -> Result<(String, ImportLanguage), CliError> {
    let (bytes, guess) = match (&args.source, &args.code) {
        (Some(path), _) => {
            let bytes = input::code(path)?;
            let guess = language::detect(path, &bytes);
            (bytes, guess.map(|language| language.name).ok_or_else(|| unknown_language(path)))
        }
        (None, Some(code)) => (code.as_encoded_bytes().to_vec(), Ok("python")),
        (None, None) => {
            return Err(CliError::invalid("no code given: pass a FILE, '-' for standard input, or -c CODE"));
        }
    };
    let name = match &args.language {
        Some(name) => belljar_engine::language::Language::from_name(name)?.name,
        None => guess?,
    };
    let language = ImportLanguage::from_name(name).ok_or_else(|| {
        CliError::invalid(format!("cannot find imports of {name}; supported: python, javascript, typescript"))
    })?;
    Ok((utf8(bytes)?, language))
}

fn unknown_language(path: &Path) -> CliError {
    CliError::invalid(format!(
        "cannot tell the language of {}; add --language, for example --language python",
        quote_path(path)
    ))
}

fn utf8(bytes: Vec<u8>) -> Result<String, CliError> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to() + 1;
        CliError::invalid(format!("code: not UTF-8 (byte {at}); save it as UTF-8"))
    })
}

fn packages(args: &DetectArgs, registry: PackageRegistry) -> Result<Vec<Requirement>, CliError> {
    let parse = |text: &String| {
        Requirement::parse(registry, text).map_err(|error| CliError::invalid(format!("--dep: {error}")))
    };
    args.packages.iter().map(parse).collect()
}

/// Returns the top-level name that a file beside the code can be imported as: the first part of its
/// destination path.
fn importable_name(file: &str) -> Option<String> {
    let destination = match file.rsplit_once(':') {
        Some((_, destination)) => destination,
        None => Path::new(file).file_name()?.to_str()?,
    };
    destination.split('/').find(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}
