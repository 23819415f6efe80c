//! `belljar bench` over the real binary. Checks what it reports, never how fast anything was.
#![cfg(target_os = "linux")]

mod common;
#[path = "../../providers/tests/conformance/dockerd.rs"]
#[allow(dead_code, reason = "tests of the provider use the rest")]
mod dockerd;
mod expect;

use std::process::Output;

use common::{Answer, belljar, finish, unusable};
use dockerd::{Dockerd, IMAGE};
use expect::{everything, skip};
use serde_json::Value;

const QUICK: &[&str] = &["bench", "--rounds", "3", "--seconds", "0.2", "--pause", "1"];

fn bench(arguments: &[&str]) -> Answer {
    finish(belljar().args(QUICK).arg("--json").args(arguments))
}

fn text(arguments: &[&str]) -> Output {
    belljar().args(QUICK).args(arguments).output().expect("the binary starts")
}

fn names(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(|item| item["name"].as_str()).collect()
}

/// Checks a row that has figures.
fn check_figures(row: &Value) {
    let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("a number in {row}"));
    assert!(number(&row["p50_ms"]) > 0.0 && number(&row["p50_ms"]) <= number(&row["p99_ms"]), "{row}");
    assert!(number(&row["ratio"]) > 0.0, "{row}");
    let cells = row["throughput"].as_array().expect("cells");
    let workers: Vec<_> = cells.iter().filter_map(|cell| cell["workers"].as_u64()).collect();
    assert_eq!(workers, [1, 2, 8], "{row}");
    for cell in cells {
        // A worker finishes the run that it started, so each has at least one.
        assert!(cell["runs"].as_u64() >= cell["workers"].as_u64(), "{row}");
    }
}

fn check_row(row: &Value) {
    match row["share"].as_f64() {
        Some(share) if share < 0.5 => assert!(row["p50_ms"].is_null() && row["ratio"].is_null(), "{row}"),
        _ => check_figures(row),
    }
    let served: u64 = ["pool", "fork", "cold"].iter().filter_map(|kind| row["served"][kind].as_u64()).sum();
    let inside = matches!(row["name"].as_str(), Some("cold" | "fork" | "pool"));
    assert_eq!(served, if inside { 3 } else { 0 }, "{row}");
    assert_eq!(row["command"].is_null(), inside, "{row}");
}

#[test]
fn json_has_every_row_and_the_machine() {
    if let Some(why) = unusable() {
        return skip("the benchmark", &why);
    }
    let answer = bench(&["--only", "bash,python"]);
    assert_eq!((answer.code, answer.stderr.as_str()), (Some(0), ""), "{}", answer.json);
    let found = &answer.json;
    assert_eq!(names(&found["workloads"]), ["python", "bash"], "{found}");
    for (workload, inside) in [(0, &["bare", "cold", "fork", "pool"][..]), (1, &["bare", "cold"])] {
        let workload = &found["workloads"][workload];
        assert!(names(&workload["rows"]).starts_with(inside), "{workload}");
        assert_eq!(workload["rounds"], 3, "{workload}");
        assert!(workload["program"].is_string() && workload["version"].is_string(), "{workload}");
        workload["rows"].as_array().into_iter().flatten().for_each(check_row);
        assert_eq!(workload["rows"][0]["ratio"], 1.0, "{workload}");
    }
    assert!(found["layers"].as_array().is_some_and(|layers| layers.len() >= 7), "{found}");
    assert!(found["machine"]["kernel"].is_string() && found["machine"]["cpus"].is_u64(), "{found}");
    assert!(found["date"].as_str().is_some_and(|date| date.ends_with('Z')), "{found}");
    // A tool is either in the table or left out, never both.
    for tool in ["bwrap", "docker", "runsc"] {
        let left_out = found["left_out"].as_array().into_iter().flatten();
        let workloads =
            left_out.filter(|out| out["what"] == tool).filter_map(|out| out["workloads"].as_array());
        let absent: Vec<_> = workloads.flatten().filter_map(Value::as_str).collect();
        for workload in found["workloads"].as_array().into_iter().flatten() {
            let present = names(&workload["rows"]).contains(&tool);
            assert_ne!(present, absent.contains(&workload["name"].as_str().unwrap_or_default()), "{tool}");
        }
    }
}

#[test]
fn docker_variants_are_measured() {
    let test = "the benchmark in Docker";
    if !everything() {
        return skip(test, "only with ./test --all");
    }
    let docker = match Dockerd::start() {
        Ok(docker) => docker,
        Err(why) => return skip(test, &why),
    };
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("belljar.toml");
    let text = format!("[providers.docker]\nhost = {:?}\nimage = {IMAGE:?}\n", docker.host());
    std::fs::write(&config, text).expect("a file");
    let mut command = belljar();
    command.env("BELLJAR_CONFIG", &config).args(QUICK).args(["--json", "--only", "python", "--docker"]);
    let answer = finish(&mut command);
    let rows = answer.json["workloads"][0]["rows"].as_array().cloned().unwrap_or_default();
    for name in ["d. pool", "d. exec", "docker"] {
        let row = rows.iter().find(|row| row["name"] == name);
        assert!(row.is_some_and(|row| row["p50_ms"].is_f64()), "{name}: {}", answer.json);
    }
    assert_eq!(docker.docker(&["ps", "--all", "--quiet"]).as_deref(), Ok(""));
}

#[test]
fn the_table_fits_and_names_the_machine() {
    if let Some(why) = unusable() {
        return skip("the benchmark's table", &why);
    }
    let output = text(&["--only", "bash"]);
    let shown = String::from_utf8(output.stdout).expect("text");
    assert_eq!(output.status.code(), Some(0), "{shown}");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "progress is for terminals");
    assert!(shown.lines().all(|line| line.chars().count() <= 100), "{shown}");
    assert!(shown.lines().any(|line| line.contains("bash") && line.contains("bare")), "{shown}");
    assert!(shown.contains("Isolation layers of every sandboxed run"), "{shown}");
    assert!(shown.contains(concat!("belljar ", env!("CARGO_PKG_VERSION"), ", Linux ")), "{shown}");
}

#[test]
fn missing_modules_are_reported_with_the_install_command() {
    if let Some(why) = unusable() {
        return skip("the benchmark without pandas", &why);
    }
    // The system's interpreter may have pandas; an empty virtual environment does not.
    let home = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let made = std::process::Command::new("/usr/bin/python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(home.path())
        .output();
    if !made.is_ok_and(|output| output.status.success()) {
        return skip("the benchmark without pandas", "no /usr/bin/python3 with venv");
    }
    let path = format!("{}/bin:/usr/bin:/bin", home.path().display());
    let cache = home.path().join("cache");
    let mut command = belljar();
    command.env("PATH", path).env("XDG_CACHE_HOME", cache).args(QUICK);
    let answer = finish(command.args(["--json", "--only", "python+pandas"]));
    assert_eq!(answer.code, Some(125), "{}", answer.json);
    let message = answer.error_message();
    assert!(message.starts_with("nothing to measure: python+pandas: ModuleNotFoundError"), "{message}");
    assert!(message.contains("-m pip install numpy pandas"), "{message}");
}

/// Compares this binary with itself: every variant has figures of both, and a change.
#[test]
fn two_binaries_are_compared_in_one_run() {
    if let Some(why) = unusable() {
        return skip("the comparison", &why);
    }
    let this = env!("CARGO_BIN_EXE_belljar");
    let arguments = [
        "bench",
        "--json",
        "--rounds",
        "2",
        "--slices",
        "2",
        "--pause",
        "1",
        "--only",
        "bash",
        "--against",
        this,
    ];
    let answer = finish(belljar().args(arguments));
    let rows = answer.json["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), 1, "{}", answer.json);
    let row = &rows[0];
    assert_eq!((row["workload"].as_str(), row["way"].as_str()), (Some("bash"), Some("cold")), "{row}");
    for figure in
        [&row["bare_p50_ms"], &row["other"]["p50_ms"], &row["other"]["ratio"], &row["this"]["ratio"]]
    {
        assert!(figure.as_f64().is_some_and(|value| value > 0.0), "{row}");
    }
    assert!(row["change_percent"].is_f64(), "{row}");
    let missing =
        belljar().args(["bench", "--against", "/nonexistent/belljar"]).output().expect("the binary starts");
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("--against '/nonexistent/belljar'"), "{said}");
}
