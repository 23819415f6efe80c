//! Saves the artifacts of a server's result. Those that are not part of it are fetched.

use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use belljar_engine::artifact::ArtifactLimits;
use http_body_util::BodyExt;
use hyper::Method;
use serde::Deserialize;

use super::http::Server;
use crate::artifacts::ArtifactFolder;
use crate::error::CliError;

/// The fields of an artifact that are saved.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ArtifactView {
    name: String,
    content_base64: Option<String>,
    url: Option<String>,
}

/// Saves the artifacts of a result.
pub(super) async fn save_artifacts(
    server: &Server,
    folder: &ArtifactFolder,
    index: Option<u64>,
    artifacts: &[ArtifactView],
) -> Result<(), CliError> {
    for ArtifactView { name, content_base64, url } in artifacts {
        match (content_base64, url) {
            (Some(content), _) => {
                let content = STANDARD.decode(content);
                let content = content.map_err(|error| folder.failed(name, &io::Error::other(error)))?;
                folder.save(index, name, &content)?;
            }
            (None, Some(url)) => fetch(server, url, folder, index, name).await?,
            (None, None) => return Err(folder.failed(name, &io::Error::other("the server sent no content"))),
        }
    }
    Ok(())
}

async fn fetch(
    server: &Server,
    url: &str,
    folder: &ArtifactFolder,
    index: Option<u64>,
    name: &str,
) -> Result<(), CliError> {
    // The API key is only ever sent to the configured server: this is a path on it.
    if !url.starts_with("/v1/executions/") {
        return Err(folder.failed(name, &io::Error::other("the server sent an unknown kind of URL")));
    }
    let mut body = server.send(Method::GET, url, "*/*", None).await?.into_body();
    let mut file = folder.create(index, name)?;
    let mut left = ArtifactLimits::CEILING.file_bytes;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| folder.failed(name, &io::Error::other(error)))?;
        let bytes = frame.data_ref().map_or(&[][..], |bytes| bytes);
        left = left.checked_sub(bytes.len() as u64).ok_or_else(|| {
            folder.failed(name, &io::Error::other("the server sends more than an artifact may have"))
        })?;
        file.write_all(bytes).map_err(|error| folder.failed(name, &error))?;
    }
    Ok(())
}
