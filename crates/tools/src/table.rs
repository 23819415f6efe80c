//! The one table of tools, and its definitions in the words of each kind of client.

use std::sync::LazyLock;

use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

use crate::Error;
use crate::act::{Checked, Closed, FileRead, Listing, Written};
use crate::hands::Opened;
use crate::input::{
    CheckCode, ListFiles, ReadFile, RunCode, RunCommand, SandboxClose, SandboxOpen, WriteFile,
};

/// A tool.
#[derive(Debug)]
pub struct Tool {
    /// Its name in calls.
    pub name: &'static str,
    /// Its name for people.
    pub title: &'static str,
    /// When to use it, for models.
    pub description: &'static str,
    /// What it takes, a JSON Schema.
    pub input: Map<String, Value>,
    /// What it gives, a JSON Schema.
    pub output: Map<String, Value>,
    /// What it does to its sandbox: nothing else is ever touched.
    pub(crate) effect: Effect,
    pub(crate) kind: Kind,
}

/// What a tool does to its sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    /// It looks.
    Reads,
    /// It adds or replaces, and doing so twice changes nothing more.
    Writes,
    /// It does whatever it is told to.
    Anything,
    /// It ends something.
    Ends,
}

/// Which tool it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Kind {
    RunCode,
    RunCommand,
    SandboxOpen,
    SandboxClose,
    ReadFile,
    WriteFile,
    ListFiles,
    CheckCode,
}

/// Another name by which models know `run_code`.
const CODE_EXECUTION: &str = "code_execution";

impl Tool {
    /// All of them.
    pub fn all() -> &'static [Self] {
        static ALL: LazyLock<Vec<Tool>> = LazyLock::new(table);
        &ALL
    }

    /// One by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn named(name: &str) -> Result<&'static Self, Error> {
        let name = if name == CODE_EXECUTION { "run_code" } else { name };
        let found = Self::all().iter().find(|tool| tool.name == name);
        found.ok_or_else(|| Error::UnknownTool(name.chars().take(64).collect()))
    }
}

/// For messages.
pub(crate) fn names() -> String {
    Tool::all().iter().map(|tool| tool.name).collect::<Vec<_>>().join(", ")
}

fn table() -> Vec<Tool> {
    runs().into_iter().chain(sandboxes()).chain(files()).chain([check_code()]).collect()
}

fn runs() -> [Tool; 2] {
    let result = || as_object(serde_json::from_str(include_str!("result.schema.json")).unwrap_or_default());
    [
        Tool {
            name: "run_code",
            title: "Run code",
            description: "Runs a program in a fresh, isolated sandbox and returns what it printed, what main() returned \
                and the files it left below ./artifacts (images are shown). Packages that the code imports are installed \
                by themselves. There is usually no network. Nothing is kept between calls unless a sandbox is given.",
            input: schema_of::<RunCode>(),
            output: result(),
            effect: Effect::Anything,
            kind: Kind::RunCode,
        },
        Tool {
            name: "run_command",
            title: "Run a command",
            description: "Runs a line of Bash in an isolated sandbox and returns what it printed. To build on earlier \
                steps, open a sandbox first and give it: its files stay between calls.",
            input: schema_of::<RunCommand>(),
            output: result(),
            effect: Effect::Anything,
            kind: Kind::RunCommand,
        },
    ]
}

fn sandboxes() -> [Tool; 2] {
    [
        Tool {
            name: "sandbox_open",
            title: "Open a sandbox",
            description: "Opens a sandbox whose files stay between calls, for work in several steps. Close it when done.",
            input: schema_of::<SandboxOpen>(),
            output: schema_of::<Opened>(),
            effect: Effect::Anything,
            kind: Kind::SandboxOpen,
        },
        Tool {
            name: "sandbox_close",
            title: "Close a sandbox",
            description: "Ends a sandbox: everything that runs in it is killed and its files are gone.",
            input: schema_of::<SandboxClose>(),
            output: schema_of::<Closed>(),
            effect: Effect::Ends,
            kind: Kind::SandboxClose,
        },
    ]
}

fn files() -> [Tool; 3] {
    [
        Tool {
            name: "read_file",
            title: "Read a file",
            description: "Reads a file of a sandbox: text as it is, images to look at, other bytes in base64.",
            input: schema_of::<ReadFile>(),
            output: schema_of::<FileRead>(),
            effect: Effect::Reads,
            kind: Kind::ReadFile,
        },
        Tool {
            name: "write_file",
            title: "Write a file",
            description: "Writes a file of a sandbox, replacing what is there.",
            input: schema_of::<WriteFile>(),
            output: schema_of::<Written>(),
            effect: Effect::Writes,
            kind: Kind::WriteFile,
        },
        Tool {
            name: "list_files",
            title: "List files",
            description: "Lists a folder of a sandbox.",
            input: schema_of::<ListFiles>(),
            output: schema_of::<Listing>(),
            effect: Effect::Reads,
            kind: Kind::ListFiles,
        },
    ]
}

fn check_code() -> Tool {
    Tool {
        name: "check_code",
        title: "Check code",
        description: "Reads code without running it and says what the policy of this place minds in it, and what to \
                write instead.",
        input: schema_of::<CheckCode>(),
        output: schema_of::<Checked>(),
        effect: Effect::Reads,
        kind: Kind::CheckCode,
    }
}

/// In the plain form that every client reads: in one piece, and what may be left out is not also null.
fn schema_of<T: JsonSchema>() -> Map<String, Value> {
    let settings = SchemaSettings::draft2020_12().with(|settings| {
        settings.inline_subschemas = true;
        settings.meta_schema = None;
    });
    let mut schema = settings.into_generator().into_root_schema_for::<T>().to_value();
    plain(&mut schema);
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

fn plain(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::Array(kinds)) = object.get_mut("type") {
                kinds.retain(|kind| kind != "null");
                if let [kind] = kinds.as_slice() {
                    let kind = kind.clone();
                    object.insert("type".to_owned(), kind);
                }
            }
            // Comments are wrapped.
            if let Some(Value::String(text)) = object.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            if object.get("default") == Some(&Value::Null) {
                object.remove("default");
            }
            // `int64` and its kin mean nothing to most validators, and some refuse what they do not know.
            if object.get("format").is_some_and(Value::is_string) {
                object.remove("format");
            }
            object.values_mut().for_each(plain);
        }
        Value::Array(values) => values.iter_mut().for_each(plain),
        _ => {}
    }
}

/// Whose words definitions are in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// `tools` of OpenAI's chat completions, and of everybody who took them over.
    OpenAi,
    /// `tools` of Anthropic's messages.
    Anthropic,
    /// The result of MCP's `tools/list`.
    Mcp,
    /// All that is known, in our own words.
    Json,
}

/// The definitions of all tools.
pub fn definitions(format: Format) -> Value {
    let each = |define: fn(&Tool) -> Value| Tool::all().iter().map(define).collect::<Value>();
    match format {
        Format::OpenAi => each(|tool| {
            let Tool { name, description, input, .. } = tool;
            json!({"type": "function", "function": {"name": name, "description": description, "parameters": input}})
        }),
        Format::Anthropic => each(|tool| {
            let Tool { name, description, input, .. } = tool;
            json!({"name": name, "description": description, "input_schema": input})
        }),
        Format::Mcp => {
            let tools: Vec<_> = Tool::all().iter().map(crate::mcp::definition).collect();
            json!({"tools": tools})
        }
        Format::Json => each(|tool| {
            let Tool { name, title, description, input, output, .. } = tool;
            json!({"name": name, "title": title, "description": description, "input": input, "output": output})
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_plain() {
        for tool in Tool::all() {
            let text = Value::from(tool.input.clone()).to_string();
            for word in ["$ref", "$schema", "null", "anyOf", "format"] {
                assert!(!text.contains(word), "{}: {text}", tool.name);
            }
            assert_eq!(tool.input["type"], "object", "{}", tool.name);
            assert_eq!(tool.output["type"], "object", "{}", tool.name);
            assert_eq!(tool.input["additionalProperties"], false, "{}", tool.name);
        }
        let run = &Tool::named("code_execution").unwrap().input;
        assert_eq!(run["required"], json!(["language", "code"]));
        assert_eq!(run["properties"]["language"]["enum"][0], "python");
        assert_eq!(run["properties"]["files"]["items"]["required"], json!(["path"]));
    }

    #[test]
    fn definitions_are_in_the_words_of_their_clients() {
        let [openai, anthropic, mcp] = [Format::OpenAi, Format::Anthropic, Format::Mcp].map(definitions);
        assert_eq!(openai[0]["function"]["name"], "run_code");
        assert_eq!(openai[0]["function"]["parameters"], anthropic[0]["input_schema"]);
        assert_eq!(anthropic[0]["input_schema"], mcp["tools"][0]["inputSchema"]);
        assert_eq!(mcp["tools"][0]["outputSchema"]["properties"]["status"]["type"], "string");
    }
}
