//! Bounds of a request with many inputs: their number, what is stored for each, and the memory while they run.

use belljar_engine::quantity::show_bytes;
use serde_json::{Map, Value};

use crate::error::Error;

/// Refuses no inputs, and too many.
pub(super) fn check_count(count: usize, most: usize) -> Result<(), Error> {
    let message = match count {
        0 => "is empty; name at least one input, such as {}".to_owned(),
        count if count > most => format!(
            "{count} inputs are more than {most}; send them in several requests, or raise the setting \
             server.max_inputs"
        ),
        _ => return Ok(()),
    };
    Err(Error::Invalid { field: "inputs", message })
}

/// Bounds what is stored: each execution has its own copy of the metadata.
pub(super) fn check_metadata(metadata: &Map<String, Value>, count: usize, most: usize) -> Result<(), Error> {
    let size = serde_json::to_string(metadata).map_or(0, |text| text.len());
    if size.saturating_mul(count) <= most {
        return Ok(());
    }
    let (size, most) = (show_bytes(size as u64), show_bytes(most as u64));
    let message = format!("{size} for each of {count} inputs are more than {most} together; shorten it");
    Err(Error::Invalid { field: "metadata", message })
}

/// Returns how many inputs may run at the same time.
pub(super) fn allowed_jobs(asked: Option<u32>, most: usize) -> Result<usize, Error> {
    match asked {
        Some(0) => Err(Error::Invalid { field: "jobs", message: "must be at least 1".to_owned() }),
        Some(asked) => Ok(most.min(usize::try_from(asked).unwrap_or(usize::MAX))),
        None => Ok(most),
    }
}

/// Returns how many inputs may run at the same time, and the memory for their copies of what they share, beyond the
/// one that every request has. Together with the body they are no larger than a body may be.
pub(super) fn fit_into_memory(jobs: usize, shared: usize, body: u64, max_body: usize) -> (usize, u64) {
    let (shared, room) = (shared.max(1) as u64, (max_body as u64).saturating_sub(body));
    let copies = (room / shared).min(jobs.saturating_sub(1) as u64);
    (copies as usize + 1, copies * shared)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_what_inputs_share_fit_beside_the_body() {
        assert_eq!(fit_into_memory(4, 100, 1_000, 10_000), (4, 300));
        assert_eq!(fit_into_memory(4, 4_000, 5_000, 10_000), (2, 4_000));
        assert_eq!(fit_into_memory(4, 9_000, 9_500, 10_000), (1, 0));
        assert_eq!(fit_into_memory(1, 0, 0, 10_000), (1, 0));
    }

    #[test]
    fn a_request_may_ask_for_fewer_jobs_than_allowed() {
        let jobs = [None, Some(1), Some(9)].map(|asked| allowed_jobs(asked, 4).unwrap());
        assert_eq!(jobs, [4, 1, 4]);
        assert!(allowed_jobs(Some(0), 4).is_err());
    }

    #[test]
    fn metadata_is_bounded_over_all_inputs() {
        let metadata = Map::from_iter([("a".to_owned(), Value::from("x".repeat(92)))]);
        assert!(check_metadata(&metadata, 10, 1_000).is_ok());
        let refused = check_metadata(&metadata, 11, 1_000).unwrap_err().to_string();
        assert!(refused.starts_with("metadata: 100 bytes for each of 11 inputs"), "{refused}");
    }
}
