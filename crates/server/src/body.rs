//! Bodies: read within a length, a time and a share of the memory that all of them have together.

use axum::body::Body;
use axum::extract::{FromRequest, Request};
use axum::http::{HeaderMap, header};
use belljar_engine::quantity::show_bytes;
use http_body_util::BodyExt;
use hyper::body::Body as _;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use crate::error::Error;
use crate::world::World;

/// A body, and the share of memory that it takes for as long as this is kept.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) bytes: Vec<u8>,
    pub(crate) share: Share,
}

impl FromRequest<Arc<World>> for Whole {
    type Rejection = Error;

    async fn from_request(request: Request, world: &Arc<World>) -> Result<Self, Error> {
        check_type(request.headers(), &["json"])?;
        let settings = &world.settings;
        let share = Share::new(&world.bodies);
        let reading = read(request.into_body(), settings.max_body, share);
        timeout(settings.body_timeout, reading).await.map_err(|_| Error::SlowBody)?
    }
}

/// Reads a body of a few known fields; an empty one has none of them.
pub(crate) fn parse<T: DeserializeOwned>(body: &Whole) -> Result<T, Error> {
    let bytes = if body.bytes.trim_ascii().is_empty() { b"{}" } else { body.bytes.as_slice() };
    Ok(belljar_engine::json::object(bytes)?)
}

/// Refuses what is plainly something else. A form of another site can be sent without asking, but not as JSON.
pub(crate) fn check_type(headers: &HeaderMap, kinds: &[&str]) -> Result<(), Error> {
    let Some(value) = headers.get(header::CONTENT_TYPE) else { return Ok(()) };
    let text = value.to_str().unwrap_or_default().to_ascii_lowercase();
    let kind = text.split(';').next().unwrap_or_default().trim();
    let fits = kind.strip_prefix("application/").is_some_and(|kind| {
        kinds.iter().any(|wanted| kind == *wanted || kind.ends_with(&format!("+{wanted}")))
    });
    if fits && !headers.contains_key(header::CONTENT_ENCODING) { Ok(()) } else { Err(Error::MediaType) }
}

async fn read(mut body: Body, limit: usize, mut share: Share) -> Result<Whole, Error> {
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        return Err(too_large(limit));
    }
    share.cover(announced as usize)?;
    let mut bytes = Vec::with_capacity(announced as usize);
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|_| Error::SlowBody)?.into_data() else { continue };
        if bytes.len() + data.len() > limit {
            return Err(too_large(limit));
        }
        share.cover(bytes.len() + data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(Whole { bytes, share })
}

pub(crate) fn too_large(limit: usize) -> Error {
    Error::TooLarge(show_bytes(limit as u64))
}

/// A share of the memory for bodies; given back when dropped.
#[derive(Debug)]
pub(crate) struct Share {
    pool: Arc<Semaphore>,
    held: Option<OwnedSemaphorePermit>,
}

impl Share {
    pub(crate) fn new(pool: &Arc<Semaphore>) -> Self {
        Self { pool: Arc::clone(pool), held: None }
    }

    /// Makes it large enough for so many bytes.
    pub(crate) fn cover(&mut self, bytes: usize) -> Result<(), Error> {
        let wanted = bytes.div_ceil(1 << 10);
        let held = self.held.as_ref().map_or(0, OwnedSemaphorePermit::num_permits);
        let Some(more) = wanted.checked_sub(held).filter(|more| *more > 0) else { return Ok(()) };
        let more = u32::try_from(more).map_err(|_| Error::Overloaded)?;
        let permit = Arc::clone(&self.pool).try_acquire_many_owned(more).map_err(|_| Error::Overloaded)?;
        match &mut self.held {
            Some(held) => held.merge(permit),
            None => self.held = Some(permit),
        }
        Ok(())
    }
}
