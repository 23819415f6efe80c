//! Creates execution ids. They are unguessable, because the id alone lets a later request fetch a result.

use std::fs::File;
use std::io::Read;

use crate::error::CliError;

/// Digits that are hard to misread (Crockford's base 32).
const DIGITS: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";

/// Creates an id: `exec_` and 128 random bits.
pub(crate) fn execution_id() -> Result<String, CliError> {
    random_id("exec").ok_or_else(|| CliError::host("cannot read /dev/urandom for an execution id"))
}

/// Creates a random id: the kind and 128 random bits.
pub(crate) fn random_id(kind: &str) -> Option<String> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).ok()?;
    Some(format!("{kind}_{}", base32(u128::from_be_bytes(bytes))))
}

fn base32(bits: u128) -> String {
    (0..26).rev().map(|digit| char::from(DIGITS[(bits >> (5 * digit)) as usize & 31])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_have_one_shape_and_differ() {
        assert_eq!(base32(0), "0".repeat(26));
        assert_eq!(base32(u128::MAX), format!("7{}", "z".repeat(25)));
        let (one, two) = (execution_id().unwrap(), execution_id().unwrap());
        assert_eq!(one.len(), 31);
        assert_ne!(one, two);
    }
}
