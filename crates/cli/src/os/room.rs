//! A folder that files of a stranger are put into, and never beside: every name is looked up from the open folder, part
//! by part, and no link is followed.

#[cfg(not(unix))]
pub(crate) use elsewhere::Room;
#[cfg(unix)]
pub(crate) use posix::Room;

/// How many folders may have permissions that can only be set when everything is in them.
#[cfg(unix)]
const MOST_CLOSED: usize = 10_000;

#[cfg(unix)]
mod posix {
    use std::fs::File;
    use std::io;
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{AtFlags, CWD, Mode, OFlags, fchmod, mkdirat, openat, symlinkat, unlinkat};
    use rustix::io::Errno;

    use super::MOST_CLOSED;

    const FOLDER: OFlags =
        OFlags::RDONLY.union(OFlags::DIRECTORY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

    #[derive(Debug)]
    pub(crate) struct Room {
        root: OwnedFd,
        /// Folders that their owner may not write into, and what they get in the end.
        closed: Vec<(Vec<Vec<u8>>, u32)>,
    }

    impl Room {
        /// The folder itself is the person's choice, so links on the way to it are theirs.
        pub(crate) fn open(path: &Path) -> io::Result<Self> {
            let flags = FOLDER.difference(OFlags::NOFOLLOW);
            Ok(Self { root: openat(CWD, path, flags, Mode::empty())?, closed: Vec::new() })
        }

        /// Makes a folder, where there is none, and sets its permissions.
        pub(crate) fn folder(&mut self, parts: &[&[u8]], mode: u32) -> io::Result<()> {
            let folder = self.descend(parts)?;
            if mode & 0o300 != 0o300 {
                if self.closed.len() == MOST_CLOSED {
                    return Err(io::Error::other("too many folders that may not be written into"));
                }
                self.closed.push((parts.iter().map(|part| part.to_vec()).collect(), mode));
            }
            Ok(fchmod(&folder, Mode::from_raw_mode((mode & 0o777 | 0o700) as _))?)
        }

        /// A new file, in place of whatever has its name. Only its owner may open it until it is [`Room::settle`]d.
        pub(crate) fn file(&self, parts: &[&[u8]]) -> io::Result<File> {
            let (folder, name) = self.place(parts)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let mode = Mode::from_raw_mode(0o600);
            let file = replacing(&folder, name, || openat(&folder, name, flags, mode))?;
            Ok(File::from(file))
        }

        /// Gives a file its permissions, without setuid and its kin.
        pub(crate) fn settle(file: &File, mode: u32) -> io::Result<()> {
            Ok(fchmod(file, Mode::from_raw_mode((mode & 0o777) as _))?)
        }

        /// A new symbolic link, in place of whatever has its name.
        pub(crate) fn link(&self, parts: &[&[u8]], target: &[u8]) -> io::Result<()> {
            let (folder, name) = self.place(parts)?;
            Ok(replacing(&folder, name, || symlinkat(target, &folder, name))?)
        }

        /// Sets what could not be set before everything was there.
        pub(crate) fn finish(self) -> io::Result<()> {
            // What is inside comes later in an archive than what it is in, and must be reached through it.
            for (parts, mode) in self.closed.iter().rev() {
                let parts: Vec<_> = parts.iter().map(Vec::as_slice).collect();
                fchmod(self.descend(&parts)?, Mode::from_raw_mode((mode & 0o777) as _))?;
            }
            Ok(())
        }

        fn place<'a>(&self, parts: &[&'a [u8]]) -> io::Result<(OwnedFd, &'a [u8])> {
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
                        io::Error::other("its path leads through a link or a file")
                    }
                    errno => errno.into(),
                })?;
            }
            Ok(folder)
        }
    }

    /// Makes something under a name that another may have; that one is taken away, never followed.
    fn replacing<T>(folder: &OwnedFd, name: &[u8], make: impl Fn() -> Result<T, Errno>) -> Result<T, Errno> {
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
    pub(crate) struct Room(Infallible);

    impl Room {
        pub(crate) fn open(_path: &Path) -> io::Result<Self> {
            Err(io::Error::other("folders cannot be taken out of a sandbox on this system; take files"))
        }

        pub(crate) fn folder(&mut self, _parts: &[&[u8]], _mode: u32) -> io::Result<()> {
            match self.0 {}
        }

        pub(crate) fn file(&self, _parts: &[&[u8]]) -> io::Result<File> {
            match self.0 {}
        }

        pub(crate) fn settle(_file: &File, _mode: u32) -> io::Result<()> {
            Ok(())
        }

        pub(crate) fn link(&self, _parts: &[&[u8]], _target: &[u8]) -> io::Result<()> {
            match self.0 {}
        }

        pub(crate) fn finish(self) -> io::Result<()> {
            match self.0 {}
        }
    }
}
