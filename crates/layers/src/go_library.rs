//! Go's standard library, compiled once for each toolchain, as a layer that all tenants share.
//!
//! The layer is a build cache (`GOCACHE`) with nothing but the standard library in it. Only the toolchain of the
//! image writes it, in a sandbox without a tenant's code. A layer of an image that the operator does not control
//! is used with that image only. Without the layer, a build compiles what it needs of the library.

use std::collections::BTreeMap;
use std::time::Instant;

use belljar_engine::language::Language;
use belljar_engine::packages::{GO_LIBRARY, PackageLayer, PackageNeeds, PackagesError, Progress};
use belljar_engine::plan::{Image, WORKSPACE};

use crate::explain::end_of;
use crate::library::{Library, PreparedPackages};
use crate::store::{LayerOrigin, LayerRecipe, LayerScope, ObtainedLayer};

/// Compiles the standard library.
const PROGRAM: &str = include_str!("probes/library.go");
/// Its file in the folder that becomes the layer; removed before it does.
const PROGRAM_FILE: &str = "library.go";

impl Library {
    /// Adds the layer. If it cannot be made, the code is built without it.
    pub(crate) async fn go_library(
        &self,
        needs: &PackageNeeds<'_>,
        progress: &mut dyn Progress,
        ready: &mut PreparedPackages,
    ) {
        let started = Instant::now();
        // Images of other providers are not on this machine.
        if !matches!(needs.image, Image::Host | Image::Stored(_)) {
            return;
        }
        let Ok(Some(obtained)) = self.obtain_go_library(needs.image, progress).await else {
            self.counters.count_failure();
            return;
        };
        self.counters.count_layer(obtained.origin, started.elapsed());
        if obtained.origin == LayerOrigin::Built {
            ready.prepared.install_time += started.elapsed();
        }
        let source = obtained.layer.files().to_owned();
        ready.prepared.layers.push(PackageLayer { source, destination: GO_LIBRARY });
        ready.held.push(obtained.layer);
    }

    /// Finds or makes the layer. Returns `None` if the image has no Go.
    async fn obtain_go_library(
        &self,
        image: &Image,
        progress: &mut dyn Progress,
    ) -> Result<Option<ObtainedLayer>, PackagesError> {
        let sandbox = self.installer_sandbox();
        let Ok(go) = Language::from_name("go") else { return Ok(None) };
        let Some(toolchain) = sandbox.provider.runtime_identity(go, image).await else { return Ok(None) };
        let store = self.store()?;
        let recipe = recipe(toolchain, image);
        let key = recipe.key();
        let made = store.obtain(&self.layers, &key, async {
            progress.report("compiling Go's standard library, once for this toolchain");
            let stage = store.stage()?;
            let env = BTreeMap::from([("GOCACHE".to_owned(), WORKSPACE.to_owned())]);
            let file = stage.files().join(PROGRAM_FILE);
            let failed = |error| PackagesError::Host(format!("{}: {error}", file.display()));
            std::fs::write(&file, PROGRAM).map_err(failed)?;
            let program = (PROGRAM_FILE, PROGRAM);
            let done = sandbox.run_program(image, go.name, program, stage.files(), env).await?;
            std::fs::remove_file(&file).map_err(failed)?;
            if !done.succeeded {
                return Err(PackagesError::BuildFailed(format!(
                    "Go's standard library could not be compiled: {}",
                    end_of(&done.stderr)
                )));
            }
            Ok(store.publish(stage, recipe.clone()).await?)
        });
        made.await.map(Some)
    }
}

fn recipe(toolchain: String, image: &Image) -> LayerRecipe {
    let image = (!image.is_trusted()).then(|| format!("image {}", image.identity()));
    LayerRecipe {
        registry: "go standard library".to_owned(),
        packages: Vec::new(),
        interpreter: toolchain,
        platform: std::env::consts::ARCH.to_owned(),
        options: image.into_iter().collect(),
        scope: LayerScope::Shared,
    }
}
