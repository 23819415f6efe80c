//! Collects the code to check: files, folders, standard input, or code on the command line.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use belljar_analysis::policy::PolicyLanguage;

use super::analyzer_of;
use crate::error::{CliError, quote_path};
use crate::{input, language};

/// Maximum number of files to check.
const MAX_CHECKED_FILES: usize = 100_000;
/// Longer files in a folder are not opened; analysis would not read them to the end anyway.
const MAX_CODE_BYTES: u64 = 16 << 20;

/// One piece of code to check.
pub(super) struct CheckInput {
    pub(super) name: String,
    from: CodeOrigin,
    /// The language, if it is known before the code is read.
    language: Option<PolicyLanguage>,
}

enum CodeOrigin {
    Bytes(Vec<u8>),
    File(PathBuf),
}

/// The code of a source, or the fact that it is too long.
pub(super) enum CodeContent {
    Text(String, PolicyLanguage),
    TooLong(PolicyLanguage),
}

/// Collects the sources that the arguments name.
pub(super) fn collect_sources(
    paths: Vec<PathBuf>,
    inline: Option<OsString>,
    given: Option<&str>,
) -> Result<Vec<CheckInput>, CliError> {
    let given = match given {
        Some(given) => Some(analyzer_of(belljar_engine::language::Language::from_name(given)?.name)?),
        None => None,
    };
    if let Some(code) = inline {
        let from = CodeOrigin::Bytes(code.into_encoded_bytes());
        let language = given.or(Some(PolicyLanguage::Python));
        return Ok(vec![CheckInput { name: "code".to_owned(), from, language }]);
    }
    if paths.is_empty() {
        return Err(CliError::invalid(
            "nothing to check: pass a FILE, a folder, '-' for standard input, or -c CODE",
        ));
    }
    let mut sources = Vec::new();
    for path in paths {
        if input::is_stdin(&path) {
            let (name, from) = ("standard input".to_owned(), CodeOrigin::Bytes(input::code(&path)?));
            sources.push(CheckInput { name, from, language: given });
        } else if path.is_dir() {
            collect_folder(&path, &mut sources)?;
        } else {
            let name = path.display().to_string();
            let language = given.or_else(|| language_of_file(&path));
            sources.push(CheckInput { name, from: CodeOrigin::File(path), language });
        }
    }
    Ok(sources)
}

/// Collects the files of a folder whose extension names a supported language. Does not follow symbolic links
/// and skips `.git`.
fn collect_folder(folder: &Path, sources: &mut Vec<CheckInput>) -> Result<(), CliError> {
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = |error| CliError::invalid(format!("cannot read {}: {error}", quote_path(&folder)));
        let mut entries =
            fs::read_dir(&folder).map_err(cannot)?.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
        entries.sort_by_key(fs::DirEntry::file_name);
        for entry in entries {
            let (path, kind) = (entry.path(), entry.file_type().map_err(cannot)?);
            if kind.is_dir() && entry.file_name() != ".git" {
                folders.push(path);
            } else if let (true, Some(language)) = (kind.is_file(), language_of_file(&path)) {
                let name = path.display().to_string();
                sources.push(CheckInput { name, from: CodeOrigin::File(path), language: Some(language) });
            }
        }
        if sources.len() > MAX_CHECKED_FILES {
            return Err(CliError::invalid(format!(
                "more than {MAX_CHECKED_FILES} files; name fewer files or a subfolder"
            )));
        }
    }
    Ok(())
}

fn language_of_file(path: &Path) -> Option<PolicyLanguage> {
    let name = path.file_name()?.to_str()?;
    // JSX files can be checked but not run.
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("jsx") => return Some(PolicyLanguage::JavaScript),
        Some("tsx") => return Some(PolicyLanguage::TypeScript),
        _ => {}
    }
    PolicyLanguage::from_name(belljar_engine::language::Language::from_file_name(name)?.name)
}

impl CheckInput {
    /// Reads the code and determines its language.
    pub(super) fn content(&self) -> Result<CodeContent, CliError> {
        let (bytes, path) = match &self.from {
            CodeOrigin::Bytes(bytes) => (bytes.clone(), Path::new("")),
            CodeOrigin::File(path) => {
                let long = || fs::metadata(path).is_ok_and(|metadata| metadata.len() > MAX_CODE_BYTES);
                if let Some(language) = self.language.filter(|_| long()) {
                    return Ok(CodeContent::TooLong(language));
                }
                (input::code(path)?, path.as_path())
            }
        };
        let language = match self.language {
            Some(language) => language,
            None => match language::detect(path, &bytes) {
                Some(found) => analyzer_of(found.name)?,
                None => {
                    return Err(CliError::invalid(format!(
                        "cannot tell the language of {}; add --language, for example --language python",
                        self.name
                    )));
                }
            },
        };
        Ok(CodeContent::Text(String::from_utf8_lossy(&bytes).into_owned(), language))
    }
}
