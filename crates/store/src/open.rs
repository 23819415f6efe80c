//! Opens the database: takes the lock, creates the file with its mode, configures each connection and runs
//! the migrations.

use std::fs::{self, File, OpenOptions, Permissions, TryLockError};
use std::num::NonZeroU16;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};
use rusqlite_migration::{M, Migrations};

use crate::error::Error;

/// Marks a database file as Belljar's: "Bjar" in ASCII.
const APPLICATION_ID: i32 = 0x426A_6172;
/// How long a connection waits for a lock. No other program should hold one, but a backup tool may, briefly.
pub(crate) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);
/// Size to which the write-ahead log is truncated after it has grown beyond it.
const WAL_LIMIT_BYTES: i64 = 64 << 20;
const DEFAULT_READERS: NonZeroU16 = NonZeroU16::MIN.saturating_add(1);
const DEFAULT_MAX_QUEUED: NonZeroU16 = NonZeroU16::MIN.saturating_add(4_095);
const CACHED_STATEMENTS: usize = 64;
const PAGE_BYTES: u64 = 4 << 10;

/// Migrations in their permanent order: a database stores how many of them it has applied.
const MIGRATIONS: &[M<'static>] = &[
    M::up(include_str!("../migrations/0001_first.sql")),
    M::up(include_str!("../migrations/0002_metadata_and_audit_age.sql")),
    M::up(include_str!("../migrations/0003_bounded_refusals.sql")),
    M::up(include_str!("../migrations/0004_tenant_policy.sql")),
    M::up(include_str!("../migrations/0005_providers.sql")),
    M::up(include_str!("../migrations/0006_artifacts.sql")),
    M::up(include_str!("../migrations/0007_tenant_deletion.sql")),
    M::up(include_str!("../migrations/0008_sandbox_end_reason.sql")),
];

/// Which failures an acknowledged write survives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Durability {
    /// Survives the end of the process, even by `kill -9`. Does not wait for the disk.
    #[default]
    Process,
    /// Also survives a power loss: every group of writes waits for the disk.
    Power,
}

/// Settings of a store.
#[derive(Debug, Clone)]
pub struct StoreOptions {
    /// Which failures an acknowledged write survives.
    pub durability: Durability,
    /// Number of reader threads.
    pub readers: NonZeroU16,
    /// Maximum number of queued writes, and of queued reads; further ones are refused.
    pub max_queued: NonZeroU16,
    /// Maximum size of the queued writes, in bytes.
    pub queue_bytes: usize,
    /// Time limit of one query.
    pub read_timeout: Duration,
    /// Maximum size of the database file; `None` means limited only by the disk.
    pub max_bytes: Option<u64>,
}

impl Default for StoreOptions {
    fn default() -> Self {
        Self {
            durability: Durability::Process,
            readers: DEFAULT_READERS,
            max_queued: DEFAULT_MAX_QUEUED,
            queue_bytes: 256 << 20,
            read_timeout: Duration::from_secs(5),
            max_bytes: None,
        }
    }
}

/// Lock on the database, held as long as any thread of the store runs.
#[derive(Debug)]
pub(crate) struct DatabaseLock(#[expect(dead_code, reason = "an open file is the lock")] File);

impl DatabaseLock {
    /// Locks a separate file, because locks on the database file belong to SQLite.
    pub(crate) fn acquire(database: &Path) -> Result<Self, Error> {
        let path = database.with_extension("lock");
        let failed = |error: std::io::Error| Error::Open { path: path.clone(), reason: error.to_string() };
        let file = open_private(&path).map_err(failed)?;
        match file.try_lock() {
            Ok(()) => Ok(Self(file)),
            Err(TryLockError::WouldBlock) => Err(Error::Locked { path }),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        }
    }
}

/// Opens a file that only its owner may read, creating it if needed.
pub(crate) fn open_private(path: &Path) -> std::io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

/// Opens the connection that writes, and migrates the database to the newest schema.
pub(crate) fn open_writer(path: &Path, options: &StoreOptions) -> Result<Connection, Error> {
    let failed = |error: std::io::Error| Error::Open { path: path.to_owned(), reason: error.to_string() };
    // SQLite gives its other files the mode of this one. Close it before SQLite opens it: closing it later
    // would drop SQLite's POSIX locks.
    open_private(path).map_err(failed)?;
    fs::set_permissions(path, Permissions::from_mode(0o600)).map_err(failed)?;
    let mut connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    claim(&connection, path)?;
    configure_writer(&connection, options).map_err(|error| open_error(path, error))?;
    migrate(&mut connection, path, MIGRATIONS)?;
    Ok(connection)
}

/// Opens the second writable connection, which only checkpoints the write-ahead log.
pub(crate) fn open_checkpointer(path: &Path, options: &StoreOptions) -> Result<Connection, Error> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
    configure_writer(&connection, options).map_err(|error| open_error(path, error))?;
    Ok(connection)
}

/// Opens a connection that cannot write.
pub(crate) fn open_reader(path: &Path) -> Result<Connection, Error> {
    let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
    connection.pragma_update(None, "query_only", true).map_err(|error| open_error(path, error))?;
    Ok(connection)
}

fn connect(path: &Path, access: OpenFlags) -> Result<Connection, Error> {
    let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX | OpenFlags::SQLITE_OPEN_EXRESCODE;
    let connection = Connection::open_with_flags(path, flags).map_err(|error| open_error(path, error))?;
    harden(&connection).map_err(|error| open_error(path, error))?;
    Ok(connection)
}

fn harden(connection: &Connection) -> rusqlite::Result<()> {
    connection.busy_timeout(BUSY_TIMEOUT)?;
    connection.set_prepared_statement_cache_capacity(CACHED_STATEMENTS);
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_TRUSTED_SCHEMA, false)?;
    connection.pragma_update(None, "temp_store", "memory")
}

/// Refuses a database of another program and marks an empty one as Belljar's.
fn claim(connection: &Connection, path: &Path) -> Result<(), Error> {
    let number = |name| connection.pragma_query_value(None, name, |row| row.get::<_, i32>(0));
    let foreign = || Error::Foreign { path: path.to_owned() };
    let (id, pages) = (number("application_id"), number("page_count"));
    match (id.map_err(|error| open_error(path, error))?, pages.map_err(|error| open_error(path, error))?) {
        (APPLICATION_ID, _) => Ok(()),
        (0, 0) => {
            // Only possible while there is no table. Lets the file shrink later without being rewritten.
            let pragmas = connection
                .pragma_update(None, "auto_vacuum", "incremental")
                .and_then(|()| connection.pragma_update(None, "application_id", APPLICATION_ID));
            pragmas.map_err(|error| open_error(path, error))
        }
        _ => Err(foreign()),
    }
}

fn configure_writer(connection: &Connection, options: &StoreOptions) -> rusqlite::Result<()> {
    let synchronous = match options.durability {
        Durability::Process => "normal",
        Durability::Power => "full",
    };
    let mode: String = connection.pragma_update_and_check(None, "journal_mode", "wal", |row| row.get(0))?;
    if mode != "wal" {
        // Some file systems do not support shared memory, and readers would then wait for the writer.
        return Err(rusqlite::Error::InvalidParameterName(format!("journal mode is {mode}, not wal")));
    }
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "foreign_keys", true)?;
    // Overwrites rows that retention deletes, where that costs no extra I/O.
    connection.pragma_update_and_check(None, "secure_delete", "fast", |_| Ok(()))?;
    connection.pragma_update_and_check(None, "journal_size_limit", WAL_LIMIT_BYTES, |_| Ok(()))?;
    if let Some(bytes) = options.max_bytes {
        let pages = i64::try_from(bytes / PAGE_BYTES).unwrap_or(i64::MAX);
        connection.pragma_update_and_check(None, "max_page_count", pages, |_| Ok(()))?;
    }
    Ok(())
}

fn migrate(connection: &mut Connection, path: &Path, migrations: &[M<'_>]) -> Result<(), Error> {
    use rusqlite_migration::{Error as Failed, MigrationDefinitionError::DatabaseTooFarAhead};
    Migrations::from_slice(migrations).to_latest(connection).map_err(|error| match error {
        Failed::MigrationDefinition(DatabaseTooFarAhead) => Error::TooNew { path: path.to_owned() },
        Failed::RusqliteError { err, .. } => open_error(path, err),
        other => Error::Open { path: path.to_owned(), reason: other.to_string() },
    })
}

/// Adds the file's path to an error that occurred while opening it.
fn open_error(path: &Path, error: rusqlite::Error) -> Error {
    let path = PathBuf::from(path);
    match Error::from(error) {
        Error::Damaged(_) => Error::Foreign { path },
        Error::Busy => Error::Locked { path },
        Error::Database(error) => Error::Open { path, reason: error.to_string() },
        Error::Disk(reason) => Error::Open { path, reason },
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_migration_applies() {
        Migrations::from_slice(MIGRATIONS).validate().unwrap();
    }

    #[test]
    fn the_file_is_private_and_marked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("belljar.db");
        fs::write(&path, "").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let connection = open_writer(&path, &StoreOptions::default()).unwrap();
        for file in ["belljar.db", "belljar.db-wal", "belljar.db-shm"] {
            let mode = fs::metadata(folder.path().join(file)).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{file}");
        }
        let vacuum: i32 = connection.pragma_query_value(None, "auto_vacuum", |row| row.get(0)).unwrap();
        assert_eq!(vacuum, 2);
        assert!(open_reader(&path).unwrap().execute("DELETE FROM tenants", []).is_err());
    }

    #[test]
    fn foreign_and_newer_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("belljar.db");
        fs::write(&path, "not a database, but a text of some length that must not be lost".repeat(9))
            .unwrap();
        assert!(matches!(open_writer(&path, &StoreOptions::default()), Err(Error::Foreign { .. })));
        fs::remove_file(&path).unwrap();
        Connection::open(&path).unwrap().execute_batch("CREATE TABLE theirs (x)").unwrap();
        assert!(matches!(open_writer(&path, &StoreOptions::default()), Err(Error::Foreign { .. })));
        fs::remove_file(&path).unwrap();
        open_writer(&path, &StoreOptions::default())
            .unwrap()
            .pragma_update(None, "user_version", 99)
            .unwrap();
        assert!(matches!(open_writer(&path, &StoreOptions::default()), Err(Error::TooNew { .. })));
    }
}
