//! Answers of tools: text for the model, images, and structured data.

use belljar_engine::quantity::show_bytes;
use serde::Deserialize;
use serde_json::Value;

/// Image types that models can view.
const VIEWABLE_TYPES: [&str; 4] = ["image/png", "image/jpeg", "image/gif", "image/webp"];
/// Maximum number of images in one answer.
const MAX_IMAGES: usize = 8;
/// Maximum size of an image in base64, in bytes.
const MAX_IMAGE_BASE64_BYTES: usize = 4 << 20;

/// The answer of a tool.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolAnswer {
    /// Text for the model.
    pub text: String,
    /// Images for the model.
    pub images: Vec<AnswerImage>,
    /// The complete answer, matching the tool's output schema; absent if the call failed.
    pub structured: Option<Value>,
}

/// An image in an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AnswerImage {
    /// MIME type, e.g. `image/png`.
    pub mime_type: String,
    /// Content in base64.
    pub data: String,
}

impl ToolAnswer {
    pub(crate) fn new(text: String, structured: Value) -> Self {
        Self { text, images: Vec::new(), structured: Some(structured) }
    }

    /// Creates the answer for a failed call, so that the model can correct it.
    pub fn failure(error: &crate::Error) -> Self {
        Self { text: format!("The call failed: {error}"), images: Vec::new(), structured: None }
    }

    /// Returns whether the call failed. A failed program is not a failed call.
    pub fn is_error(&self) -> bool {
        self.structured.is_none()
    }
}

/// An artifact in the result object.
#[derive(Debug, Deserialize)]
pub(crate) struct ResultArtifact {
    pub(crate) name: String,
    pub(crate) mime_type: String,
    pub(crate) size: u64,
    content_base64: Option<String>,
    url: Option<String>,
}

impl ResultArtifact {
    fn is_viewable(&self) -> bool {
        VIEWABLE_TYPES.contains(&self.mime_type.as_str())
            && self.content_base64.as_ref().is_some_and(|content| content.len() <= MAX_IMAGE_BASE64_BYTES)
    }

    pub(crate) fn describe(&self) -> String {
        let place = self.url.as_ref().map(|url| format!(", at {url}")).unwrap_or_default();
        format!("{} ({}, {}{place})", self.name, self.mime_type, show_bytes(self.size))
    }
}

/// Returns the artifacts that a model can view.
pub(crate) fn viewable_images(artifacts: Vec<ResultArtifact>) -> Vec<AnswerImage> {
    let seen = artifacts.into_iter().filter(ResultArtifact::is_viewable).take(MAX_IMAGES);
    seen.filter_map(|artifact| {
        Some(AnswerImage { mime_type: artifact.mime_type, data: artifact.content_base64? })
    })
    .collect()
}
