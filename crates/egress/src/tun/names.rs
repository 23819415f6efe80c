//! Addresses that stand for names. A program that looks up a name gets an address of the sandbox's own table,
//! and a connection to it is one to the name: the gate resolves the name itself when it connects.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// The first address of the table: 198.18.0.0/15 is for tests of network devices, so no server has one of them.
/// The addresses below belong to the device.
const FIRST: u32 = u32::from_be_bytes([198, 18, 1, 0]);
/// Names of one sandbox. An address is never used for another name, because programs keep addresses.
const MAX_NAMES: usize = 10_000;

/// The names that a sandbox has looked up, and their addresses.
#[derive(Debug, Default)]
pub(crate) struct SyntheticNames(Mutex<NameTable>);

#[derive(Debug, Default)]
struct NameTable {
    names: Vec<String>,
    positions: HashMap<String, usize>,
}

impl SyntheticNames {
    fn lock(&self) -> MutexGuard<'_, NameTable> {
        // Each statement leaves the table consistent, so a panic elsewhere does not corrupt it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the address of a name; `None` if the table is full.
    pub(crate) fn address_of(&self, name: &str) -> Option<Ipv4Addr> {
        let mut table = self.lock();
        let position = match table.positions.get(name) {
            Some(known) => *known,
            None if table.names.len() >= MAX_NAMES => return None,
            None => {
                table.names.push(name.to_owned());
                let position = table.names.len() - 1;
                table.positions.insert(name.to_owned(), position);
                position
            }
        };
        Some(Ipv4Addr::from(FIRST + u32::try_from(position).ok()?))
    }

    /// Returns the name that an address stands for.
    pub(crate) fn name_at(&self, address: IpAddr) -> Option<String> {
        let IpAddr::V4(address) = address else { return None };
        let position = u32::from(address).checked_sub(FIRST)?;
        self.lock().names.get(usize::try_from(position).ok()?).cloned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_name_keeps_its_address_and_the_table_is_bounded() {
        let names = SyntheticNames::default();
        let first = names.address_of("0.test");
        assert_eq!(first, Some([198, 18, 1, 0].into()));
        for number in 0..MAX_NAMES {
            let name = format!("{number}.test");
            let address = names.address_of(&name).unwrap();
            assert!(matches!(address.octets(), [198, 18 | 19, ..]));
            assert_eq!(names.name_at(address.into()), Some(name));
        }
        assert_eq!((names.address_of("more.test"), names.address_of("0.test")), (None, first));
        assert_eq!(names.name_at(Ipv4Addr::from(FIRST + MAX_NAMES as u32).into()), None);
        assert_eq!(names.name_at([198, 18, 0, 1].into()), None);
    }
}
