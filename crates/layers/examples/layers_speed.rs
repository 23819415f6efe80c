//! Measures how fast imports are detected in a file of 1,000 lines, and whether the lookup of a layer is as
//! fast among 1,000 layers as alone.
//! `cargo run --release -p belljar-layers --example layers_speed`
#![expect(clippy::print_stdout, reason = "this example prints its results")]

use std::collections::BTreeSet;
use std::error::Error;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use belljar_analysis::imports::{
    ImportLanguage, PackageRegistry, PythonVersion, Resolver, ResolverSettings, SourceCode, detect,
};
use belljar_layers::store::{ExactPackage, LayerBounds, LayerKey, LayerRecipe, LayerScope, LayerStore};

const LINES: usize = 1_000;
const LAYERS: usize = 1_000;
const ROUNDS: usize = 2_000;

fn main() -> Result<(), Box<dyn Error>> {
    detection()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let few = runtime.block_on(look_up(1))?;
    let many = runtime.block_on(look_up(LAYERS))?;
    for (what, few, many) in [("in use", few.0, many.0), ("not in use", few.1, many.1)] {
        let ratio = many.as_secs_f64() / few.as_secs_f64();
        println!("lookup, {what}: {few:?} of 1 layer, {many:?} of {LAYERS}; ratio {ratio:.2}");
    }
    Ok(())
}

/// Measures detection on functions with imports, some of them optional.
fn detection() -> Result<(), Box<dyn Error>> {
    let mut code = String::from("import numpy as np\nfrom sklearn.linear_model import LinearRegression\n");
    let mut number = 0;
    while code.lines().count() < LINES {
        number += 1;
        let module = ["requests", "yaml", "bs4", "PIL.Image", "pandas"][number % 5];
        writeln!(code, "def step_{number}(rows, key='a'):\n    import {module}")?;
        writeln!(code, "    table = {{row[key]: [len(str(value)) for value in row] for row in rows}}")?;
        writeln!(code, "    return sorted(table.items(), key=lambda pair: pair[1])\n")?;
    }
    let settings = ResolverSettings::default();
    let (local, python) = (BTreeSet::new(), PythonVersion::default());
    let times = sorted(|| {
        let source = SourceCode { code: &code, language: ImportLanguage::Python, python, local: &local };
        let found = detect(source).unwrap_or_default();
        std::hint::black_box(Resolver::new(PackageRegistry::Pypi, &settings).resolve(&found, &[]));
    });
    let (lines, bytes) = (code.lines().count(), code.len());
    println!("detection, {lines} lines, {bytes} bytes: median {:?}, p99 {:?}", median(&times), p99(&times));
    Ok(())
}

/// Returns the median lookup times of a layer in use, and of an unused layer that is already verified.
async fn look_up(layers: usize) -> Result<(Duration, Duration), Box<dyn Error>> {
    let folder = tempfile::tempdir()?;
    let bounds = LayerBounds { layers: u64::MAX, ..LayerBounds::default() };
    let store = LayerStore::open(&folder.path().join("shelf"), bounds, Arc::new(|_| {}))?;
    let mut keys: Vec<LayerKey> = Vec::new();
    for number in 0..layers {
        let stage = store.stage()?;
        std::fs::write(stage.files().join("module.py"), number.to_string())?;
        keys.push(store.publish(stage, recipe(number)).await?.key());
    }
    let key = keys[layers / 2];
    let mut times = [Vec::new(), Vec::new()];
    for _ in 0..ROUNDS {
        let start = Instant::now();
        let held = store.find(&key).await?;
        times[1].push(start.elapsed());
        let start = Instant::now();
        std::hint::black_box(store.find(&key).await?);
        times[0].push(start.elapsed());
        drop(held);
    }
    times.iter_mut().for_each(|times| times.sort());
    Ok((median(&times[0]), median(&times[1])))
}

fn recipe(number: usize) -> LayerRecipe {
    let package =
        ExactPackage { name: format!("package-{number}"), version: "1.0".to_owned(), hashes: Vec::new() };
    LayerRecipe {
        registry: "https://pypi.org/simple".to_owned(),
        packages: vec![package],
        interpreter: "cpython-3.12".to_owned(),
        platform: "x86_64-linux-gnu".to_owned(),
        options: Vec::new(),
        scope: LayerScope::Shared,
    }
}

fn sorted(mut work: impl FnMut()) -> Vec<Duration> {
    let timed = |_| {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    let mut times: Vec<_> = (0..ROUNDS / 10).map(timed).collect();
    times.sort();
    times
}

fn median(times: &[Duration]) -> Duration {
    times[times.len() / 2]
}

fn p99(times: &[Duration]) -> Duration {
    times[times.len() * 99 / 100]
}
