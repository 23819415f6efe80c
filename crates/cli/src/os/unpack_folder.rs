//! A target folder for untrusted files, which cannot be escaped: every name is looked up from the open
//! folder, part by part, and no symbolic link is followed.

#[cfg(not(unix))]
pub(crate) use elsewhere::Room;
#[cfg(unix)]
pub(crate) use posix::UnpackFolder;

/// Maximum number of folders whose permissions can be set only after their content is written.
#[cfg(unix)]
const MAX_PENDING_MODES: usize = 10_000;

#[cfg(unix)]
mod posix {
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, symlinkat, unlinkat};
    use rustix::io::Errno;

    use super::MAX_PENDING_MODES;

    const FOLDER: OFlags =
        OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

    #[derive(Debug)]
    pub(crate) struct UnpackFolder {
        root: OwnedFd,
        /// Folders that their owner may not write to, and their final permissions.
        pending_modes: Vec<(Vec<Vec<u8>>, u32)>,
    }

    impl UnpackFolder {
        /// Opens the folder. The user chose it, so symbolic links on the path to it are followed.
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let flags = FOLDER.difference(OFlags::NOFOLLOW);
            Ok(Self { root: openat(CWD, path, flags, Mode::empty())?, pending_modes: Vec::new() })
        }

        /// Creates a folder if it is missing, and sets its permissions.
        pub(crate) fn create_folder(&mut self, parts: &[&[u8]], mode: u32) -> io::Result<()> {
            let folder = self.descend(parts)?;
            if mode & 0o300 != 0o300 {
                if self.pending_modes.len() == MAX_PENDING_MODES {
                    return Err(io::Error::other("too many read-only folders"));
                }
                self.pending_modes.push((parts.iter().map(|part| part.to_vec()).collect(), mode));
            }
            Ok(fchmod(&folder, Mode::from_raw_mode((mode & 0o777 | 0o700) as _))?)
        }

        /// Creates a file in place of anything with its name. Only its owner may open it until
        /// [`Room::settle`] is called.
        pub(crate) fn create_file(&self, parts: &[&[u8]]) -> io::Result<File> {
            let (folder, name) = self.open_parent(parts)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o600);
            let file = create_replacing(&folder, name, || openat(&folder, name, flags, mode))?;
            Ok(File::from(file))
        }

        /// Sets a file's permissions, without setuid, setgid and sticky.
        pub(crate) fn set_permissions(file: &File, mode: u32) -> io::Result<()> {
            Ok(fchmod(file, Mode::from_raw_mode((mode & 0o777) as _))?)
        }

        /// Creates a symbolic link in place of anything with its name.
        pub(crate) fn create_link(&self, parts: &[&[u8]], target: &[u8]) -> io::Result<()> {
            let (folder, name) = self.open_parent(parts)?;
            Ok(create_replacing(&folder, name, || symlinkat(target, &folder, name))?)
        }

        /// Sets the permissions that could not be set before all content was written.
        pub(crate) fn apply_pending_modes(self) -> io::Result<()> {
            // A folder comes before its content in an archive, and its content must stay reachable through
            // it.
            for (parts, mode) in self.pending_modes.iter().rev() {
                let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
                fchmod(self.descend(&parts)?, Mode::from_raw_mode((mode & 0o777) as _))?;
            }
            Ok(())
        }

        fn open_parent<'a>(&self, parts: &[&'a [u8]]) -> io::Result<(OwnedFd, &'a [u8])> {
            let (name, folders) = parts.split_last().ok_or(io::ErrorKind::InvalidInput)?;
            Ok((self.descend(folders)?, name))
        }

        fn descend(&self, parts: &[&[u8]]) -> io::Result<OwnedFd> {
            let mut folder = self.root.try_clone()?;
            for part in parts {
                let mut inner = openat(&folder, *part, FOLDER, Mode::empty());
                if matches!(inner, Err(Errno::NOENT)) {
                    mkdirat(&folder, *part, Mode::from_raw_mode(0o755))?;
                    inner = openat(&folder, *part, FOLDER, Mode::empty());
                }
                folder = inner.map_err(|errno| match errno {
                    Errno::LOOP | Errno::NOTDIR | Errno::MLINK => {
                        io::Error::other("its path leads through a symbolic link or a file")
                    }
                    errno => errno.into(),
                })?;
            }
            Ok(folder)
        }
    }

    /// Creates something under a name. An existing entry of that name is removed, never followed.
    fn create_replacing<T>(
        folder: &OwnedFd,
        name: &[u8],
        make: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match make() {
            Err(Errno::EXIST) => match unlinkat(folder, name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => make(),
                Err(errno) => Err(errno),
            },
            made => made,
        }
    }
}

#[cfg(not(unix))]
mod elsewhere {
    use std::convert::Infallible;
    use std::fs::File;
    use std::io;
    use std::path::Path;

    #[derive(Debug)]
    pub(crate) struct UnpackFolder(Infallible);

    impl UnpackFolder {
        pub(crate) fn open(_path: &Path) -> io::Result<Self> {
            Err(io::Error::other(
                "folders cannot be copied out of a sandbox on this system; copy single files",
            ))
        }

        pub(crate) fn create_folder(&mut self, _parts: &[&[u8]], _mode: u32) -> io::Result<()> {
            match self.0 {}
        }

        pub(crate) fn create_file(&self, _parts: &[&[u8]]) -> io::Result<File> {
            match self.0 {}
        }

        pub(crate) fn set_permissions(_file: &File, _mode: u32) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn create_link(&self, _parts: &[&[u8]], _target: &[u8]) -> io::Result<()> {
            match self.0 {}
        }

        pub(crate) fn apply_pending_modes(self) -> io::Result<()> {
            match self.0 {}
        }
    }
}
