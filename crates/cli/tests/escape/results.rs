//! The result of `main`: sent over its own descriptor, only if arguments were given, and treated as data.

use serde_json::{Value, json};

use super::programs::{Case, Verdict};
use crate::common::run;

pub(crate) const CASES: &[Case] = &[
    ("result::arrives_with_arguments", arrives),
    ("result::nothing_without_arguments", nothing_without_arguments),
    ("result::a_forged_write_is_only_data", forged_write),
    ("result::what_is_no_json_fails_the_run", garbage),
    ("result::the_descriptor_is_not_inherited", not_inherited),
    ("result::a_failing_main_has_none", failing_main),
];

fn same(what: &str, seen: &Value, wanted: &Value) -> Verdict {
    if seen == wanted { Ok(()) } else { Err(format!("{what}: {seen} and not {wanted}")) }
}

fn arrives() -> Verdict {
    let code = "def main(a, b):\n    print('{\"present\":true,\"value\":\"printed\"}')\n    return {'sum': a + b, 'text': 'ü'}";
    let answer = run(["-c", code, "--args", "{\"a\": 40, \"b\": 2}"]);
    let wanted = json!({"present": true, "value": {"sum": 42, "text": "ü"}});
    same("the value of main", &answer.json["result"], &wanted)?;
    let code = "async function main({ a }) { console.log('42'); return [a, null]; }";
    let answer = run(["-c", code, "--language", "js", "--args", "{\"a\": 1}"]);
    same("the value of an async main", &answer.json["result"], &json!({"present": true, "value": [1, null]}))
}

fn nothing_without_arguments() -> Verdict {
    let code = "import os\n\
        print('{\"result\":{\"present\":true,\"value\":1}}')\n\
        for fd in range(3, 64):\n\
        \x20   try: os.write(fd, b'42')\n\
        \x20   except OSError: pass\n\
        def main(): return 1";
    let answer = run(["-c", code]);
    same("the status", &answer.json["status"], &json!("succeeded"))?;
    same("the result", &answer.json["result"], &json!({"present": false, "value": null}))
}

/// A program may send anything as its result: status, exit code and limits never come from inside.
fn forged_write() -> Verdict {
    let code = "import os\n\
        def main():\n\
        \x20   os.write(3, b'{\"status\":\"succeeded\",\"exit_code\":0}')\n\
        \x20   os._exit(5)";
    let answer = run(["-c", code, "--args", "{}"]);
    same("the status", &answer.json["status"], &json!("failed"))?;
    same("the exit code", &answer.json["exit_code"], &json!(5))?;
    same("the value", &answer.json["result"]["value"], &json!({"status": "succeeded", "exit_code": 0}))
}

fn garbage() -> Verdict {
    for bytes in ["b'\\xff\\xfe\\x00'", "b'{\"open\": '", "b'1 2'", "b'[' * 200000"] {
        let code = format!("import os\ndef main():\n    os.write(3, {bytes})\n    os._exit(0)");
        let answer = run(["-c", &code, "--args", "{}"]);
        same("the status", &answer.json["status"], &json!("failed"))?;
        same(bytes, &answer.json["result"]["present"], &json!(false))?;
    }
    Ok(())
}

fn not_inherited() -> Verdict {
    let code = "import os, subprocess\n\
        def main():\n\
        \x20   own = os.path.exists('/proc/self/fd/3')\n\
        \x20   child = 'import os; print(sorted(os.listdir(\"/proc/self/fd\"))[:-1])'\n\
        \x20   run = lambda **k: subprocess.run(['python3', '-c', child], capture_output=True, text=True, **k).stdout\n\
        \x20   return [own, run().strip(), run(close_fds=False).strip()]";
    let answer = run(["-c", code, "--args", "{}"]);
    let wanted = json!([true, "['0', '1', '2']", "['0', '1', '2']"]);
    same("the descriptors", &answer.json["result"]["value"], &wanted)
}

fn failing_main() -> Verdict {
    let answer = run(["-c", "def main(): raise ValueError('no')", "--args", "{}"]);
    same("the status", &answer.json["status"], &json!("failed"))?;
    same("the result", &answer.json["result"]["present"], &json!(false))
}
