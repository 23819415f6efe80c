//! Counts imports, to find modules that warm interpreters should preimport after confinement.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use belljar_beneath::ContentDigest;
use belljar_engine::packages::PackageNeeds;

use crate::store::LayerKey;

/// How many programs with the same import pattern run before their modules are preimported.
const PREIMPORT_AFTER_USES: u32 = 8;
/// Maximum number of patterns that are counted.
const MAX_PATTERNS: usize = 1_024;

/// The modules that a program imports, and the pattern (tenant, image, modules, layers) that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct ImportPattern {
    key: ContentDigest,
    modules: Vec<String>,
}

impl ImportPattern {
    /// Creates the pattern of one tenant in one image; `None` if the program imports no modules.
    pub(crate) fn new(needs: &PackageNeeds<'_>, modules: &[String]) -> Option<Self> {
        let image = needs.image.identity();
        let first = |module: &String| module.split('.').next().unwrap_or(module).to_owned();
        let names: BTreeSet<String> = modules.iter().map(first).collect();
        let whose = [needs.tenant.to_owned(), image.into_owned()];
        let ground = ContentDigest::from_parts("belljar habit 1", whose.into_iter().chain(names));
        (!modules.is_empty()).then(|| Self { key: ground, modules: modules.to_vec() })
    }

    /// Adds a layer to the pattern.
    pub(crate) fn with_layer(self, layer: &LayerKey) -> Self {
        let parts = [self.key.to_string(), layer.to_string()];
        Self { key: ContentDigest::from_parts("belljar habit 1", parts), ..self }
    }
}

/// How often programs of one pattern ran, and how often each module was imported.
#[derive(Debug, Default)]
struct PatternCounts {
    uses: u32,
    modules: BTreeMap<String, u32>,
    preimports: Vec<String>,
}

/// Import counts of all patterns.
#[derive(Debug, Default)]
pub(crate) struct PreimportStats(Mutex<HashMap<ContentDigest, PatternCounts>>);

impl PreimportStats {
    /// Counts a program, and returns the modules to preimport. Decided once for each pattern, so that
    /// interpreters are not restarted for every other program.
    pub(crate) fn count_use(&self, pattern: &ImportPattern) -> Vec<String> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kinds.len() >= MAX_PATTERNS && !kinds.contains_key(&pattern.key) {
            kinds.clear();
        }
        let kind = kinds.entry(pattern.key).or_default();
        kind.uses = kind.uses.saturating_add(1);
        if kind.uses <= PREIMPORT_AFTER_USES {
            pattern.modules.iter().for_each(|module| *kind.modules.entry(module.clone()).or_default() += 1);
        }
        if kind.uses == PREIMPORT_AFTER_USES {
            let most = kind.modules.iter().filter(|(_, uses)| **uses * 2 >= PREIMPORT_AFTER_USES);
            kind.preimports = most.map(|(module, _)| module.clone()).collect();
        }
        kind.preimports.clone()
    }
}

#[cfg(test)]
mod tests {
    use belljar_engine::plan::Image;

    use super::*;

    fn pattern(tenant: &str, modules: &[&str]) -> ImportPattern {
        let needs = PackageNeeds { detect: true, ..PackageNeeds::new(tenant, &Image::Host) };
        let modules: Vec<String> = modules.iter().map(|module| (*module).to_owned()).collect();
        ImportPattern::new(&needs, &modules).unwrap()
    }

    #[test]
    fn frequent_imports_are_chosen_once() {
        let popular = PreimportStats::default();
        let (one, other) =
            (pattern("t", &["sklearn.svm", "numpy"]), pattern("t", &["numpy", "sklearn.tree"]));
        for _ in 0..PREIMPORT_AFTER_USES - 1 {
            assert!(popular.count_use(&one).is_empty());
        }
        assert_eq!(popular.count_use(&other), ["numpy", "sklearn.svm"], "modules that most programs import");
        assert_eq!(popular.count_use(&one), ["numpy", "sklearn.svm"]);
        for stranger in [pattern("u", &["numpy", "sklearn.svm"]), pattern("t", &["numpy"])] {
            assert!(popular.count_use(&stranger).is_empty());
        }
    }

    #[test]
    fn the_number_of_patterns_is_bounded() {
        let popular = PreimportStats::default();
        for number in 0..3 * MAX_PATTERNS {
            popular.count_use(&pattern(&number.to_string(), &["numpy"]));
        }
        assert!(popular.0.lock().unwrap().len() <= MAX_PATTERNS);
    }
}
