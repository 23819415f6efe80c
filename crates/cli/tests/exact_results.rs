//! The return value of `main` arrives exactly, or the run has failed with the path of the value.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod common;

use std::io::Write;
use std::process::{Command, Stdio};

use common::server::Server;
use common::warm::Conversation;
use common::{belljar, finish, run};
use serde_json::{Value, json};

/// 25 factorial, beyond 64 bits.
const LARGE: &str = "15511210043330985984000000";

/// Returns what a command prints.
fn printed(command: &mut Command) -> String {
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Runs code and returns the JSON of the result object.
fn result_json(language: &str, code: &str, arguments: &str) -> String {
    printed(belljar().args(["run", "--json", "--language", language, "--args", arguments, "-c", code]))
}

fn value_json(result: &str) -> &str {
    let (_, value) =
        result.split_once("\"result\":{\"present\":true,\"value\":").unwrap_or_else(|| panic!("{result}"));
    value.split_once("},\"artifacts\"").unwrap().0
}

#[test]
fn numbers_keep_their_digits() {
    let python =
        "import math\ndef main(n, x): return [n, n + 1, math.factorial(25), -2**64, x, 1e300, -0.0]\n";
    let arguments = format!("{{\"n\": {LARGE}, \"x\": 0.1}}");
    let wanted =
        format!("[{LARGE},15511210043330985984000001,{LARGE},-18446744073709551616,0.1,1e+300,-0.0]");
    assert_eq!(value_json(&result_json("python", python, &arguments)), wanted);
    let javascript = "function main({ n, x }) { return [n, n + 1n, 25n ** 2n, -(2n ** 64n), x, 1e300, -0] }";
    let wanted = format!("[{LARGE},15511210043330985984000001,625,-18446744073709551616,0.1,1e+300,-0.0]");
    assert_eq!(value_json(&result_json("javascript", javascript, &arguments)), wanted);
    let shown = printed(belljar().args(["run", "--args", &arguments, "-c", "def main(n, x): return n"]));
    assert_eq!(shown, format!("{LARGE}\n"));
    let bash =
        printed(belljar().args(["run", "--language", "bash", "--args", &arguments, "-c", "echo $n $x"]));
    assert_eq!(bash, format!("{LARGE} 0.1\n"));
}

#[test]
fn integers_of_thousands_of_digits_are_exact() {
    let digits = format!("1{}", "0".repeat(20_000));
    let code = "def main(n):\n    assert n == 10 ** 20000\n    return n";
    assert_eq!(value_json(&result_json("python", code, &format!("{{\"n\":{digits}}}"))), digits);
    let code = "function main({ n }) { return n }";
    assert_eq!(value_json(&result_json("javascript", code, &format!("{{\"n\":{digits}}}"))), digits);
}

/// Code, and the start of its error.
const NO_RESULTS: &[(&str, &str, &str)] = &[
    (
        "python",
        "def main(): return {'scores': [1, 2, 3, float('nan')]}",
        "TypeError: result.scores[3] is NaN",
    ),
    ("python", "def main(): return float('-inf')", "TypeError: result is -Infinity"),
    ("python", "def main(): return {'a b': ['\\ud800']}", "TypeError: result['a b'][0] has a lone surrogate"),
    ("python", "def main(): return {'\\ud800': 1}", "TypeError: result['\\ud800'] has a lone surrogate"),
    (
        "python",
        "def main(): return [{'f': print}]",
        "TypeError: result[0].f is a value of type builtin_function",
    ),
    ("python", "class A: pass\ndef main(): return A()", "TypeError: result is a value of type A"),
    ("python", "def main(): return (n for n in [1])", "TypeError: result is an iterator of type generator"),
    ("python", "def main(): return {1: 1, '1': 2}", "TypeError: result['1'] is the name of two keys"),
    ("python", "def main(): return {(1, 2): 1}", "TypeError: result has a key of type tuple"),
    ("python", "def main():\n    a = []\n    a.append(a)\n    return a", "TypeError: result[0]"),
    (
        "python",
        "def main(): return 1 << 400000",
        "TypeError: result is an integer of more than 100000 digits",
    ),
    ("javascript", "function main() { return { scores: [1, NaN] } }", "TypeError: result.scores[1] is NaN"),
    ("javascript", "function main() { return -Infinity }", "TypeError: result is -Infinity"),
    ("javascript", "function main() { return ['\\ud800'] }", "TypeError: result[0] has a lone surrogate"),
    ("javascript", "function main() { return { f() {} } }", "TypeError: result.f is a function"),
    ("javascript", "function main() { return new Date(NaN) }", "TypeError: result is an invalid Date"),
    ("javascript", "function main() { return [Promise.resolve()] }", "TypeError: result[0] is a Promise"),
    ("javascript", "function main() { return new Map([[{}, 1]]) }", "TypeError: result has a key"),
    (
        "javascript",
        "function main() { const a = {}; a.a = a; return a }",
        "TypeError: result is nested deeper",
    ),
    (
        "javascript",
        "function main() { return new Promise(() => {}) }",
        "Error: main() returned a promise that is never",
    ),
];

#[track_caller]
fn has_failed(result: &Value, error: &str) {
    let said = result["error"].as_str().unwrap_or_default();
    assert!(result["status"] == "failed" && said.starts_with(error), "{error}\n{result}");
    assert_eq!(result["result"], json!({"present": false, "value": null}), "{error}");
    // No frames of the runner.
    assert_eq!(result["stderr"].as_str().unwrap().lines().count(), 1, "{result}");
}

#[test]
fn values_that_json_does_not_have_fail_the_run() {
    for (language, code, error) in NO_RESULTS {
        let answer = run(["--language", language, "-c", code, "--args", "{}"]);
        has_failed(&answer.json, error);
        assert_ne!(answer.code, Some(0));
    }
}

#[test]
fn warm_interpreters_fail_alike() {
    for language in ["python", "javascript"] {
        let mut batch = Conversation::start("mode = \"pool\"", "", ["--language", language, "-c", "0"]);
        for (_, code, error) in NO_RESULTS.iter().filter(|(own, ..)| *own == language) {
            let result = batch.ask_warm("pool", &json!({"code": code, "arguments": {}}));
            has_failed(&result, error);
        }
    }
}

#[test]
fn the_size_of_a_result_is_limited_by_a_setting() {
    let answer = |limit: &str, language: &str, code: &str| {
        let arguments = ["run", "--json", "--language", language, "--args", "{}", "-c", code];
        finish(belljar().args(arguments).env("BELLJAR_RESULTS_MAX_BYTES", limit))
    };
    let larger = "result is larger than 16 MB; return less, write it to a file in ./artifacts, or raise the setting \
                  results.max_bytes";
    for (language, code) in [
        ("python", "def main(): return 'x' * (17 << 20)"),
        ("javascript", "function main() { return 'x'.repeat(17 * 2 ** 20) }"),
    ] {
        let result = answer("16M", language, code);
        assert_eq!((result.status(), result.text("error")), ("failed", larger));
        assert_eq!(result.json["result"], json!({"present": false, "value": null}));
        let result = answer("18M", language, code);
        let length = result.json["result"]["value"].as_str().map(str::len);
        assert_eq!((result.status(), length), ("succeeded", Some(17 << 20)));
    }
    // The quotes count.
    assert_eq!(answer("1K", "python", "def main(): return 'x' * 1022").status(), "succeeded");
    let one_more = answer("1K", "python", "def main(): return 'x' * 1023");
    assert!(one_more.text("error").starts_with("result is larger than 1 KB;"), "{one_more:?}");
    assert!(answer("49M", "python", "def main(): pass").error_message().contains("results.max_bytes"));
}

/// A program may write to the result pipe itself, past the runner.
#[test]
fn what_is_written_past_the_runner_is_checked_too() {
    for (bytes, error) in [
        ("b'{\"a\": [1, \"\\\\ud800\"]}'", "result.a[1] has a lone surrogate"),
        ("b'NaN'", "result is not JSON"),
        ("b'\\xff'", "result is not JSON"),
        ("b'[1e999]'", "result[0] is a number beyond the range of a double"),
        ("b'[' * 200000 + b']' * 200000", "result is nested deeper than 100 levels"),
        ("b'9' * 200000", "result is an integer of more than 100000 digits"),
        ("b'1' * (20 << 20)", "result is larger than 16 MB"),
    ] {
        let code = format!(
            "import os\ndef main():\n    data = {bytes}\n    while data: data = data[os.write(3, data):]\n    os._exit(0)"
        );
        let answer = run(["-c", &code, "--args", "{}"]);
        let said = answer.text("error");
        assert!(answer.status() == "failed" && said.starts_with(error), "{error}\n{answer:?}");
        assert_eq!((answer.code, &answer.json["exit_code"]), (Some(1), &json!(0)), "{error}");
    }
}

/// Line breaks in a result must not become lines of a batch.
#[test]
fn a_batch_has_one_line_for_each_result() {
    let code =
        "import os\ndef main():\n    os.write(3, b'{\"a\": [1,\\n\\n\"status\"\\n]}\\n')\n    os._exit(0)";
    let mut child = belljar()
        .args(["run", "--batch", "-", "--quiet", "--language", "python"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let large = format!("{{\"code\": \"def main(n): return n\", \"arguments\": {{\"n\": {LARGE}}}}}");
    let mut lines = child.stdin.take().unwrap();
    writeln!(lines, "{}\n{large}", json!({"code": code, "arguments": {}})).unwrap();
    drop(lines);
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(output.lines().count(), 2, "{output}");
    let mut values: Vec<_> = output.lines().map(value_json).collect();
    values.sort_unstable();
    assert_eq!(values, [LARGE, "{\"a\":[1,\"status\"]}"]);
}

#[test]
fn a_server_keeps_digits_in_every_answer() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let body = format!(
        "{{\"language\":\"python\",\"code\":\"def main(n): return [n, 10**30]\",\"arguments\":{{\"n\":{LARGE}}}}}"
    );
    let wanted = format!("[{LARGE},1{}]", "0".repeat(30));
    let made = server.call("POST", "/v1/executions", "Content-Type: application/json\r\n", body.as_bytes());
    assert_eq!(value_json(&made.text()), wanted);
    let id = made.json()["id"].as_str().unwrap().to_owned();
    assert_eq!(value_json(&server.get(&format!("/v1/executions/{id}")).text()), wanted);
    let headers = "Content-Type: application/json\r\nAccept: text/event-stream\r\n";
    let events = server.call("POST", "/v1/executions", headers, body.as_bytes()).text();
    assert_eq!(value_json(&events), wanted);
    let lines =
        server.call("POST", "/v1/batches", "Content-Type: application/x-ndjson\r\n", body.as_bytes()).text();
    assert_eq!(value_json(&lines), wanted);
    let remote = |form: &[&str]| {
        let mut command = belljar();
        command.env("BELLJAR_API_KEY", common::server::KEY).args(["run", "--server", &server.url]).args(form);
        let arguments = format!("{{\"n\":{LARGE}}}");
        printed(command.args(["--args", &arguments, "-c", "def main(n): return [n, 10**30]"]))
    };
    assert_eq!(value_json(&remote(&["--json"])), wanted);
    assert_eq!(remote(&[]), format!("{wanted}\n"));
    let mut show = belljar();
    show.env("BELLJAR_API_KEY", common::server::KEY).args([
        "executions",
        "show",
        &id,
        "--server",
        &server.url,
    ]);
    assert!(printed(&mut show).contains(&format!("\n      {LARGE},\n")));
    let sandbox = server.sandbox(&json!({}));
    let inside = server.call(
        "POST",
        &format!("{sandbox}/executions"),
        "Content-Type: application/json\r\n",
        body.as_bytes(),
    );
    assert_eq!(value_json(&inside.text()), wanted);
    let code = "def main(): return {'x': [float('nan')]}";
    let failed = server.post(
        &format!("{sandbox}/executions"),
        &json!({"language": "python", "code": code, "arguments": {}}),
    );
    has_failed(&failed.json(), "TypeError: result.x[0] is NaN");
}

#[test]
fn tool_calls_have_exact_text_and_safe_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::new(folder.path());
    let code = "def main(n): return {'n': n + 1, 'large': 2 ** 53, 'm': [10 ** 30, 0.1]}";
    let call = json!({"language": "python", "code": code, "arguments": {"n": 9_007_199_254_740_990_i64}});
    let answer = server.post("/v1/tools/run_code", &call).json();
    let text = answer["content"][0]["text"].as_str().unwrap();
    let exact =
        format!("{{\"n\":9007199254740991,\"large\":9007199254740992,\"m\":[1{},0.1]}}", "0".repeat(30));
    assert!(text.contains(&format!("main() returned: {exact}")), "{text}");
    let large = format!("1{}", "0".repeat(30));
    let safe = json!({"n": 9_007_199_254_740_991_i64, "large": "9007199254740992", "m": [large, 0.1]});
    assert_eq!(answer["structuredContent"]["result"]["value"], safe);
    // The call was parsed before it got here, so this integer may be rounded.
    let call = format!(
        "{{\"language\":\"python\",\"code\":\"def main(n): return n\",\"arguments\":{{\"n\":{LARGE}}}}}"
    );
    let refused =
        server.call("POST", "/v1/tools/run_code", "Content-Type: application/json\r\n", call.as_bytes());
    assert!(
        refused.text().contains("arguments.n: has an integer beyond 64 bits; pass it as a string"),
        "{}",
        refused.text()
    );
}

#[test]
fn arguments_that_are_not_exact_are_refused() {
    for (arguments, why) in [
        ("{\"x\": [1e999]}", "arguments.x[0] is a number beyond the range of a double"),
        ("{\"x\": \"\\ud800\"}", "arguments.x has a lone surrogate"),
        ("{\"x\": NaN}", "--args: not JSON"),
        ("[1]", "--args: must be a JSON object such as {\"name\": \"Ada\"}, not a list"),
    ] {
        let answer = run(["-c", "def main(x): return x", "--args", arguments]);
        assert!(answer.error_message().contains(why), "{arguments} {answer:?}");
    }
}

#[test]
fn python_values_are_converted_as_documented() {
    let code = "
import collections, dataclasses, datetime, decimal, enum, fractions, pathlib, uuid

class Color(enum.Enum): RED = 'red'
Point = collections.namedtuple('Point', 'x y')

@dataclasses.dataclass
class Node:
    value: int
    next: object = None

def main():
    return [
        Color.RED, Point(1, 2), Node(1, Node(2)), (1,), {3, 1, 2}, range(3), collections.deque([1]), {'a': 1}.keys(),
        datetime.datetime(2024, 1, 2, 3), datetime.date(2024, 1, 2), datetime.timedelta(minutes=1.5),
        decimal.Decimal('0.10'), fractions.Fraction(1, 3), uuid.UUID(int=1), pathlib.Path('/a'), b'ab',
        {1: 1, None: 2, True: 3, Color.RED: 4, datetime.date(2024, 1, 2): 5}, collections.Counter('aab'),
    ]
";
    let wanted = json!([
        "red", [1, 2], {"value": 1, "next": {"value": 2, "next": null}}, [1], [1, 2, 3], [0, 1, 2], [1], ["a"],
        "2024-01-02T03:00:00", "2024-01-02", 90.0, "0.10", "1/3", "00000000-0000-0000-0000-000000000001", "/a", "YWI=",
        {"1": 3, "null": 2, "red": 4, "2024-01-02": 5}, {"a": 2, "b": 1},
    ]);
    // True and 1 are the same key in Python.
    let answer = run(["-c", code, "--args", "{}"]);
    assert_eq!(answer.json["result"]["value"], wanted, "{answer:?}");
}

#[test]
fn javascript_values_are_converted_as_documented() {
    let code = "function main() { return [10n ** 30n, new Date(0), new Map([['a', 1], [2, 3]]), new Set([1]), \
        new Uint8Array([1, 2]), Buffer.from('ab'), undefined, { u: undefined, v: 1 }, [, 1], new URL('http://a/b'), \
        'é'] }";
    let result = result_json("javascript", code, "{}");
    let wanted = "[1000000000000000000000000000000,\"1970-01-01T00:00:00.000Z\",{\"a\":1,\"2\":3},[1],[1,2],\"YWI=\",null,\
        {\"v\":1},[null,1],\"http://a/b\",\"é\"]";
    assert_eq!(value_json(&result), wanted);
}
