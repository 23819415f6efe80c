//! Root file systems: what a sandbox sees of the host or of an unpacked image.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use belljar_engine::language::{LANGUAGES, Language};
use belljar_engine::network::GateKind;
use belljar_engine::packages::{
    GO_LIBRARY, PYTHON_LAYER, PYTHON_PROFILE_LAYER, PYTHON_SITE_FOLDER, PackageLayer,
};
use belljar_engine::plan::{Image, Network, RootAccess};
use belljar_engine::provider::ProviderError;
use belljar_jail::spec::{HOME, HostBind, INBOX, RootEntry, RootTree, WORKSPACE};

use super::runtimes::{HostRuntimes, LocatedRuntime};
use super::writable_tree::writable_tree;
use super::{CheckedPlan, egress};
use crate::egress::{NODE_PRELOAD, NODE_PRELOAD_PATH};
use crate::host_paths::utf8_path;

pub(super) const STANDARD_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
/// Top-level folders of the host that hold programs and libraries.
const HOST_FOLDERS: &[&str] = &["usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"];
/// Entries of `/etc` that programs need. The rest is never visible.
const HOST_ETC: &[&str] = &[
    "alternatives",
    "ca-certificates.conf",
    "crypto-policies",
    "fonts",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "localtime",
    "magic",
    "mime.types",
    "pki/ca-trust",
    "pki/tls/cert.pem",
    "pki/tls/certs",
    "ssl/cert.pem",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
    "timezone",
];
/// Prefixes of `/etc` entries with a version in their name, in which runtimes' packages keep settings.
const HOST_ETC_PREFIXES: &[&str] = &["R", "java", "lua", "perl", "php", "python"];
/// Top-level folders that an image cannot provide: the sandbox has its own.
const OUR_FOLDERS: &[&str] = &[".belljar", "dev", "home", "proc", "run", "sys", "tmp", "workspace"];
/// The entry of `/opt` that an image cannot provide: packages are mounted below it.
const OUR_OPT: &str = "belljar";

const PASSWD: &str = "root:x:0:0:root:/root:/usr/sbin/nologin\n\
    sandbox:x:1000:1000:sandbox:/home/sandbox:/bin/bash\n\
    nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nsandbox:x:1000:\nnogroup:x:65534:\n";
pub(super) const HOSTS: &str = "127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n";
const NSSWITCH: &str =
    "passwd: files\ngroup: files\nshadow: files\nhosts: files dns\nservices: files\nprotocols: files\n";

/// Builds root trees and finds runtimes in them.
#[derive(Debug)]
pub(super) struct RootBuilder {
    host: Vec<RootEntry>,
    runtimes: HostRuntimes,
    cache: Mutex<RootCache>,
}

/// A root tree with its number in launcher requests, and the search path inside.
#[derive(Debug)]
pub(super) struct NumberedRoot {
    pub(super) number: u64,
    pub(super) tree: RootTree,
    pub(super) path: String,
}

/// A cache of trees by content. Trees of the host are also cached by what distinguishes them, because
/// building one is slow.
#[derive(Debug, Default)]
struct RootCache {
    by_tree: HashMap<RootTree, Arc<NumberedRoot>>,
    host_roots: HashMap<HostRootKey, Arc<NumberedRoot>>,
    next: u64,
}

/// Distinguishes trees of the host that contain only runtimes, packages, and for a sandbox their mount points.
type HostRootKey = (Vec<PathBuf>, Vec<PackageLayer>, bool);

/// Mount points of packages in the tree of a sandbox. An empty `/node_modules` would make npm take `/` for the
/// project, so only a sandbox that is created with JavaScript packages has it.
const PACKAGE_FOLDERS: [&str; 4] = [PYTHON_LAYER, PYTHON_PROFILE_LAYER, PYTHON_SITE_FOLDER, GO_LIBRARY];

/// Cached trees. When full, the cache is cleared.
const MAX_CACHED_ROOTS: usize = 256;

impl RootBuilder {
    pub(super) fn new() -> Self {
        Self { host: host_tree(), runtimes: HostRuntimes::new(), cache: Mutex::default() }
    }

    /// Finds the runtime of a language.
    pub(super) fn runtime(
        &self,
        language: &'static Language,
        image: &Image,
    ) -> Result<LocatedRuntime, ProviderError> {
        match image {
            Image::Host => self.runtimes.on_host(language),
            Image::Folder(folder) => HostRuntimes::in_folder(language, folder, None),
            Image::Stored(stored) => {
                HostRuntimes::in_folder(language, &stored.folder, stored.path.as_deref())
            }
            Image::Named(name) => Err(foreign_image(name)),
        }
    }

    /// Returns the prefixes of the interpreters that shell scripts call most.
    pub(super) fn common_prefixes(&self, image: &Image) -> Vec<PathBuf> {
        if *image != Image::Host {
            return Vec::new();
        }
        let usual = LANGUAGES.iter().filter(|language| matches!(language.name, "python" | "javascript"));
        usual
            .filter_map(|language| self.runtimes.on_host(language).ok())
            .flat_map(|found| found.prefixes)
            .collect()
    }

    /// Returns the tree for a plan. In the tree of a sandbox, packages can be mounted later.
    pub(super) fn tree(
        &self,
        checked: &CheckedPlan,
        prefixes: &[PathBuf],
        is_sandbox: bool,
    ) -> Result<Arc<NumberedRoot>, ProviderError> {
        let CheckedPlan { plan, binds, .. } = checked;
        let is_usual = plan.image == Image::Host && plan.network == Network::None && binds.is_empty();
        let usual = is_usual.then(|| (prefixes.to_vec(), plan.package_layers.clone(), is_sandbox));
        if let Some(root) = usual.as_ref().and_then(|usual| self.lock_cache().host_roots.get(usual).cloned())
        {
            return Ok(root);
        }
        let (mut tree, path) = match plan.root {
            RootAccess::ReadOnly => self.build(checked, prefixes)?,
            RootAccess::Writable => writable_tree(checked)?,
        };
        if is_sandbox {
            tree.extend(PACKAGE_FOLDERS.map(|path| RootEntry::Dir { path: path.to_owned() }));
        }
        let root = self.numbered(tree, path);
        if let Some(usual) = usual {
            self.lock_cache().host_roots.insert(usual, Arc::clone(&root));
        }
        Ok(root)
    }

    fn lock_cache(&self) -> MutexGuard<'_, RootCache> {
        // Each statement leaves the maps consistent, so a panic elsewhere does not corrupt them.
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn numbered(&self, tree: RootTree, path: String) -> Arc<NumberedRoot> {
        let mut known = self.lock_cache();
        if let Some(root) = known.by_tree.get(&tree) {
            return Arc::clone(root);
        }
        if known.by_tree.len() >= MAX_CACHED_ROOTS {
            known.by_tree.clear();
            known.host_roots.clear();
        }
        known.next += 1;
        let root = Arc::new(NumberedRoot { number: known.next, tree: tree.clone(), path });
        known.by_tree.insert(tree, Arc::clone(&root));
        root
    }

    fn build(
        &self,
        checked: &CheckedPlan,
        prefixes: &[PathBuf],
    ) -> Result<(RootTree, String), ProviderError> {
        let CheckedPlan { plan, binds, gate, .. } = checked;
        let mut tree = match &plan.image {
            Image::Host => {
                let mut tree = self.host.clone();
                tree.push(file("/etc/resolv.conf", &resolv_conf(&plan.network)));
                tree
            }
            Image::Folder(folder) => folder_tree(folder)?,
            Image::Stored(stored) => {
                let mut tree: RootTree =
                    folder_tree(&stored.folder)?.into_iter().map(as_image_entry).collect();
                // The image's own resolv.conf points to the egress DNS server. With the host's network, the
                // host's is needed.
                if plan.network == Network::Full {
                    tree.extend(host_resolv_conf());
                }
                tree
            }
            Image::Named(name) => return Err(foreign_image(name)),
        };
        let standard = match &plan.image {
            Image::Stored(stored) => stored.path.as_deref().unwrap_or(STANDARD_PATH),
            Image::Host | Image::Folder(_) | Image::Named(_) => STANDARD_PATH,
        };
        if plan.network.gate_rules().is_some() && *gate == GateKind::Proxy {
            tree.push(file(NODE_PRELOAD_PATH, NODE_PRELOAD));
        }
        let mut path = Vec::new();
        for prefix in prefixes {
            let text = utf8_path("language", prefix)?;
            tree.push(RootEntry::Bind { source: text.clone(), path: text.clone() });
            path.push(format!("{text}/bin"));
        }
        for layer in &plan.package_layers {
            let source = utf8_path("dependencies", &layer.source)?;
            tree.push(RootEntry::Packages { source, path: layer.destination.to_owned() });
            path.extend(layer.bin_folder());
        }
        path.push(standard.to_owned());
        tree.extend(binds.iter().filter_map(mount_point));
        Ok((tree, path.join(":")))
    }
}

/// The image of another provider. Admission refuses these earlier.
pub(super) fn foreign_image(name: &str) -> ProviderError {
    let message = format!("'{}' belongs to another provider", name.escape_debug());
    ProviderError::unsupported("image", message)
}

/// Returns an empty mount point for a host folder. Mount points below the workspace are created later,
/// inside.
pub(super) fn mount_point(bind: &HostBind) -> Option<RootEntry> {
    let path = bind.destination.clone();
    if path.starts_with("/workspace/") {
        return None;
    }
    let is_folder = Path::new(&bind.source).is_dir();
    Some(if is_folder { RootEntry::Dir { path } } else { RootEntry::File { path, content: Vec::new() } })
}

pub(super) fn file(path: &str, content: &str) -> RootEntry {
    RootEntry::File { path: path.to_owned(), content: content.as_bytes().to_vec() }
}

fn link(path: &str, target: &str) -> RootEntry {
    RootEntry::Link { path: path.to_owned(), target: target.to_owned() }
}

/// Returns the entries that every root has, whatever the image.
pub(super) fn common_tree() -> RootTree {
    let folders = ["/proc", "/sys", "/tmp", "/dev/pts", "/dev/shm", WORKSPACE, HOME, INBOX];
    let mut tree: RootTree = folders.iter().map(|path| RootEntry::Dir { path: (*path).to_owned() }).collect();
    let devices = [("null", 3), ("zero", 5), ("full", 7), ("random", 8), ("urandom", 9)];
    let device = |name: &str, number| RootEntry::Device {
        source: format!("/dev/{name}"),
        path: format!("/dev/{name}"),
        number,
    };
    let devices = devices.iter().map(|(name, minor)| (*name, (1, *minor))).chain([("tty", (5, 0))]);
    // A container may lack some of these devices. `null` is always present, and nothing starts without it.
    let present = devices.filter(|(name, _)| *name == "null" || Path::new("/dev").join(name).exists());
    tree.extend(present.map(|(name, number)| device(name, number)));
    for (path, target) in [
        ("/dev/ptmx", "pts/ptmx"),
        ("/dev/fd", "/proc/self/fd"),
        ("/dev/stdin", "/proc/self/fd/0"),
        ("/dev/stdout", "/proc/self/fd/1"),
        ("/dev/stderr", "/proc/self/fd/2"),
    ] {
        tree.push(link(path, target));
    }
    tree
}

/// Returns the host's tree: selected folders, and our own `/etc` with a few of the host's entries.
pub(super) fn host_tree() -> RootTree {
    let mut tree = common_tree();
    tree.push(link("/var/tmp", "/tmp"));
    for (name, content) in
        [("passwd", PASSWD), ("group", GROUP), ("hosts", HOSTS), ("nsswitch.conf", NSSWITCH)]
    {
        tree.push(file(&format!("/etc/{name}"), content));
    }
    tree.push(file("/etc/hostname", "sandbox\n"));
    tree.extend(HOST_FOLDERS.iter().filter_map(|name| mirror(Path::new("/"), name)));
    let etc = Path::new("/etc");
    tree.extend(HOST_ETC.iter().filter_map(|name| mirror(etc, name)));
    let versioned = std::fs::read_dir(etc).into_iter().flatten().flatten();
    let mut names: Vec<String> = versioned.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.retain(|name| HOST_ETC_PREFIXES.iter().any(|prefix| name.starts_with(prefix)));
    names.sort();
    tree.extend(names.iter().filter_map(|name| mirror(etc, name)));
    tree
}

/// Returns the entry for a path on the host: symlinks are copied, folders and files are bound.
fn mirror(folder: &Path, name: &str) -> Option<RootEntry> {
    let path = folder.join(name);
    let text = path.to_str()?.to_owned();
    if std::fs::symlink_metadata(&path).ok()?.is_symlink() {
        return Some(link(&text, std::fs::read_link(&path).ok()?.to_str()?));
    }
    let source = std::fs::canonicalize(&path).ok()?.to_str()?.to_owned();
    Some(RootEntry::Bind { source, path: text })
}

/// Binds the host's resolv.conf, with symlinks resolved.
fn host_resolv_conf() -> Option<RootEntry> {
    let path = "/etc/resolv.conf";
    let source = std::fs::canonicalize(path).ok()?.to_str()?.to_owned();
    Some(RootEntry::Bind { source, path: path.to_owned() })
}

pub(super) fn resolv_conf(network: &Network) -> String {
    match network {
        Network::Hosts(_) | Network::Internet(_) => egress::resolv_conf(),
        Network::None => "# this sandbox has no network\n".to_owned(),
        Network::Full => std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default(),
    }
}

/// Returns the tree of an unpacked root: its folders, except those of which a sandbox has its own.
pub(super) fn folder_tree(folder: &Path) -> Result<RootTree, ProviderError> {
    let wrong = |why: String| ProviderError::Invalid {
        field: "image",
        message: format!("'{}' {why}", folder.display()),
    };
    let real = std::fs::canonicalize(folder).map_err(|error| wrong(error.to_string()))?;
    if real == Path::new("/") {
        return Err(wrong("is the host's root; use image 'host'".to_owned()));
    }
    if !real.join("usr").is_dir() && !real.join("bin").is_dir() {
        return Err(wrong("is not a root file system: it has neither usr nor bin".to_owned()));
    }
    let mut tree = common_tree();
    let mut names: Vec<_> = std::fs::read_dir(&real)
        .map_err(|error| wrong(error.to_string()))?
        .flatten()
        .filter_map(|entry| entry.file_name().into_string().ok())
        .filter(|name| !OUR_FOLDERS.contains(&name.as_str()))
        .collect();
    names.sort();
    for name in names {
        let path = real.join(&name);
        let Ok(metadata) = std::fs::symlink_metadata(&path) else { continue };
        let inside = format!("/{name}");
        if metadata.is_symlink() {
            let target = std::fs::read_link(&path).ok().and_then(|target| target.to_str().map(str::to_owned));
            tree.extend(target.map(|target| link(&inside, &target)));
        } else if name == "opt" {
            // Packages are mounted beside the entries of `/opt`.
            let entries = std::fs::read_dir(&path).into_iter().flatten().flatten();
            let mut names: Vec<_> =
                entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
            names.retain(|name| name != OUR_OPT);
            names.sort();
            tree.extend(names.iter().filter_map(|name| mirror_below(&path, &inside, name)));
        } else if metadata.is_dir() {
            tree.push(RootEntry::Bind { source: utf8_path("image", &path)?, path: inside });
        }
    }
    Ok(tree)
}

/// Converts a bind to one of a folder that never changes.
fn as_image_entry(entry: RootEntry) -> RootEntry {
    match entry {
        RootEntry::Bind { source, path } => RootEntry::Image { source, path },
        entry => entry,
    }
}

/// Returns the entry for a folder or symlink inside an image's folder, at the same path.
fn mirror_below(folder: &Path, inside: &str, name: &str) -> Option<RootEntry> {
    let (source, path) = (folder.join(name), format!("{inside}/{name}"));
    let metadata = std::fs::symlink_metadata(&source).ok()?;
    if metadata.is_symlink() {
        return Some(link(&path, std::fs::read_link(&source).ok()?.to_str()?));
    }
    let source = source.to_str()?.to_owned();
    metadata.is_dir().then_some(RootEntry::Bind { source, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_tree_shows_no_private_folder() {
        for entry in host_tree() {
            let RootEntry::Bind { source, .. } = &entry else { continue };
            for private in ["/home", "/root", "/var", "/run", "/boot", "/srv"] {
                assert!(!Path::new(source).starts_with(private), "{entry:?}");
            }
            assert!(source != "/etc" && source != "/" && source != "/etc/ssl", "{entry:?}");
        }
    }

    #[test]
    fn a_folder_that_is_not_a_root_is_refused() {
        assert!(folder_tree(Path::new("/")).unwrap_err().to_string().contains("use image 'host'"));
        assert!(
            folder_tree(Path::new("/proc")).unwrap_err().to_string().contains("is not a root file system")
        );
        assert!(folder_tree(Path::new("/nope")).unwrap_err().to_string().contains("No such file"));
    }
}
