//! Collects the code to check: files, folders, standard input, or code on the command line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_analysis::policy::Language;

use super::reader;
use crate::failure::{Failure, shown};
use crate::{input, language};

/// Maximum number of files to check.
const MOST: usize = 100_000;
/// Longer files in a folder are not opened; analysis would not read them to the end anyway.
const LONG: u64 = 16 << 20;

/// One piece of code to check.
pub(super) struct Source {
    pub(super) name: String,
    from: From,
    /// The language, if it is known before the code is read.
    language: Option<Language>,
}

enum From {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// The code of a source, or the fact that it is too long.
pub(super) enum Content {
    Text(String, Language),
    TooLong(Language),
}

/// Collects the sources that the arguments name.
pub(super) fn all(
    paths: Vec<PathBuf>,
    inline: Option<OsString>,
    given: Option<&str>,
) -> Result<Vec<Source>, Failure> {
    let given = match given {
        Some(given) => Some(reader(belljar_engine::language::Language::named(given)?.name)?),
        None => None,
    };
    if let Some(code) = inline {
        let from = From::Bytes(code.into_encoded_bytes());
        let language = given.or(Some(Language::Python));
        return Ok(vec![Source { name: "code".to_owned(), from, language }]);
    }
    if paths.is_empty() {
        return Err(Failure::invalid(
            "nothing to check: pass a FILE, a folder, '-' for standard input, or -c CODE",
        ));
    }
    let mut sources = Vec::new();
    for path in paths {
        if input::is_stdin(&path) {
            let (name, from) = ("standard input".to_owned(), From::Bytes(input::code(&path)?));
            sources.push(Source { name, from, language: given });
        } else if path.is_dir() {
            folder(&path, &mut sources)?;
        } else {
            let name = path.display().to_string();
            let language = given.or_else(|| by_name(&path));
            sources.push(Source { name, from: From::File(path), language });
        }
    }
    Ok(sources)
}

/// Collects the files of a folder whose extension names a supported language. Does not follow symbolic links
/// and skips `.git`.
fn folder(folder: &Path, sources: &mut Vec<Source>) -> Result<(), Failure> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = |error| Failure::invalid(format!("cannot read {}: {error}", shown(&folder)));
        let mut entries =
            fs::read_dir(&folder).map_err(cannot)?.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type().map_err(cannot)?);
            if kind.is_dir() && entry.file_name() != ".git" {
                folders.push(path);
            } else if let (true, Some(language)) = (kind.is_file(), by_name(&path)) {
                let name = path.display().to_string();
                sources.push(Source { name, from: From::File(path), language: Some(language) });
            }
        }
        if sources.len() > MOST {
            return Err(Failure::invalid(format!("more than {MOST} files; name fewer files or a subfolder")));
        }
    }
    Ok(())
}

fn by_name(path: &Path) -> Option<Language> {
    let name = path.file_name()?.to_str()?;
    // JSX files can be checked but not run.
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsx") => return Some(Language::JavaScript),
        Some("tsx") => return Some(Language::TypeScript),
        _ => {}
    }
    Language::named(belljar_engine::language::Language::of_file(name)?.name)
}

impl Source {
    /// Reads the code and determines its language.
    pub(super) fn content(&self) -> Result<Content, Failure> {
        let (bytes, path) = match &self.from {
            From::Bytes(bytes) => (bytes.clone(), Path::new("")),
            From::File(path) => {
                let long = || fs::metadata(path).is_ok_and(|metadata| metadata.len() > LONG);
                if let Some(language) = self.language.filter(|_| long()) {
                    return Ok(Content::TooLong(language));
                }
                (input::code(path)?, path.as_path())
            }
        };
        let language = match self.language {
            Some(language) => language,
            None => match language::detect(path, &bytes) {
                Some(found) => reader(found.name)?,
                None => {
                    return Err(Failure::invalid(format!(
                        "cannot tell the language of {}; add --language, for example --language python",
                        self.name
                    )));
                }
            },
        };
        Ok(Content::Text(String::from_utf8_lossy(&bytes).into_owned(), language))
    }
}
