//! `belljar deps lock`: resolves profiles' Python packages to exact versions and hashes, which every run then
//! uses.

use std::collections::BTreeMap;
use std::path::PathBuf;

use belljar_engine::Error;
use belljar_engine::packages::PackageNeeds;
use belljar_engine::plan::Image;
use belljar_engine::profile::Profile;
use belljar_layers::{Library, LockChange};
use clap::Args;
use serde_json::{Value, json};

use crate::config::Config;
use crate::env::Environment;
use crate::error::CliError;
use crate::table::table_with;
use crate::view::ProgressView;
use crate::{say, wire};

pub(super) const EXAMPLES: &str = "\
Examples:
  belljar deps lock                                     lock every profile that is not locked yet
  belljar deps lock --profile data --upgrade            update profile 'data' to the newest versions
  belljar deps lock --folder /var/lib/belljar/layers    lock profiles of a server
  belljar deps lock --dep numpy --dep pandas            lock a profile that is only on the server

Exit status: 0; 125 when no set of packages fits. A lock that cannot be updated stays as it is.";

#[derive(Debug, Args)]
pub(super) struct LockArgs {
    /// Profile to lock [default: every profile with Python packages]
    #[arg(long, value_name = "NAME")]
    profile: Option<String>,
    /// Package of a profile that is on a server and not in belljar.toml; repeat for all of its Python
    /// packages
    #[arg(long = "dep", value_name = "NAME", conflicts_with = "profile")]
    packages: Vec<String>,
    /// Resolve the packages again, even if they are locked
    #[arg(long)]
    upgrade: bool,
    /// Layer store; a server's is 'layers' in its data folder [default: dependencies.folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

impl LockArgs {
    pub(super) fn json(&self) -> bool {
        self.json
    }
}

pub(super) fn run(args: &LockArgs, environment: &Environment, config: &Config) -> Result<u8, CliError> {
    let profiles = selected_profiles(args, config)?;
    let folder = config.layers.folder(args.folder.as_deref())?;
    let changes = wire::with_library(folder, config, environment, async |library| {
        let mut changes = BTreeMap::new();
        for (name, profile) in profiles {
            changes.insert(name, lock(library, &profile, args).await?);
        }
        Ok(changes)
    })?;
    show(&changes, args.json);
    Ok(0)
}

/// Returns the profiles to lock. Profiles that came with the code have no lock, because their packages count
/// as a request's own.
fn selected_profiles(args: &LockArgs, config: &Config) -> Result<Vec<(String, Profile)>, CliError> {
    if !args.packages.is_empty() {
        let profile = Profile { packages: args.packages.clone(), ..Profile::default() };
        return Ok(vec![("(named)".to_owned(), profile)]);
    }
    let Some(name) = &args.profile else {
        let all = config
            .profiles
            .iter()
            .filter(|(_, profile)| !profile.came_with_code && !profile.packages.is_empty());
        return Ok(all.map(|(name, profile)| (name.to_owned(), profile.clone())).collect());
    };
    let profile = config.profiles.get(name)?.clone();
    if profile.came_with_code {
        return Err(CliError::invalid(format!(
            "profile '{}' is from belljar.toml in the current folder, which is not trusted, so it cannot be \
             locked; run with --config belljar.toml if you trust that file",
            name.escape_debug()
        )));
    }
    Ok(vec![(name.clone(), profile)])
}

async fn lock(library: &Library, profile: &Profile, args: &LockArgs) -> Result<LockChange, Error> {
    let needs = PackageNeeds {
        profile_packages: &profile.packages,
        allow_build: profile.build_packages,
        ..PackageNeeds::new(belljar_engine::admit::DEFAULT_TENANT, &Image::Host)
    };
    Ok(library.lock_profile(needs, args.upgrade, &mut ProgressView::new(args.json)).await?)
}

/// Returns every package of either lock, with its version before and after.
fn rows(change: &LockChange) -> BTreeMap<&str, (Option<&str>, Option<&str>)> {
    let mut rows: BTreeMap<&str, (Option<&str>, Option<&str>)> = BTreeMap::new();
    for one in &change.before {
        rows.entry(&one.name).or_default().0 = Some(&one.version);
    }
    for one in &change.now {
        rows.entry(&one.name).or_default().1 = Some(&one.version);
    }
    rows
}

fn show(changes: &BTreeMap<String, LockChange>, json: bool) {
    if json {
        let of = |change: &LockChange| {
            let row = |(name, (before, now))| json!({"name": name, "before": before, "now": now});
            Value::from(rows(change).into_iter().map(row).collect::<Vec<_>>())
        };
        let profiles: BTreeMap<_, _> = changes.iter().map(|(name, change)| (name, of(change))).collect();
        return say::answer(&json!({"profiles": profiles}).to_string());
    }
    let mut table = table_with(["PROFILE", "PACKAGE", "BEFORE", "NOW", "CHANGE"]);
    for (profile, change) in changes {
        for (name, (before, now)) in rows(change) {
            let what = match (before, now) {
                (None, _) => "added",
                (_, None) => "removed",
                (before, now) if before == now => "same",
                _ => "changed",
            };
            let cells = [Some(profile.as_str()), Some(name), before, now, Some(what)];
            table.add_row(cells.map(|cell| say::printable(cell.unwrap_or("-"))));
        }
    }
    match table.row_count() {
        0 => say::answer("No profile has Python packages to lock."),
        _ => say::answer(&table.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>().join("\n")),
    }
}
