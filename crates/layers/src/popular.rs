//! Counts imports, to find modules that warm interpreters should preimport after confinement.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use belljar_engine::packages::Needs;

use crate::shelf::{Digest, Key};

/// How many programs with the same import pattern run before their modules are preimported.
const OFTEN: u32 = 8;
/// Maximum number of patterns that are counted.
const MAX_COUNTED: usize = 1_024;

/// The modules that a program imports, and the pattern (tenant, image, modules, layers) that it belongs to.
#[derive(Debug, Clone)]
pub(crate) struct Habit {
    ground: Digest,
    modules: Vec<String>,
}

impl Habit {
    /// Creates the pattern of one tenant in one image; `None` if the program imports no modules.
    pub(crate) fn new(needs: &Needs<'_>, modules: &[String]) -> Option<Self> {
        let image = needs.image.identity();
        let first = |module: &String| module.split('.').next().unwrap_or(module).to_owned();
        let names: BTreeSet<String> = modules.iter().map(first).collect();
        let whose = [needs.tenant.to_owned(), image.into_owned()];
        let ground = Digest::of("belljar habit 1", whose.into_iter().chain(names));
        (!modules.is_empty()).then(|| Self { ground, modules: modules.to_vec() })
    }

    /// Adds a layer to the pattern.
    pub(crate) fn with(self, layer: &Key) -> Self {
        let parts = [self.ground.to_string(), layer.to_string()];
        Self { ground: Digest::of("belljar habit 1", parts), ..self }
    }
}

/// How often programs of one pattern ran, and how often each module was imported.
#[derive(Debug, Default)]
struct Kind {
    uses: u32,
    modules: BTreeMap<String, u32>,
    chosen: Vec<String>,
}

/// Import counts of all patterns.
#[derive(Debug, Default)]
pub(crate) struct Popular(Mutex<HashMap<Digest, Kind>>);

impl Popular {
    /// Counts a program, and returns the modules to preimport. Decided once for each pattern, so that
    /// interpreters are not restarted for every other program.
    pub(crate) fn used(&self, habit: &Habit) -> Vec<String> {
        let mut kinds = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kinds.len() >= MAX_COUNTED && !kinds.contains_key(&habit.ground) {
            kinds.clear();
        }
        let kind = kinds.entry(habit.ground).or_default();
        kind.uses = kind.uses.saturating_add(1);
        if kind.uses <= OFTEN {
            habit.modules.iter().for_each(|module| *kind.modules.entry(module.clone()).or_default() += 1);
        }
        if kind.uses == OFTEN {
            let most = kind.modules.iter().filter(|(_, uses)| **uses * 2 >= OFTEN);
            kind.chosen = most.map(|(module, _)| module.clone()).collect();
        }
        kind.chosen.clone()
    }
}

#[cfg(test)]
mod tests {
    use belljar_engine::plan::Image;

    use super::*;

    fn habit(tenant: &str, modules: &[&str]) -> Habit {
        let needs = Needs {
            tenant,
            image: &Image::Host,
            language: None,
            detect: true,
            code: None,
            files: &[],
            playground: false,
            packages: &[],
            standing: &[],
            build: false,
        };
        let modules: Vec<String> = modules.iter().map(|module| (*module).to_owned()).collect();
        Habit::new(&needs, &modules).unwrap()
    }

    #[test]
    fn what_comes_often_is_chosen_and_stays() {
        let popular = Popular::default();
        let (one, other) = (habit("t", &["sklearn.svm", "numpy"]), habit("t", &["numpy", "sklearn.tree"]));
        for _ in 0..OFTEN - 1 {
            assert!(popular.used(&one).is_empty());
        }
        assert_eq!(popular.used(&other), ["numpy", "sklearn.svm"], "modules that most programs import");
        assert_eq!(popular.used(&one), ["numpy", "sklearn.svm"]);
        for stranger in [habit("u", &["numpy", "sklearn.svm"]), habit("t", &["numpy"])] {
            assert!(popular.used(&stranger).is_empty());
        }
    }

    #[test]
    fn so_many_kinds_are_counted() {
        let popular = Popular::default();
        for number in 0..3 * MAX_COUNTED {
            popular.used(&habit(&number.to_string(), &["numpy"]));
        }
        assert!(popular.0.lock().unwrap().len() <= MAX_COUNTED);
    }
}
