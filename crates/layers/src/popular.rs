//! Which modules waiting interpreters should import once they are confined: those that programs often import.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Mutex, PoisonError};

use belljar_engine::packages::Needs;

use crate::shelf::{Digest, Key};

/// How often programs with the same modules come before waiting interpreters import these.
const OFTEN: u32 = 8;
/// Kinds of programs that are counted.
const MAX_COUNTED: usize = 1_024;

/// What programs of one kind import, and on what ground.
#[derive(Debug, Clone)]
pub(crate) struct Habit {
    ground: Digest,
    modules: Vec<String>,
}

impl Habit {
    /// Of one tenant in one image; nothing where nothing is imported but what every interpreter has.
    pub(crate) fn new(needs: &Needs<'_>, modules: &[String]) -> Option<Self> {
        let image = needs.image.identity();
        let first = |module: &String| module.split('.').next().unwrap_or(module).to_owned();
        let names: BTreeSet<String> = modules.iter().map(first).collect();
        let whose = [needs.tenant.to_owned(), image.into_owned()];
        let ground = Digest::of("belljar habit 1", whose.into_iter().chain(names));
        (!modules.is_empty()).then(|| Self { ground, modules: modules.to_vec() })
    }

    /// On a layer as well.
    pub(crate) fn with(self, layer: &Key) -> Self {
        let parts = [self.ground.to_string(), layer.to_string()];
        Self { ground: Digest::of("belljar habit 1", parts), ..self }
    }
}

/// How often programs of one kind came, and for which modules.
#[derive(Debug, Default)]
struct Kind {
    uses: u32,
    modules: BTreeMap<String, u32>,
    chosen: Vec<String>,
}

/// Everything that is counted.
#[derive(Debug, Default)]
pub(crate) struct Popular(Mutex<HashMap<Digest, Kind>>);

impl Popular {
    /// Counts a program; which modules are worth importing ahead of time. Decided once for a kind, so that interpreters are
    /// not started anew for every other program.
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
        assert_eq!(popular.used(&other), ["numpy", "sklearn.svm"], "of one kind, by what most import");
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
