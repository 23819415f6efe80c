//! OCI images without a daemon: from a registry, an archive or a layout folder to a root on disk that never changes.
//!
//! ```text
//! registry.rs ┐                        ┌ layer.rs   decompressed, hashed, looked over
//! layout.rs   ┴▶ documents.rs ▶ store.rs ┼ unpack.rs  laid over the layers below it, never outside
//! seal.rs     ─────────────────▶ store.rs ┴ clone.rs   what is below is shared by hard links
//! ```
//!
//! - Nothing is believed: manifest, configuration and every layer are held to their digests, and a layer is looked into
//!   only when its bytes are known to be the right ones.
//! - Nothing that an archive says is followed out of the root that it is unpacked in.
//! - An image is there as a whole or not at all, and is not removed while somebody uses it.

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

pub use credentials::{Credentials, Login};
pub use error::ImageError;
pub use name::Name;
pub use registry::{Registries, pull};
pub use seal::Part;
pub use store::{Bounds, Held, Record, Removed, Store};
