//! Tests how command-line arguments are interpreted.

use super::*;
use crate::args::{Cli, CliCommand};
use clap::Parser;

fn meant_with(words: &[&str], environment: &Environment) -> Result<Intent, CliError> {
    let cli = Cli::try_parse_from(["belljar", "run"].iter().chain(words)).unwrap();
    let CliCommand::Run(args) = cli.command else { panic!("not run") };
    Intent::from_args(*args, environment)
}

fn meant(words: &[&str]) -> Intent {
    meant_with(words, &Environment::default()).unwrap()
}

fn refused(words: &[&str]) -> String {
    meant_with(words, &Environment::default()).unwrap_err().message
}

#[test]
fn inline_code_is_python_by_default() {
    let request = meant(&["-c", "print(1)"]).request;
    assert_eq!((request.language.as_deref(), request.code.as_deref()), (Some("python"), Some("print(1)")));
    assert_eq!(meant(&["-c", "1", "--language", "js"]).request.language.as_deref(), Some("js"));
}

#[test]
fn exactly_one_source_of_code_is_accepted() {
    assert!(refused(&[]).starts_with("nothing to run"));
    assert!(refused(&["a.py", "-c", "1"]).starts_with("use only one"));
    assert!(refused(&["-c", "1", "--", "ls"]).starts_with("use only one"));
    assert!(refused(&["a.py", "--", "ls"]).starts_with("use only one"));
    assert!(refused(&["-", "--stdin", "-"]).contains("already used for the code"));
    assert_eq!(meant(&["--", "ls", "-l"]).request.command, Some(vec!["ls".to_owned(), "-l".to_owned()]));
}

#[test]
fn limits_come_from_flags_and_then_from_the_environment() {
    let limits = LimitsSpec { timeout_ms: Some(1), processes: Some(5), ..LimitsSpec::default() };
    let environment = Environment { limits, profile: Some("data".to_owned()), ..Environment::default() };
    let request =
        meant_with(&["-c", "1", "--timeout", "2s", "--memory", "1G"], &environment).unwrap().request;
    assert_eq!((request.limits.timeout_ms, request.limits.processes), (Some(2_000), Some(5)));
    assert_eq!(request.limits.memory_bytes, Some(1 << 30));
    assert_eq!(request.profile.as_deref(), Some("data"));
    let request = meant_with(&["-c", "1", "--profile", "terminal"], &environment).unwrap().request;
    assert_eq!(request.profile.as_deref(), Some("terminal"));
}

#[test]
fn arguments_are_an_object() {
    let request = meant(&["-c", "1", "--args", r#"{"a": [1]}"#]).request;
    assert_eq!(serde_json::to_string(&request.arguments.unwrap()).unwrap(), r#"{"a":[1]}"#);
    assert!(
        refused(&["-c", "1", "--args", "{a: 1}"])
            .contains("not JSON: key must be a string at line 1 column 2")
    );
    assert!(refused(&["-c", "1", "--args", "[1]"]).ends_with(", not a list"));
    assert!(refused(&["-c", "1", "--args", "-1"]).ends_with(", not a number"));
}

#[test]
fn variables_are_set_or_copied() {
    let env = meant(&["-c", "1", "--env", "A=b=c", "--env", "PATH", "--env", "E="]).request.env;
    assert_eq!(env.get("A").map(String::as_str), Some("b=c"));
    assert_eq!(env.get("PATH").cloned(), std::env::var("PATH").ok());
    assert_eq!(env.get("E").map(String::as_str), Some(""));
    assert!(refused(&["-c", "1", "--env", "BELLJAR_NO_SUCH_NAME"]).contains("is not set in this shell"));
}

#[test]
fn network_image_and_output_flags() {
    let intent =
        meant(&["-c", "1", "--network", "a.com:443, b.com", "--image", "/srv/root", "--json", "--raw"]);
    let hosts = vec!["a.com:443".to_owned(), "b.com".to_owned()];
    assert_eq!(intent.request.network, Some(NetworkSpec { mode: "hosts".to_owned(), hosts }));
    for mode in ["none", "internet", "full"] {
        let request = meant(&["-c", "1", "--network", mode]).request;
        assert_eq!(request.network, Some(NetworkSpec::plain(mode)));
    }
    assert_eq!((intent.request.image, intent.paths.image), (None, Some("/srv/root".into())));
    assert_eq!(intent.output, OutputOptions { form: OutputForm::Json, quiet: false });
    let intent = meant(&["-c", "1", "--network", "full", "--image", "host", "--quiet"]);
    assert_eq!(intent.request.network.unwrap().mode, "full");
    assert_eq!((intent.request.image.as_deref(), intent.paths.image), (Some("host"), None));
    assert_eq!(intent.output, OutputOptions { form: OutputForm::Live, quiet: true });
    assert_eq!(meant(&["-c", "1", "--no-deps"]).request.dependencies.detect, Some(false));
    assert!(refused(&["-c", "1", "--mount", "/a"]).contains("no destination"));
}

#[test]
fn a_file_sets_the_language_and_runs_in_place() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(at("src/a.mjs"), "1").unwrap();
    fs::write(at("tool"), "#!/usr/bin/env python3\n1").unwrap();
    fs::write(at("plain"), "1").unwrap();
    fs::write(at("latin.py"), b"# \xe9").unwrap();

    let intent = meant(&[&at("src/a.mjs"), "--workspace", folder.path().to_str().unwrap()]);
    assert_eq!(intent.request.language.as_deref(), Some("javascript"));
    assert_eq!(intent.paths.source_name.as_deref(), Some("a.mjs"));
    assert_eq!(intent.paths.source_in_workspace.as_deref(), Some("src/a.mjs"));

    let elsewhere = meant(&[&at("tool"), "--workspace", &at("src")]);
    assert_eq!(elsewhere.request.language.as_deref(), Some("python"));
    assert_eq!(elsewhere.paths.source_in_workspace, None);

    assert!(refused(&[&at("plain")]).contains("add --language"));
    let latin = meant(&[&at("latin.py")]).request;
    assert_eq!((latin.code, latin.code_base64.as_deref()), (None, Some("IyDp")));
}

#[cfg(unix)]
#[test]
fn non_utf8_inline_code_reaches_admission() {
    use std::os::unix::ffi::OsStringExt;
    let args = RunArgs { code: Some(OsString::from_vec(vec![0xff])), ..RunArgs::default() };
    let request = Intent::from_args(args, &Environment::default()).unwrap().request;
    assert_eq!(request.code_base64.as_deref(), Some("/w=="));
}

#[test]
fn a_batch_needs_no_code_argument() {
    let request = meant(&["--batch", "x.jsonl", "--language", "js", "--timeout", "1s"]).request;
    assert_eq!((request.language.as_deref(), request.code, request.command), (Some("js"), None, None));
    assert_eq!(request.limits.timeout_ms, Some(1_000));
    let request = meant(&["--batch", "-", "-c", "1"]).request;
    assert_eq!((request.language.as_deref(), request.code.as_deref()), (Some("python"), Some("1")));
    assert!(
        refused(&["--batch", "-", "-"]).starts_with("--batch: standard input is already used for the code")
    );
}
