//! Fake storage for volumes and snapshots: directories that do not exist, and snapshots in memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::Duration;

use belljar_engine::host_storage::{
    HostFolder, HostStorage, HostStorageError, StorageFuture, VolumeMeasurement, VolumeUsage,
};
use belljar_engine::sandbox_handle::ByteSource;
use tokio::io::AsyncReadExt;

#[derive(Debug, Default)]
pub(crate) struct FakePlaces {
    volumes: Mutex<BTreeSet<String>>,
    snapshots: Mutex<BTreeMap<String, Vec<u8>>>,
}

fn ready<'a, T: Send + 'a>(value: Result<T, HostStorageError>) -> StorageFuture<'a, T> {
    Box::pin(std::future::ready(value))
}

fn there(was: bool) -> Result<(), HostStorageError> {
    was.then_some(()).ok_or(HostStorageError::Missing)
}

impl HostStorage for FakePlaces {
    fn make_volume<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()> {
        assert!(self.volumes.lock().unwrap().insert(id.to_owned()));
        ready(Ok(()))
    }

    fn remove_volume<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()> {
        ready(there(self.volumes.lock().unwrap().remove(id)))
    }

    fn volume_folder(&self, id: &str) -> PathBuf {
        PathBuf::from("/nowhere").join(id)
    }

    fn measure_volume<'a>(&'a self, id: &'a str, _most: u64) -> StorageFuture<'a, VolumeMeasurement> {
        let known = there(self.volumes.lock().unwrap().contains(id));
        ready(known.map(|()| VolumeMeasurement { usage: VolumeUsage::Bytes(7), took: Duration::ZERO }))
    }

    fn free_bytes(&self) -> StorageFuture<'_, u64> {
        ready(Ok(1 << 40))
    }

    fn write_snapshot<'a>(
        &'a self,
        id: &'a str,
        mut source: ByteSource<'a>,
        _most: u64,
    ) -> StorageFuture<'a, u64> {
        Box::pin(async move {
            let mut bytes = Vec::new();
            source.read_to_end(&mut bytes).await.map_err(HostStorageError::Source)?;
            let size = bytes.len() as u64;
            self.snapshots.lock().unwrap().insert(id.to_owned(), bytes);
            Ok(size)
        })
    }

    fn read_snapshot<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ByteSource<'static>> {
        let bytes = self.snapshots.lock().unwrap().get(id).cloned().ok_or(HostStorageError::Missing);
        ready(bytes.map(|bytes| Box::pin(std::io::Cursor::new(bytes)) as ByteSource<'static>))
    }

    fn remove_snapshot<'a>(&'a self, id: &'a str) -> StorageFuture<'a, ()> {
        ready(there(self.snapshots.lock().unwrap().remove(id).is_some()))
    }

    fn remove_unlisted<'a>(
        &'a self,
        volumes: &'a [String],
        _snapshots: &'a [String],
    ) -> StorageFuture<'a, usize> {
        self.volumes.lock().unwrap().extend(volumes.iter().cloned());
        ready(Ok(0))
    }

    fn host_folder<'a>(&'a self, _name: &'a str) -> StorageFuture<'a, HostFolder> {
        ready(Err(HostStorageError::Missing))
    }
}
