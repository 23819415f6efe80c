//! The table of tools.

use std::sync::LazyLock;

use belljar_engine::report::Report;
use belljar_engine::schema::words_as_enum;
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use crate::Error;
use crate::backend::OpenResult;
use crate::execute::{CheckResult, CloseResult, FileContent, FolderListing, WriteResult};
use crate::input::{
    CheckCode, ListFiles, ReadFile, RunCode, RunCommand, SandboxClose, SandboxOpen, WriteFile,
};

/// A tool that models can call.
#[derive(Debug)]
pub struct Tool {
    /// Name used in calls.
    pub name: &'static str,
    /// Title for people.
    pub title: &'static str,
    /// Description for models: what the tool does and when to use it.
    pub description: &'static str,
    /// JSON Schema of the input.
    pub input: Map<String, Value>,
    /// JSON Schema of the output.
    pub output: Map<String, Value>,
    /// Effect on the sandbox; a tool never affects anything else.
    pub(crate) effect: ToolEffect,
    pub(crate) kind: ToolKind,
}

/// Effect of a tool on its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ToolEffect {
    /// Read-only.
    Reads,
    /// Adds or replaces; idempotent.
    Writes,
    /// Runs arbitrary code.
    RunsCode,
    /// Destroys something.
    Destroys,
}

/// Identifies a tool.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ToolKind {
    RunCode,
    RunCommand,
    SandboxOpen,
    SandboxClose,
    ReadFile,
    WriteFile,
    ListFiles,
    CheckCode,
}

/// Alias of `run_code` that some models use.
const RUN_CODE_ALIAS: &str = "code_execution";

impl Tool {
    /// Returns all tools.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Tool>> = LazyLock::new(table);
        &ALL
    }

    /// Finds a tool by name.
    ///
    /// # Errors
    /// Fails if there is no such tool.
    pub fn find(name: &str) -> Result<&'static Self, Error> {
        let name = if name == RUN_CODE_ALIAS { "run_code" } else { name };
        let found = Self::all().iter().find(|tool| tool.name == name);
        found.ok_or_else(|| Error::UnknownTool(name.chars().take(64).collect()))
    }
}

/// Returns the names of all tools, for messages.
pub(crate) fn tool_names() -> String {
    Tool::all().iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ")
}

fn table() -> Vec<Tool> {
    run_tools().into_iter().chain(sandbox_tools()).chain(file_tools()).chain([check_tool()]).collect()
}

fn run_tools() -> [Tool; 2] {
    [
        Tool {
            name: "run_code",
            title: "Run code",
            description: "Runs a program in a fresh, isolated sandbox and returns its output, the return value of main() \
                and the files in ./artifacts (images are shown). In Python, figures that matplotlib shows or leaves open \
                are saved there. Packages that the code imports are installed \
                automatically. There is usually no network. Nothing persists between calls unless a sandbox is given.",
            input: input_schema::<RunCode>(),
            output: output_schema::<Report>(),
            effect: ToolEffect::RunsCode,
            kind: ToolKind::RunCode,
        },
        Tool {
            name: "run_command",
            title: "Run a command",
            description: "Runs Bash in an isolated sandbox and returns its output. To build on earlier steps, open a \
                sandbox first and pass it: its files persist between calls.",
            input: input_schema::<RunCommand>(),
            output: output_schema::<Report>(),
            effect: ToolEffect::RunsCode,
            kind: ToolKind::RunCommand,
        },
    ]
}

fn sandbox_tools() -> [Tool; 2] {
    [
        Tool {
            name: "sandbox_open",
            title: "Open a sandbox",
            description: "Opens a sandbox whose files persist between calls, for work in several steps. Close it when done.",
            input: input_schema::<SandboxOpen>(),
            output: output_schema::<OpenResult>(),
            effect: ToolEffect::RunsCode,
            kind: ToolKind::SandboxOpen,
        },
        Tool {
            name: "sandbox_close",
            title: "Close a sandbox",
            description: "Closes a sandbox: kills everything that runs in it and deletes its files.",
            input: input_schema::<SandboxClose>(),
            output: output_schema::<CloseResult>(),
            effect: ToolEffect::Destroys,
            kind: ToolKind::SandboxClose,
        },
    ]
}

fn file_tools() -> [Tool; 3] {
    [
        Tool {
            name: "read_file",
            title: "Read a file",
            description: "Reads a file in a sandbox: text as is, images for viewing, other content in base64.",
            input: input_schema::<ReadFile>(),
            output: output_schema::<FileContent>(),
            effect: ToolEffect::Reads,
            kind: ToolKind::ReadFile,
        },
        Tool {
            name: "write_file",
            title: "Write a file",
            description: "Writes a file in a sandbox, replacing an existing one.",
            input: input_schema::<WriteFile>(),
            output: output_schema::<WriteResult>(),
            effect: ToolEffect::Writes,
            kind: ToolKind::WriteFile,
        },
        Tool {
            name: "list_files",
            title: "List files",
            description: "Lists a folder in a sandbox.",
            input: input_schema::<ListFiles>(),
            output: output_schema::<FolderListing>(),
            effect: ToolEffect::Reads,
            kind: ToolKind::ListFiles,
        },
    ]
}

fn check_tool() -> Tool {
    Tool {
        name: "check_code",
        title: "Check code",
        description: "Checks code against the policy without running it, and suggests what to write instead.",
        input: input_schema::<CheckCode>(),
        output: output_schema::<CheckResult>(),
        effect: ToolEffect::Reads,
        kind: ToolKind::CheckCode,
    }
}

fn input_schema<T: JsonSchema>() -> Map<String, Value> {
    simple_schema::<T>(SchemaSettings::draft2020_12())
}

fn output_schema<T: JsonSchema>() -> Map<String, Value> {
    simple_schema::<T>(SchemaSettings::draft2020_12().for_serialize())
}

/// Generates a schema in a simple form that every client understands: inlined, with fields that are either
/// optional or nullable.
fn simple_schema<T: JsonSchema>(settings: SchemaSettings) -> Map<String, Value> {
    let settings = settings.with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    simplify(&mut schema);
    let mut schema = as_object(schema);
    schema.remove("title");
    schema.remove("description");
    schema
}

fn as_object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(object) => object,
        _ => Map::new(),
    }
}

fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            let required = object.get("required").cloned().unwrap_or_default();
            let required: Vec<&str> =
                required.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            for (name, property) in
                object.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten()
            {
                if !required.contains(&name.as_str()) {
                    remove_null(property);
                }
            }
            words_as_enum(object);
            // Descriptions come from wrapped comments.
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            if object.get("default") == Some(&Value::Null) {
                object.remove("default");
            }
            // Most validators do not know formats such as `int64`, and some refuse unknown ones.
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}

fn remove_null(schema: &mut Value) {
    if let Some(Value::Array(kinds)) = schema.get_mut("type") {
        kinds.retain(|kind| kind != "null");
        if let [kind] = kinds.as_slice() {
            schema["type"] = kind.clone();
        }
    }
}

#[cfg(test)]
mod tests {
    use belljar_engine::report::Status;
    use serde_json::json;

    use super::*;

    #[test]
    fn schemas_are_simple() {
        for tool in Tool::all() {
            let text = Value::from(tool.input.clone()).to_string();
            for word in ["$ref", "$schema", "null", "anyOf", "format"] {
                assert!(!text.contains(word), "{}: {text}", tool.name);
            }
            assert_eq!(tool.input["type"], "object", "{}", tool.name);
            assert_eq!(tool.output["type"], "object", "{}", tool.name);
            assert_eq!(tool.input["additionalProperties"], false, "{}", tool.name);
        }
        let run = &Tool::find("code_execution").unwrap().input;
        assert_eq!(run["required"], json!(["language", "code"]));
        assert_eq!(run["properties"]["language"]["enum"][0], "python");
        assert_eq!(run["properties"]["files"]["items"]["required"], json!(["path"]));
    }

    #[test]
    fn the_output_of_a_run_is_the_result_object() {
        let report = Report::blank("exec_1".to_owned(), Status::Refused, None, Map::new());
        let report = serde_json::to_value(report).unwrap();
        let output = Value::from(Tool::find("run_code").unwrap().output.clone());
        let mut required: Vec<_> = output["required"].as_array().unwrap().iter().collect();
        required.sort_unstable_by_key(|name| name.as_str());
        assert_eq!(json!(required), json!(report.as_object().unwrap().keys().collect::<Vec<_>>()));
        assert_eq!(output["properties"]["exit_code"]["type"], json!(["integer", "null"]));
        assert!(output["properties"]["findings"]["items"]["properties"]["suggestion"].is_object());
        assert!(!output.to_string().contains("$ref"), "{output}");
    }
}
