//! `belljar deps prepare`: installs the layer that a run would need, and prints its packages.

use std::ffi::OsString;
use std::path::PathBuf;

use belljar_engine::packages::{PackageNeeds, PackageResolver, ProvidedPackages};
use belljar_engine::plan::{Image, InputFile};
use belljar_engine::{Error, language::Language};
use clap::Args;
use serde_json::json;

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::view::ProgressView;
use crate::{input, language, say, wire};

pub(super) const EXAMPLES: &str = "\
Examples:
  belljar deps prepare job.py                           install what job.py imports
  belljar deps prepare --dep numpy --dep 'pandas>=2'    install Python packages
  belljar deps prepare --dep npm:zod --dep npm:express  install JavaScript packages
  belljar deps prepare job.py --json                    print JSON

Exit status: 0; 125 when the packages cannot be installed.";

#[derive(Debug, Args)]
pub(super) struct PrepareArgs {
    /// File with the code, or a package list such as requirements.txt
    #[arg(value_name = "FILE")]
    source: Option<PathBuf>,
    /// Code to analyze, given inline; Python unless --language is set
    #[arg(short = 'c', value_name = "CODE", allow_hyphen_values = true, conflicts_with = "source")]
    code: Option<OsString>,
    /// Language of the code [default: by file extension or #! line]
    #[arg(long, value_name = "LANGUAGE")]
    language: Option<String>,
    /// Install a package; prefix 'npm:' for a JavaScript package
    #[arg(long = "dep", value_name = "NAME")]
    packages: Vec<String>,
    /// Also install this profile's packages; it may allow building them from source
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl PrepareArgs {
    pub(super) fn json(&self) -> bool {
        self.json
    }
}

/// The code, files and packages named on the command line.
struct PrepareTarget {
    language: Option<&'static Language>,
    code: Option<String>,
    files: Vec<InputFile>,
    packages: Vec<String>,
}

pub(super) fn run(args: PrepareArgs, environment: &Environment, config: &Config) -> Result<u8, CliError> {
    let json = args.json;
    let profile = config.profiles.of_request(args.profile.as_deref())?;
    let wanted = parse_target(args)?;
    let folder = config.layers.folder(None)?;
    let prepared = wire::with_library(folder, config, environment, async |library| {
        let mut packages = wanted.packages.clone();
        // Packages of an untrusted profile are never part of the profile's own layer.
        let standing: &[String] = match profile.came_with_code {
            true => {
                packages.extend(profile.packages.iter().cloned());
                &[]
            }
            false => &profile.packages,
        };
        let needs = PackageNeeds {
            language: wanted.language,
            detect: true,
            code: wanted.code.as_deref(),
            files: &wanted.files,
            packages: &packages,
            profile_packages: standing,
            allow_build: profile.build_packages,
            ..PackageNeeds::new(belljar_engine::admit::DEFAULT_TENANT, &Image::Host)
        };
        let prepared = library.prepare(needs, &mut ProgressView::new(json)).await;
        Ok(prepared.map_err(Error::from)?)
    })?;
    show(&prepared, json);
    Ok(0)
}

fn parse_target(args: PrepareArgs) -> Result<PrepareTarget, CliError> {
    let has_more = args.profile.is_some();
    let mut wanted = PrepareTarget { language: None, code: None, files: Vec::new(), packages: args.packages };
    if let Some(name) = &args.language {
        wanted.language = Some(Language::from_name(name)?);
    }
    match (args.source, args.code) {
        (Some(path), _) => {
            let content = input::code(&path)?;
            match super::manifest_name(&path) {
                Some((_, name)) => {
                    wanted.files.push(InputFile { path: name.to_owned(), mode: 0o644, content });
                }
                None => {
                    let guess = language::detect(&path, &content);
                    wanted.language =
                        Some(wanted.language.or(guess).ok_or_else(|| super::unknown_language(&path))?);
                    wanted.code = Some(super::utf8(content)?);
                }
            }
        }
        (None, Some(code)) => {
            wanted.language = Some(wanted.language.map_or_else(|| Language::from_name("python"), Ok)?);
            wanted.code = Some(super::utf8(code.into_encoded_bytes())?);
        }
        (None, None) if wanted.packages.is_empty() && !has_more => {
            return Err(CliError::invalid(
                "nothing to prepare: pass a FILE, -c CODE, --dep NAME or --profile NAME",
            ));
        }
        (None, None) => {}
    }
    Ok(wanted)
}

fn show(prepared: &ProvidedPackages, json: bool) {
    if json {
        let layers: Vec<_> = prepared.layers.iter().map(|layer| &layer.source).collect();
        let object = json!({
            "packages": prepared.packages,
            "cache": prepared.cache,
            "install_ms": prepared.install_time.as_millis() as u64,
            "layers": layers,
            "findings": prepared.findings,
        });
        return say::answer(&object.to_string());
    }
    prepared
        .findings
        .iter()
        .for_each(|finding| say::warning(&format!("{}; {}", finding.message, finding.suggestion)));
    if prepared.packages.is_empty() {
        return say::answer("No packages needed.");
    }
    prepared.packages.iter().for_each(|package| say::answer(&say::printable(package)));
}
