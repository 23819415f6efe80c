//! Admission of the program: code in a language, or a command with its arguments.

use super::MAX_CODE_BYTES;
use crate::Error;
use crate::json_text::Arguments;
use crate::language::{CallingConvention, Language};
use crate::plan::{CodeSource, InputFile, Program};
use crate::profile::MAX_ENV_BYTES;
use crate::request::HostPaths;

/// Returns the program to run: `code` in a language, or `command`.
pub(super) fn admit_program(
    language: Option<String>,
    code: Option<Vec<u8>>,
    command: Option<Vec<String>>,
    arguments: Option<Arguments>,
    paths: &HostPaths,
) -> Result<Program, Error> {
    if let Some(command) = command {
        if language.is_some() || code.is_some() || arguments.is_some() {
            return Err(Error::invalid("command", "cannot be combined with language, code or arguments"));
        }
        check_argv("command", &command)?;
        return Ok(Program::Command(command));
    }
    let language = language
        .ok_or_else(|| Error::invalid("language", "is missing; say which language the code is in"))?;
    let language = Language::from_name(&language)?;
    if let Some(arguments) = &arguments {
        admit_arguments(language, arguments)?;
    }
    let source = match &paths.source_in_workspace {
        Some(path) if arguments.is_none() || !changes_code(language) => CodeSource::Existing(path.clone()),
        _ => admit_code(language, code, paths)?,
    };
    Ok(Program::Code { language, source, arguments })
}

/// Returns whether code that is called with arguments gets an epilogue.
fn changes_code(language: &Language) -> bool {
    matches!(language.calling_convention, CallingConvention::Main { epilogue, .. } if !epilogue.is_empty())
}

/// Checks that `words` can be executed: a program and its arguments. `field` is named in the error.
pub(crate) fn check_argv(field: &'static str, words: &[String]) -> Result<(), Error> {
    let size: usize = words.iter().map(|word| word.len() + 1).sum();
    if words.first().is_none_or(String::is_empty) {
        return Err(Error::invalid(field, "is empty; name a program"));
    }
    if words.iter().any(|word| word.contains('\0')) || size > MAX_ENV_BYTES {
        return Err(Error::invalid(field, "has a NUL or more than 64 KB"));
    }
    Ok(())
}

/// Checks that a language can take these arguments.
pub(crate) fn admit_arguments(language: &Language, arguments: &Arguments) -> Result<(), Error> {
    let name_is_fine = |name: &str| {
        !name.is_empty()
            && !name.starts_with(|c: char| c.is_ascii_digit())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    match language.calling_convention {
        CallingConvention::Main { .. } => Ok(()),
        CallingConvention::Environment => match arguments.keys().find(|name| !name_is_fine(name)) {
            None => Ok(()),
            Some(name) => {
                Err(Error::invalid("arguments", format!("'{name}' cannot be the name of a variable")))
            }
        },
        CallingConvention::Unsupported => Err(Error::Unsupported {
            field: "arguments",
            message: format!("not supported for {}; use env, stdin or files", language.name),
        }),
    }
}

fn admit_code(
    language: &'static Language,
    code: Option<Vec<u8>>,
    paths: &HostPaths,
) -> Result<CodeSource, Error> {
    let code = code.ok_or_else(|| Error::invalid("code", "is missing"))?;
    if code.len() > MAX_CODE_BYTES {
        let size = crate::quantity::show_bytes(code.len() as u64);
        return Err(Error::invalid("code", format!("{size} is more than 16 MB; pass data as files instead")));
    }
    let code = String::from_utf8(code).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::invalid(
            "code",
            format!("is not UTF-8 (byte {at}); save it as UTF-8, or run it as a file with --file"),
        )
    })?;
    if code.trim().is_empty() {
        return Err(Error::invalid("code", "is empty; there is nothing to run"));
    }
    let name = language.source_name(paths.source_name.as_deref(), &code);
    Ok(CodeSource::Text { name, code })
}

/// Refuses an input file with the name of the file that `code` is written to.
pub(crate) fn refuse_name_clash(program: &Program, files: &[InputFile]) -> Result<(), Error> {
    let Program::Code { source: CodeSource::Text { name, .. }, .. } = program else { return Ok(()) };
    match files.iter().any(|file| file.path == *name) {
        false => Ok(()),
        true => Err(Error::invalid(
            "files",
            format!("'{name}' is the file that code is written to; rename yours, or run it with command"),
        )),
    }
}
