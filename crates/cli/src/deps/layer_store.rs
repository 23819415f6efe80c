//! `belljar deps list|show|prune|verify|export|import`: manages the layer store.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use belljar_engine::Fault;
use belljar_engine::quantity::{parse_bytes, parse_millis, show_bytes};
use belljar_layers::store::{
    ExactPackage, InstallerCaches, LayerKey, LayerStore, LayerStoreError, Manifest, Prune, PruneResult,
    StoreWarning,
};
use clap::{Args, Subcommand};
use serde_json::json;

use super::settings::LayerSettings;
use crate::error::{CliError, quote_path};
use crate::say;
use crate::table::{format_age, plain_table, table_text, table_with};

const PRUNE_EXAMPLES: &str = "\
Examples:
  belljar deps prune                       down to max_bytes and max_cache_bytes of [dependencies]
  belljar deps prune --to 2G               remove least recently used layers until 2 GB are left
  belljar deps prune --unused-for 168h     remove layers unused for a week
  belljar deps prune --all                 remove everything that is not in use";

const EXPORT_EXAMPLES: &str = "\
Examples:
  belljar deps export 3fd2a1 numpy.tar             write a layer to a file, for an offline machine
  belljar deps export 3fd2a1 - | ssh host 'cat > numpy.tar'";

/// Subcommands that manage layers.
#[derive(Debug, Subcommand)]
pub(super) enum LayerCommand {
    /// Lists installed layers, most recently used first
    List(LayerStoreArgs),
    /// Shows the packages and origin of a layer
    Show {
        #[command(flatten)]
        layer: LayerArg,
        #[command(flatten)]
        store: LayerStoreArgs,
    },
    /// Removes unused layers, and installer caches beyond their limit
    #[command(after_help = PRUNE_EXAMPLES)]
    Prune {
        /// Remove least recently used layers until this much is left, such as 2G
        #[arg(long, value_name = "SIZE", value_parser = parse_bytes, allow_hyphen_values = true)]
        to: Option<i64>,
        /// Remove layers unused for this long, such as 168h
        #[arg(long, value_name = "TIME", value_parser = parse_millis, allow_hyphen_values = true)]
        unused_for: Option<i64>,
        /// Remove all layers that are not in use
        #[arg(long, conflicts_with_all = ["to", "unused_for"])]
        all: bool,
        #[command(flatten)]
        store: LayerStoreArgs,
    },
    /// Verifies layers byte by byte; damaged ones are moved away and rebuilt when next needed
    #[command(after_help = "Exit status: 0; 1 when a layer is damaged; 125 when layers could not be read.")]
    Verify {
        /// Layers to verify, by name or unique prefix [default: all]
        #[arg(value_name = "LAYER")]
        layers: Vec<String>,
        #[command(flatten)]
        store: LayerStoreArgs,
    },
    /// Writes a layer to a tar file, for an offline machine
    #[command(after_help = EXPORT_EXAMPLES)]
    Export {
        #[command(flatten)]
        layer: LayerArg,
        /// File to create; '-' writes to standard output
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        store: LayerStoreArgs,
    },
    /// Installs a layer that 'export' wrote. Its content is verified against its own manifest; import only
    /// files from a source that you trust
    Import {
        /// File that 'export' wrote
        #[arg(value_name = "FILE")]
        file: PathBuf,
        #[command(flatten)]
        store: LayerStoreArgs,
    },
}

#[derive(Debug, Args)]
pub(super) struct LayerArg {
    /// Name of a layer, or a unique prefix of it
    #[arg(value_name = "LAYER")]
    layer: String,
}

#[derive(Debug, Args)]
pub(super) struct LayerStoreArgs {
    /// Layer store; a server's is 'layers' in its data folder [default: dependencies.folder]
    #[arg(long, value_name = "DIR")]
    folder: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl LayerCommand {
    fn store(&self) -> &LayerStoreArgs {
        match self {
            Self::List(store)
            | Self::Show { store, .. }
            | Self::Prune { store, .. }
            | Self::Verify { store, .. }
            | Self::Export { store, .. }
            | Self::Import { store, .. } => store,
        }
    }

    pub(super) fn json(&self) -> bool {
        self.store().json
    }
}

/// Opens the layer store and runs the subcommand.
pub(super) fn run(command: &LayerCommand, settings: &LayerSettings) -> Result<u8, CliError> {
    let args = command.store();
    let folder = settings.folder(args.folder.as_deref())?;
    let tell = Arc::new(|notice: &StoreWarning| say::warning(&notice.to_string()));
    let store = LayerStore::open(&folder, settings.bounds, tell).map_err(failure)?;
    match command {
        LayerCommand::List(_) => list(&store, args.json),
        LayerCommand::Show { layer, .. } => show(&store, &layer.layer, args.json),
        LayerCommand::Prune { to, unused_for, all, .. } => {
            let pruned = store.prune(prune_selection(settings, *to, *unused_for, *all)?).map_err(failure)?;
            let bound = if *all { 0 } else { settings.cache_bytes };
            let caches = InstallerCaches::new(&folder, settings.cache_bytes).prune(bound).map_err(failure)?;
            print_pruned(pruned, caches, args.json)
        }
        LayerCommand::Verify { layers, .. } => verify(&store, layers, args.json),
        LayerCommand::Export { layer, file, .. } => export(&store, &layer.layer, file, args.json),
        LayerCommand::Import { file, .. } => import(&store, file, args.json),
    }
}

fn failure(error: LayerStoreError) -> CliError {
    match error.fault() {
        Fault::Caller => CliError::invalid(error.to_string()),
        _ => CliError::host(error.to_string()),
    }
}

fn list(store: &LayerStore, json: bool) -> Result<u8, CliError> {
    let mut layers = store.list().map_err(failure)?;
    layers.reverse();
    if json {
        say::answer(&json!({ "layers": layers }).to_string());
        return Ok(0);
    }
    if layers.is_empty() {
        say::answer("No layers.");
        return Ok(0);
    }
    let mut table = table_with(["LAYER", "FOR", "WHOSE", "SIZE", "USED", "PACKAGES"]);
    for layer in &layers {
        let Manifest { recipe, bytes, .. } = &layer.manifest;
        table.add_row([
            short(&layer.manifest.key),
            escape(&recipe.interpreter),
            escape(&recipe.scope.to_string()),
            show_bytes(*bytes),
            format_age(layer.used_at),
            summarize_packages(&recipe.packages),
        ]);
    }
    say::answer(&table_text(&table));
    let bytes = layers.iter().map(|layer| layer.manifest.bytes).sum();
    say::answer(&format!("\n{}, {}", count_layers(layers.len() as u64), show_bytes(bytes)));
    Ok(0)
}

fn show(store: &LayerStore, name: &str, json: bool) -> Result<u8, CliError> {
    let layer = store.info(&find_layer(store, name)?).map_err(failure)?;
    if json {
        say::answer(&json!(layer).to_string());
        return Ok(0);
    }
    let Manifest { key, recipe, tree, bytes, entries, .. } = &layer.manifest;
    let mut table = plain_table();
    for (name, value) in [
        ("layer", key.to_string()),
        ("files", tree.to_string()),
        ("for", format!("{}, {}", recipe.interpreter, recipe.platform)),
        ("from", recipe.registry.clone()),
        ("options", recipe.options.join(", ")),
        ("whose", recipe.scope.to_string()),
        ("size", format!("{}, {entries} files and folders", show_bytes(*bytes))),
        ("used", format_age(layer.used_at)),
    ] {
        table.add_row([name.to_owned(), escape(&value)]);
    }
    say::answer(&table_text(&table));
    let mut table = table_with(["PACKAGE", "VERSION"]);
    for package in &recipe.packages {
        table.add_row([escape(&package.name), escape(&package.version)]);
    }
    say::answer(&format!("\n{}", table_text(&table)));
    Ok(0)
}

/// Returns which layers to prune: by the flags, else by the configured limits.
fn prune_selection(
    settings: &LayerSettings,
    to: Option<i64>,
    unused_for: Option<i64>,
    all: bool,
) -> Result<Prune, CliError> {
    let natural = |name, value: Option<i64>| {
        let value = value.map(u64::try_from).transpose();
        value.map_err(|_| CliError::invalid(format!("{name}: must not be negative")))
    };
    let (to, unused_for) = (natural("--to", to)?, natural("--unused-for", unused_for)?);
    let bounds = (to.is_none() && unused_for.is_none()).then_some(settings.bounds);
    Ok(Prune {
        to_bytes: if all { Some(0) } else { to.or(bounds.map(|bounds| bounds.bytes)) },
        to_layers: if all { Some(0) } else { bounds.map(|bounds| bounds.layers) },
        unused_for: unused_for.map(Duration::from_millis),
    })
}

fn print_pruned(pruned: PruneResult, caches: u64, json: bool) -> Result<u8, CliError> {
    let PruneResult { layers, bytes } = pruned;
    if json {
        let object = json!({ "layers": layers, "bytes": bytes, "cache_bytes": caches });
        say::answer(&object.to_string());
        return Ok(0);
    }
    let rest = match caches {
        0 => String::new(),
        caches => format!(", and {} of installer caches", show_bytes(caches)),
    };
    say::answer(&format!("Removed {}, {}{rest}.", count_layers(layers), show_bytes(bytes)));
    Ok(0)
}

fn verify(store: &LayerStore, names: &[String], json: bool) -> Result<u8, CliError> {
    let keys: Vec<LayerKey> = match names {
        [] => store.keys().map_err(failure)?,
        names => names.iter().map(|name| find_layer(store, name)).collect::<Result<_, _>>()?,
    };
    let (mut whole, mut damaged) = (Vec::new(), Vec::new());
    for key in keys {
        match store.verify(&key) {
            Ok(_) => whole.push(key),
            Err(LayerStoreError::Damaged { why, .. }) => damaged.push(json!({ "layer": key, "why": why })),
            // Removed by another process meanwhile.
            Err(LayerStoreError::NotFound(_)) => {}
            Err(error) => return Err(failure(error)),
        }
    }
    if json {
        say::answer(&json!({ "whole": whole, "damaged": damaged }).to_string());
    } else {
        // Damaged layers were reported one by one.
        let damaged = damaged.len();
        let rest = if damaged == 0 { String::new() } else { format!(", {damaged} damaged and moved away") };
        say::answer(&format!("{} intact{rest}", count_layers(whole.len() as u64)));
    }
    Ok(u8::from(!damaged.is_empty()))
}

fn export(store: &LayerStore, name: &str, file: &Path, json: bool) -> Result<u8, CliError> {
    let key = find_layer(store, name)?;
    if file == Path::new("-") {
        let to = BufWriter::new(io::stdout().lock());
        return store.export(&key, to).map(|_| 0).map_err(failure);
    }
    let to = File::create_new(file).map_err(|error| unwritable(file, &error))?;
    let mut to = BufWriter::new(to);
    let written = store.export(&key, &mut to).map_err(failure);
    let synced = to.flush().and_then(|()| to.get_ref().sync_all()).map_err(|error| unwritable(file, &error));
    match written.and_then(|manifest| synced.map(|()| manifest)) {
        Ok(manifest) => print_layer(&manifest, &format!("Wrote layer {key} to {}.", quote_path(file)), json),
        Err(failure) => {
            // A partial archive is useless.
            let _ = std::fs::remove_file(file);
            Err(failure)
        }
    }
}

fn import(store: &LayerStore, file: &Path, json: bool) -> Result<u8, CliError> {
    let failed = |error| CliError::invalid(format!("cannot read {}: {error}", quote_path(file)));
    let from = BufReader::new(File::open(file).map_err(failed)?);
    let held = store.import(from).map_err(failure)?;
    print_layer(held.manifest(), &format!("Imported layer {}.", held.key()), json)
}

fn print_layer(manifest: &Manifest, sentence: &str, json: bool) -> Result<u8, CliError> {
    match json {
        true => say::answer(&json!(manifest).to_string()),
        false => {
            say::answer(&format!("{sentence} It contains {}.", summarize_packages(&manifest.recipe.packages)))
        }
    }
    Ok(0)
}

fn unwritable(file: &Path, error: &io::Error) -> CliError {
    match error.kind() {
        io::ErrorKind::AlreadyExists => CliError::invalid(format!(
            "{} already exists; choose another name, or remove it",
            quote_path(file)
        )),
        _ => CliError::host(format!("cannot write {}: {error}", quote_path(file))),
    }
}

/// Finds the layer whose name starts with `name`.
fn find_layer(store: &LayerStore, name: &str) -> Result<LayerKey, CliError> {
    let keys = store.keys().map_err(failure)?;
    let mut fitting = keys.into_iter().filter(|key| !name.is_empty() && key.to_string().starts_with(name));
    match (fitting.next(), fitting.next()) {
        (Some(key), None) => Ok(key),
        (Some(_), Some(_)) => {
            Err(CliError::invalid(format!("several layers start with '{name}'; give more of the name")))
        }
        (None, _) => Err(CliError::invalid(format!(
            "no layer '{}'; list layers with: belljar deps list",
            name.escape_debug()
        ))),
    }
}

fn short(key: &LayerKey) -> String {
    key.to_string().chars().take(12).collect()
}

/// Escapes a name; names in an imported layer may contain anything.
fn escape(text: &str) -> String {
    say::printable(text)
}

/// Lists the first packages, and how many more there are.
fn summarize_packages(packages: &[ExactPackage]) -> String {
    const FIRST: usize = 3;
    let mut names: Vec<_> = packages
        .iter()
        .take(FIRST)
        .map(|package| escape(&format!("{} {}", package.name, package.version)))
        .collect();
    if packages.len() > FIRST {
        names.push(format!("and {} more", packages.len() - FIRST));
    }
    names.join(", ")
}

fn count_layers(layers: u64) -> String {
    if layers == 1 { "1 layer".to_owned() } else { format!("{layers} layers") }
}
