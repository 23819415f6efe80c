//! Reads the inputs of a run from this machine: code, standard input and files. Every input is bounded, and
//! refused before it is read if it is too large.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
// The bounds of admission, applied here too so that larger inputs are not held in memory.
use belljar_engine::admit::{MAX_CODE_BYTES, MAX_INPUT_FILES, MAX_STDIN_BYTES};
use belljar_engine::quantity::show_bytes;
use belljar_engine::request::FileSpec;

use crate::error::{CliError, quote_path};
use crate::os;

/// Files are sent in memory; larger data needs `--mount`.
const MAX_FILE_BYTES: u64 = 1 << 30;

/// Maximum size of a PEM file; a certificate chain is a few kilobytes.
const MAX_PEM_BYTES: u64 = 1 << 20;

/// Returns whether a path stands for belljar's own standard input.
pub(crate) fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Reads the code.
pub(crate) fn code(path: &Path) -> Result<Vec<u8>, CliError> {
    named_or_stdin(path, MAX_CODE_BYTES as u64, |size| {
        format!("code: {size} is more than 16 MB; pass data with --file instead")
    })
}

/// Reads the program's standard input.
pub(crate) fn stdin(path: &Path) -> Result<Vec<u8>, CliError> {
    named_or_stdin(path, MAX_STDIN_BYTES as u64, |size| {
        format!("stdin: {size} is more than 64 MB; pass it with --file instead")
    })
}

/// Reads a certificate or a key.
pub(crate) fn pem(path: &Path) -> Result<Vec<u8>, CliError> {
    let bytes = read_bounded(open(path)?.0, MAX_PEM_BYTES).map_err(|error| cannot_read(path, &error))?;
    bytes.ok_or_else(|| {
        CliError::invalid(format!(
            "{} is more than 1 MB, so it is not a certificate or key",
            quote_path(path)
        ))
    })
}

fn named_or_stdin(path: &Path, bound: u64, too_big: impl Fn(&str) -> String) -> Result<Vec<u8>, CliError> {
    if is_stdin(path) {
        return read_bounded(io::stdin().lock(), bound)
            .map_err(|error| CliError::invalid(format!("cannot read standard input: {error}")))?
            .ok_or_else(|| CliError::invalid(too_big("standard input")));
    }
    let (file, metadata) = open(path)?;
    // A pipe (`<(…)`) has no size, so reading is bounded as well.
    if metadata.len() > bound {
        return Err(CliError::invalid(too_big(&show_bytes(metadata.len()))));
    }
    let bytes = read_bounded(file, bound).map_err(|error| cannot_read(path, &error))?;
    bytes.ok_or_else(|| CliError::invalid(too_big(&quote_path(path))))
}

fn open(path: &Path) -> Result<(File, fs::Metadata), CliError> {
    let file = File::open(path).map_err(|error| cannot_read(path, &error))?;
    let metadata = file.metadata().map_err(|error| cannot_read(path, &error))?;
    if metadata.is_dir() {
        return Err(CliError::invalid(format!(
            "cannot read {}: it is a folder; name a file",
            quote_path(path)
        )));
    }
    Ok((file, metadata))
}

fn cannot_read(path: &Path, error: &io::Error) -> CliError {
    CliError::invalid(format!("cannot read {}: {error}", quote_path(path)))
}

/// Opens the requests of a batch, which are read on demand.
pub(crate) fn open_requests(path: &Path) -> Result<Box<dyn Read + Send>, CliError> {
    if is_stdin(path) { Ok(Box::new(io::stdin())) } else { Ok(Box::new(open(path)?.0)) }
}

/// Reads everything, or returns `None` if that is more than `bound`.
fn read_bounded(reader: impl Read, bound: u64) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    reader.take(bound + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= bound).then_some(bytes))
}

/// Reads the files of `SRC[:DEST]` arguments; a folder stands for all regular files below it.
pub(crate) fn files(arguments: &[String]) -> Result<Vec<FileSpec>, CliError> {
    let mut basket = FileCollection::default();
    for argument in arguments {
        let (source, destination) = match argument.rsplit_once(':') {
            Some((source, destination)) => (Path::new(source), destination.to_owned()),
            None => (Path::new(argument), file_name(Path::new(argument))?),
        };
        let metadata = fs::metadata(source).map_err(|error| unreadable(source, &error))?;
        if metadata.is_dir() {
            basket.add_folder(source, &destination)?;
        } else if metadata.is_file() {
            basket.add_file(source, destination)?;
        } else {
            return Err(CliError::invalid(format!(
                "--file: {} is neither a file nor a folder",
                quote_path(source)
            )));
        }
    }
    Ok(basket.files)
}

fn unreadable(path: &Path, error: &io::Error) -> CliError {
    CliError::invalid(format!("--file: cannot read {}: {error}", quote_path(path)))
}

/// Returns the last part of a path; `.` and `..` are resolved first.
fn file_name(path: &Path) -> Result<String, CliError> {
    let whole = match path.file_name() {
        Some(_) => path.to_path_buf(),
        None => fs::canonicalize(path).map_err(|error| unreadable(path, &error))?,
    };
    whole.file_name().and_then(|name| name.to_str()).map(str::to_owned).ok_or_else(|| {
        CliError::invalid(format!("--file: {} has no file name; use SRC:DEST", quote_path(path)))
    })
}

/// Files collected so far, and their total size.
#[derive(Debug, Default)]
struct FileCollection {
    files: Vec<FileSpec>,
    bytes: u64,
}

impl FileCollection {
    fn add_file(&mut self, source: &Path, destination: String) -> Result<(), CliError> {
        if self.files.len() == MAX_INPUT_FILES {
            return Err(CliError::invalid("--file: more than 10000 files; use --mount for big folders"));
        }
        let file = File::open(source).map_err(|error| unreadable(source, &error))?;
        let metadata = file.metadata().map_err(|error| unreadable(source, &error))?;
        let room = MAX_FILE_BYTES - self.bytes;
        let content = if metadata.len() > room {
            None
        } else {
            read_bounded(file, room).map_err(|e| unreadable(source, &e))?
        };
        let content = content
            .ok_or_else(|| CliError::invalid("--file: more than 1 GB in total; use --mount instead"))?;
        self.bytes += content.len() as u64;
        self.files.push(FileSpec {
            path: destination,
            content: None,
            content_base64: Some(STANDARD.encode(content)),
            mode: Some(format!("{:04o}", os::permissions(&metadata))),
        });
        Ok(())
    }

    /// Adds a folder's regular files. Symbolic links are skipped: their targets were not named and may lie
    /// anywhere.
    fn add_folder(&mut self, source: &Path, destination: &str) -> Result<(), CliError> {
        let mut waiting: VecDeque<(PathBuf, String)> =
            VecDeque::from([(source.to_path_buf(), destination.to_owned())]);
        while let Some((folder, inside)) = waiting.pop_front() {
            let failed = |error: io::Error| unreadable(&folder, &error);
            let mut entries =
                fs::read_dir(&folder).map_err(failed)?.collect::<Result<Vec<_>, _>>().map_err(failed)?;
            entries.sort_by_key(fs::DirEntry::file_name);
            for entry in entries {
                let name = entry.file_name().into_string().map_err(|_| {
                    CliError::invalid(format!(
                        "--file: the name of {} is not UTF-8",
                        quote_path(&entry.path())
                    ))
                })?;
                let inside = format!("{inside}/{name}");
                let kind = entry.file_type().map_err(failed)?;
                if kind.is_dir() {
                    waiting.push_back((entry.path(), inside));
                } else if kind.is_file() {
                    self.add_file(&entry.path(), inside)?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oversized_streams_are_refused() {
        assert_eq!(read_bounded(&b"1234"[..], 4).unwrap(), Some(b"1234".to_vec()));
        assert_eq!(read_bounded(io::repeat(0), 4).unwrap(), None);
    }

    #[test]
    fn code_is_refused_before_it_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("big.py");
        File::create(&path).unwrap().set_len(100 << 20).unwrap();
        assert_eq!(
            code(&path).unwrap_err().message,
            "code: 100 MB is more than 16 MB; pass data with --file instead"
        );
        assert!(code(folder.path()).unwrap_err().message.contains("it is a folder"));
        assert!(code(&folder.path().join("no.py")).unwrap_err().message.starts_with("cannot read '"));
        assert!(code(Path::new("/dev/zero")).unwrap_err().message.contains("'/dev/zero' is more than 16 MB"));
    }

    #[test]
    fn folders_bring_their_regular_files() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir_all(at("data/deep")).unwrap();
        fs::write(at("data/a"), b"\xff").unwrap();
        fs::write(at("data/deep/b"), b"b").unwrap();
        std::os::unix::fs::symlink("/etc/passwd", at("data/link")).unwrap();
        let source = at("data").to_str().unwrap().to_owned();
        let paths = |files: Vec<FileSpec>| files.into_iter().map(|file| file.path).collect::<Vec<_>>();
        assert_eq!(paths(files(std::slice::from_ref(&source)).unwrap()), ["data/a", "data/deep/b"]);
        assert_eq!(paths(files(&[format!("{source}:in")]).unwrap()), ["in/a", "in/deep/b"]);
    }

    #[test]
    fn modes_and_bytes_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tool");
        fs::write(&path, b"\xff").unwrap();
        fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o4755)).unwrap();
        let path = path.to_str().unwrap();
        let read = files(&[format!("{path}:bin/x")]).unwrap();
        assert_eq!((&*read[0].path, read[0].mode.as_deref()), ("bin/x", Some("0755")));
        assert_eq!(read[0].content_base64.as_deref(), Some("/w=="));
        assert!(
            files(&["/dev/null".to_owned()]).unwrap_err().message.contains("neither a file nor a folder")
        );
        assert!(
            files(&["/nonexistent".to_owned()]).unwrap_err().message.contains("cannot read '/nonexistent'")
        );
    }
}
