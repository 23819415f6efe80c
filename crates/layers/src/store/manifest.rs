//! A layer's recipe and manifest. The key is derived from the recipe alone.

use std::fmt;
use std::str::FromStr;

use belljar_beneath::{ContentDigest, Hasher};
use serde::{Deserialize, Serialize};

/// The key of a layer: the SHA-256 of its [`LayerRecipe`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct LayerKey(ContentDigest);

impl LayerKey {
    pub(super) fn digest(&self) -> &ContentDigest {
        &self.0
    }
}

impl fmt::Display for LayerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for LayerKey {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

/// The tenants that may use a layer.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LayerScope {
    /// One tenant.
    Tenant(String),
    /// All tenants.
    Shared,
}

impl fmt::Display for LayerScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tenant(name) => f.write_str(name),
            Self::Shared => f.write_str("(all)"),
        }
    }
}

/// A package with its exact version.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExactPackage {
    /// The name, as the registry writes it.
    pub name: String,
    /// The exact version.
    pub version: String,
    /// Hashes of the archives that it may come from, as the registry gives them: `sha256:…`, `sha512-…`.
    pub hashes: Vec<String>,
}

/// Everything that determines the content of a layer and who may use it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayerRecipe {
    /// The registry: `https://pypi.org/simple`, …
    pub registry: String,
    /// All packages, including transitive dependencies, in any order.
    pub packages: Vec<ExactPackage>,
    /// The interpreter: `cpython-3.12`, `node-22`.
    pub interpreter: String,
    /// `x86_64-linux-gnu`.
    pub platform: String,
    /// Other options: `build`, …
    pub options: Vec<String>,
    /// The tenants that may use the layer.
    pub scope: LayerScope,
}

impl LayerRecipe {
    /// Returns the key of the layer.
    pub fn key(&self) -> LayerKey {
        let Self { registry, packages, interpreter, platform, options, scope } = self;
        let mut hasher = Hasher::new("belljar layer 1");
        for text in [registry, interpreter, platform] {
            hasher.part(text.as_bytes());
        }
        hash_unordered(&mut hasher, options);
        let mut packages: Vec<_> = packages.iter().collect();
        packages.sort();
        hasher.number(packages.len() as u64);
        for package in packages {
            hasher.part(package.name.as_bytes());
            hasher.part(package.version.as_bytes());
            hash_unordered(&mut hasher, &package.hashes);
        }
        match scope {
            LayerScope::Tenant(name) => hash_unordered(&mut hasher, std::slice::from_ref(name)),
            LayerScope::Shared => hash_unordered(&mut hasher, &[]),
        }
        LayerKey(hasher.finish())
    }
}

/// Hashes texts whose order does not matter.
fn hash_unordered(hasher: &mut Hasher, texts: &[String]) {
    let mut texts: Vec<_> = texts.iter().collect();
    texts.sort();
    hasher.number(texts.len() as u64);
    texts.iter().for_each(|text| hasher.part(text.as_bytes()));
}

/// The manifest stored next to a layer's files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// The layer's key, which must match the recipe.
    pub key: LayerKey,
    /// The recipe.
    pub recipe: LayerRecipe,
    /// SHA-256 of all entries: path, kind, mode, and content or target.
    pub tree: ContentDigest,
    /// Total size of all files.
    pub bytes: u64,
    /// Number of files, folders and links.
    pub entries: u64,
    /// When it was published in this store, in seconds since 1970.
    pub made_at: u64,
}

impl Manifest {
    /// Returns whether the key matches the recipe, so that neither was changed alone.
    pub(super) fn key_matches_recipe(&self) -> bool {
        self.key == self.recipe.key()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recipe() -> LayerRecipe {
        let package = |name: &str, hashes: &[&str]| ExactPackage {
            name: name.to_owned(),
            version: "1".to_owned(),
            hashes: hashes.iter().map(|hash| (*hash).to_owned()).collect(),
        };
        LayerRecipe {
            registry: "https://pypi.org/simple".to_owned(),
            packages: vec![package("a", &["x", "y"]), package("b", &[])],
            interpreter: "cpython-3.12".to_owned(),
            platform: "x86_64-linux-gnu".to_owned(),
            options: vec!["p".to_owned(), "q".to_owned()],
            scope: LayerScope::Tenant("default".to_owned()),
        }
    }

    #[test]
    fn the_key_depends_on_everything_but_order() {
        let mut same = recipe();
        same.packages.reverse();
        same.packages[1].hashes.reverse();
        same.options.reverse();
        assert_eq!(same.key(), recipe().key());

        let changes: [fn(&mut LayerRecipe); 9] = [
            |recipe| recipe.registry.push('/'),
            |recipe| recipe.packages.truncate(1),
            |recipe| recipe.packages[0].name.push('a'),
            |recipe| recipe.packages[0].version.push('0'),
            |recipe| recipe.packages[0].hashes.truncate(1),
            |recipe| recipe.interpreter.push('t'),
            |recipe| recipe.platform.push('x'),
            |recipe| recipe.options.truncate(1),
            |recipe| recipe.scope = LayerScope::Tenant("other".to_owned()),
        ];
        let mut keys: Vec<_> = changes.map(|change| with(change)).to_vec();
        keys.extend([recipe().key(), with(|recipe| recipe.scope = LayerScope::Shared)]);
        keys.extend([with(|recipe| recipe.scope = LayerScope::Tenant(String::new()))]);
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), 12);
    }

    fn with(change: impl Fn(&mut LayerRecipe)) -> LayerKey {
        let mut recipe = recipe();
        change(&mut recipe);
        recipe.key()
    }
}
