//! Faults on demand, for tests: one step that fails, or one layer that is left out. Without the feature `faults`
//! nothing here does anything, and a shipped binary cannot be asked to.

use rustix::io::Errno;

use crate::spec::Layer;
use crate::step::Step;

/// The variable that a binary built for tests obeys: `fail:STEP` or `without:LAYER,…`, by the names in the code.
#[cfg(feature = "faults")]
pub(crate) const VARIABLE: &str = "BELLJAR_FAULT";

#[cfg(feature = "faults")]
fn wanted() -> Option<&'static str> {
    static WANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    WANTED.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
}

/// Fails where a test asked this step to.
#[cfg(feature = "faults")]
pub(crate) fn inject(step: Step) -> Result<(), Errno> {
    match wanted().and_then(|text| text.strip_prefix("fail:")) {
        Some(name) if name == format!("{step:?}") => {
            // Time for a program that did not wait for this step to show itself.
            std::thread::sleep(std::time::Duration::from_millis(100));
            Err(Errno::NOSPC)
        }
        _ => Ok(()),
    }
}

/// Whether a test asked for this layer to be left out.
#[cfg(feature = "faults")]
pub(crate) fn without(layer: Layer) -> bool {
    let layers = wanted().and_then(|text| text.strip_prefix("without:")).unwrap_or_default();
    layers.split(',').any(|name| name == format!("{layer:?}"))
}

#[cfg(not(feature = "faults"))]
pub(crate) fn inject(_step: Step) -> Result<(), Errno> {
    Ok(())
}

#[cfg(not(feature = "faults"))]
pub(crate) fn without(_layer: Layer) -> bool {
    false
}
