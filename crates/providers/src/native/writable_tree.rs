//! The tree of a writable root: what lies above the image, and the image.

use belljar_engine::network::GateKind;
use belljar_engine::plan::Image;
use belljar_engine::provider::ProviderError;
use belljar_jail::spec::{RootEntry, RootTree};

use super::CheckedPlan;
use super::roots::{
    HOSTS, STANDARD_PATH, common_tree, file, folder_tree, foreign_image, mount_point, resolv_conf,
};
use crate::egress::{NODE_PRELOAD, NODE_PRELOAD_PATH};
use crate::host_paths::utf8_path;

/// Returns what lies above the image in a writable root, the image, and the search path.
pub(super) fn writable_tree(checked: &CheckedPlan) -> Result<(RootTree, String), ProviderError> {
    let CheckedPlan { plan, binds, gate, .. } = checked;
    let folder = match &plan.image {
        Image::Folder(folder) => folder,
        Image::Stored(stored) => &stored.folder,
        Image::Host => return Err(ProviderError::unsupported("root", WRITABLE_HOST)),
        Image::Named(name) => return Err(foreign_image(name)),
    };
    // Checks that it is a root.
    folder_tree(folder)?;
    let source =
        std::fs::canonicalize(folder).map_err(|error| ProviderError::setup("open the image", error))?;
    let mut tree = common_tree();
    tree.push(RootEntry::Lower { source: utf8_path("image", &source)? });
    // As container runtimes do: an image need not know the name of the machine.
    tree.push(file("/etc/hosts", HOSTS));
    tree.push(file("/etc/hostname", "sandbox\n"));
    tree.push(file("/etc/resolv.conf", &resolv_conf(&plan.network)));
    if plan.network.gate_rules().is_some() && *gate == GateKind::Proxy {
        tree.push(file(NODE_PRELOAD_PATH, NODE_PRELOAD));
    }
    let mut path = Vec::new();
    for layer in &plan.package_layers {
        let source = utf8_path("dependencies", &layer.source)?;
        tree.push(RootEntry::Packages { source, path: layer.destination.to_owned() });
        path.extend(layer.bin_folder());
    }
    let standard = match &plan.image {
        Image::Stored(stored) => stored.path.as_deref().unwrap_or(STANDARD_PATH),
        Image::Host | Image::Folder(_) | Image::Named(_) => STANDARD_PATH,
    };
    path.push(standard.to_owned());
    tree.extend(binds.iter().filter_map(mount_point));
    Ok((tree, path.join(":")))
}

/// Why the host's own files cannot be a writable root.
const WRITABLE_HOST: &str = "image 'host' is only a part of this machine's files, so no package manager can work on it; \
                             name an image (belljar image pull debian:13)";
