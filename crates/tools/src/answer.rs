//! What a tool answers: text for the model, images, and the same as data.

use belljar_engine::quantity::show_bytes;
use serde::Deserialize;
use serde_json::Value;

/// What models can see.
const SEEN: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// The most images of one answer.
const MAX_IMAGES: usize = 8;
/// The largest image, in base64.
const MAX_IMAGE: usize = 4 << 20;

/// What a tool answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// What happened, in words.
    pub text: String,
    /// What there is to look at.
    pub images: Vec<Image>,
    /// All of it, as the tool's output schema says; absent where the tool came to nothing.
    pub structured: Option<Value>,
}

/// An image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// `image/png` and its kin.
    pub mime_type: String,
    /// Base64.
    pub data: String,
}

impl Answer {
    pub(crate) fn new(text: String, structured: Value) -> Self {
        Self { text, images: Vec::new(), structured: Some(structured) }
    }

    /// Says why there is none: the model can mend that.
    pub fn failure(error: &crate::Error) -> Self {
        Self { text: format!("Nothing was done: {error}"), images: Vec::new(), structured: None }
    }

    /// Whether the tool came to nothing. What a program did is an answer, whatever that was.
    pub fn is_error(&self) -> bool {
        self.structured.is_none()
    }
}

/// A file that a program left for whoever ran it.
#[derive(Debug, Deserialize)]
pub(crate) struct Artifact {
    pub(crate) name: String,
    pub(crate) mime_type: String,
    pub(crate) size: u64,
    content_base64: String,
}

impl Artifact {
    fn is_seen(&self) -> bool {
        SEEN.contains(&self.mime_type.as_str()) && self.content_base64.len() <= MAX_IMAGE
    }

    pub(crate) fn describe(&self) -> String {
        format!("{} ({}, {})", self.name, self.mime_type, show_bytes(self.size))
    }
}

/// Those of the artifacts that a model can see.
pub(crate) fn images(artifacts: Vec<Artifact>) -> Vec<Image> {
    let seen = artifacts.into_iter().filter(Artifact::is_seen).take(MAX_IMAGES);
    seen.map(|artifact| Image { mime_type: artifact.mime_type, data: artifact.content_base64 }).collect()
}
