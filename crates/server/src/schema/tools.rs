//! Tool calls of models, and their results.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A tool call in OpenAI's format (`function` with `arguments`, or `function_call`) or Anthropic's
/// (`tool_use` with `input`), or only the tool's input, optionally with `"tool"` beside it. `belljar tools`
/// prints the input of each tool.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"language": "python", "code": "print(6 * 7)"}))]
pub(crate) struct ToolCall(BTreeMap<String, Value>);

/// The answer for the model, in the format of the call: a message with the role `tool`, a
/// `function_call_output` or a `tool_result`; otherwise `content`, `structuredContent` and `isError`, as in
/// MCP.
#[derive(Serialize, ToSchema)]
pub(crate) struct ToolResult(BTreeMap<String, Value>);
