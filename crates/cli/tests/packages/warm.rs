//! Frequently used layers: warm interpreters have their modules imported, which only the timing reveals.

use serde_json::{Value, json};

use crate::common::warm::Conversation;
use crate::expect::skip;
use crate::fixture::{Kit, all_tests};

/// Returns code that prints whether the module was imported before, how often it was used, and its version.
fn code(module: &str) -> String {
    format!(
        "import sys\nbefore = '{module}' in sys.modules\nimport {module} as it\nit.uses = getattr(it, 'uses', 0) + 1\n\
         print(before, it.uses, it.__version__)"
    )
}

/// Repeats a line until the module was preimported. All results before that must be right as well.
fn until_waiting(batch: &mut Conversation, line: &Value, version: &str) -> Value {
    for _ in 0..400 {
        let result = batch.ask(line);
        let said = result["stdout"].as_str().unwrap_or_default().trim_end();
        assert!(said.ends_with(&format!(" 1 {version}")), "{result}");
        if said.starts_with("True") {
            return result;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("no warm interpreter ever had the module: {line}");
}

#[test]
fn frequently_used_modules_are_preimported_per_layer() {
    let fixture = fixture!(Kit::Fast);
    let mut batch =
        Conversation::by(fixture.command(), "mode = \"pool\"", &["--language", "python", "-c", "0"]);
    let line = |version: &str| json!({"code": code("idna"), "dependencies": {"packages": [format!("idna=={version}")]}});
    let first = batch.ask(&line("3.4"));
    assert_eq!(
        (first["stdout"].as_str(), &first["receipt"]["warm"]),
        (Some("False 1 3.4\n"), &json!(false)),
        "{first}"
    );
    let warm = until_waiting(&mut batch, &line("3.4"), "3.4");
    assert!(["pool", "fork"].contains(&warm["receipt"]["warm"].as_str().unwrap_or_default()), "{warm}");
    assert_eq!(warm["dependencies"]["cache"], "hit", "{warm}");
    // Another layer has its own interpreters, separate from these.
    until_waiting(&mut batch, &line("3.3"), "3.3");
    for version in ["3.4", "3.3", "3.4", "3.3"] {
        until_waiting(&mut batch, &line(version), version);
    }
    // Without the layer the module is missing, whatever is warm.
    let without =
        json!({"code": "import sys\nprint('idna' in sys.modules)", "dependencies": {"detect": false}});
    assert_eq!(batch.ask(&without)["stdout"], "False\n");
}

#[test]
fn the_data_profile_draws_plots() {
    if !all_tests() {
        return skip("the profile for data", "its packages take long; only with ./test --all");
    }
    for kit in [Kit::Fast, Kit::Usual] {
        let fixture = fixture!(kit);
        let mut batch = Conversation::by(
            fixture.command(),
            "mode = \"pool\"",
            &["--profile", "data", "--language", "python", "-c", "0"],
        );
        let code = "import sys\nbefore = 'pandas' in sys.modules\nimport numpy as np, pandas as pd, matplotlib.pyplot as plt\n\
            frame = pd.DataFrame({'x': np.arange(100), 'y': np.arange(100) ** 2})\n\
            frame.plot(x='x', y='y', title='squares')\nplt.savefig('/tmp/plot.png')\n\
            image = plt.imread('/tmp/plot.png')\n\
            print(before, open('/tmp/plot.png', 'rb').read(4) == b'\\x89PNG', image.shape[0] > 100, float(image.std()) > 0)";
        let line = json!({"code": code});
        let first = batch.ask(&line);
        assert!(
            first["stdout"].as_str().is_some_and(|said| said.ends_with(" True True True\n")),
            "{kit:?} {first}"
        );
        let waiting =
            (0..100).map(|_| batch.ask(&line)).find(|result| result["stdout"] == "True True True True\n");
        assert!(waiting.is_some(), "no warm interpreter ever had pandas");
    }
}
