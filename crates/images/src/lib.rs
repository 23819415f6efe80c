//! OCI images without a daemon: from a registry, an archive or a layout folder to an immutable root on disk.
//!
//! ```text
//! registry.rs ┐                          ┌ layer.rs   decompresses, hashes and checks a layer
//! layout.rs   ┴▶ documents.rs ▶ store.rs ┼ unpack.rs  unpacks it over the layers below, inside the root
//! seal.rs     ────────────────▶ store.rs ┴ clone.rs   shares files of the layers below by hard links
//! ```
//!
//! - Nothing is trusted: manifest, configuration and every layer are checked against their digests, and a
//!   layer is parsed only after its digest matches.
//! - No path in an archive is followed out of the root that it is unpacked into.
//! - An image is complete or absent, and is not removed while it is in use.

mod clone;
mod credentials;
mod documents;
mod error;
mod layer;
mod layout;
mod name;
mod registry;
mod seal;
mod store;
mod unpack;

pub use credentials::{Login, RegistryCredentials};
pub use error::ImageError;
pub use name::ImageName;
pub use registry::{RegistrySettings, pull};
pub use seal::SealEntry;
pub use store::{ImageBounds, ImageLease, ImageRecord, ImageStore, RemovalResult};
