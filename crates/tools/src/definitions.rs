//! The definitions of all tools, in the format of each kind of client.

use serde_json::{Value, json};

use crate::mcp;
use crate::table::Tool;

/// Format of tool definitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefinitionFormat {
    /// `tools` of OpenAI chat completions and compatible APIs.
    OpenAi,
    /// `tools` of Anthropic messages.
    Anthropic,
    /// Result of MCP `tools/list`.
    Mcp,
    /// All fields, in Belljar's own format.
    Json,
}

/// Returns the definitions of all tools.
pub fn definitions(format: DefinitionFormat) -> Value {
    let each = |define: fn(&Tool) -> Value| Tool::all().iter().map(define).collect::<Value>();
    match format {
        DefinitionFormat::OpenAi => each(|tool| {
            let Tool { name, description, input, .. } = tool;
            json!({"type": "function", "function": {"name": name, "description": description, "parameters": input}})
        }),
        DefinitionFormat::Anthropic => each(|tool| {
            let Tool { name, description, input, .. } = tool;
            json!({"name": name, "description": description, "input_schema": input})
        }),
        DefinitionFormat::Mcp => {
            let tools: Vec<_> = Tool::all().iter().map(mcp::definition).collect();
            json!({"tools": tools})
        }
        DefinitionFormat::Json => each(|tool| {
            let Tool { name, title, description, input, output, .. } = tool;
            json!({"name": name, "title": title, "description": description, "input": input, "output": output})
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definitions_have_the_format_of_their_clients() {
        let [openai, anthropic, mcp] =
            [DefinitionFormat::OpenAi, DefinitionFormat::Anthropic, DefinitionFormat::Mcp].map(definitions);
        assert_eq!(openai[0]["function"]["name"], "run_code");
        assert_eq!(openai[0]["function"]["parameters"], anthropic[0]["input_schema"]);
        assert_eq!(anthropic[0]["input_schema"], mcp["tools"][0]["inputSchema"]);
        assert_eq!(mcp["tools"][0]["outputSchema"]["properties"]["status"]["type"], "string");
    }
}
