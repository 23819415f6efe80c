//! Removing files in a sandbox.

use hyper::Method;

use super::{call, sandbox_url};
use crate::error::CliError;
use crate::remote::for_each_name;
use crate::remote::http::{Server, encode_part};

/// Removes all paths, and reports those that cannot be removed.
pub(super) fn remove(server: &Server, id: &str, paths: &[String], recursive: bool) -> Result<u8, CliError> {
    for_each_name(paths, |path| {
        let query = format!("/files?path={}&recursive={recursive}", encode_part(path));
        call(server, Method::DELETE, &sandbox_url(id, &query), None).map(drop)
    })
}
