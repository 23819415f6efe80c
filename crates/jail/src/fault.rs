//! Fault injection for tests: makes one step fail or leaves layers out. Without the feature `faults` this
//! code does nothing, so a shipped binary cannot be asked to.

use belljar_model::layer::Layer;
use rustix::io::Errno;

use crate::step::Step;

/// Environment variable of a test binary: `fail:STEP` or `without:LAYER,…`, with the names in the code.
#[cfg(feature = "faults")]
pub(crate) const VARIABLE: &str = "BELLJAR_FAULT";

#[cfg(feature = "faults")]
fn requested_fault() -> Option<&'static str> {
    static WANTED: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    WANTED.get_or_init(|| std::env::var(VARIABLE).ok()).as_deref()
}

/// Fails if the test asked this step to fail.
#[cfg(feature = "faults")]
pub(crate) fn inject(step: Step) -> Result<(), Errno> {
    match requested_fault().and_then(|text| text.strip_prefix("fail:")) {
        Some(name) if name == format!("{step:?}") => {
            // Gives a program that wrongly did not wait for this step time to reveal itself.
            std::thread::sleep(std::time::Duration::from_millis(100));
            Err(Errno::NOSPC)
        }
        _ => Ok(()),
    }
}

/// Returns whether the test asked to leave this layer out.
#[cfg(feature = "faults")]
pub(crate) fn is_left_out(layer: Layer) -> bool {
    let layers = requested_fault().and_then(|text| text.strip_prefix("without:")).unwrap_or_default();
    layers.split(',').any(|name| name == format!("{layer:?}"))
}

#[cfg(not(feature = "faults"))]
pub(crate) fn inject(_step: Step) -> Result<(), Errno> {
    Ok(())
}

#[cfg(not(feature = "faults"))]
pub(crate) fn is_left_out(_layer: Layer) -> bool {
    false
}
