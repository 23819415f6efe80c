//! Tool calls of models, and what they get back.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// A tool call of OpenAI's (`function` with `arguments`, or `function_call`) or Anthropic's (`tool_use` with `input`) as it
/// is; or the tool's input by itself, also with `"tool"` beside it. `belljar tools` prints what each tool takes.
#[derive(Serialize, ToSchema)]
#[schema(example = json!({"language": "python", "code": "print(6 * 7)"}))]
pub(crate) struct ToolCall(BTreeMap<String, Value>);

/// What goes back to the model: a message with the role `tool`, a `function_call_output` or a `tool_result`; and for
/// everybody else `content`, `structuredContent` and `isError`, as in MCP.
#[derive(Serialize, ToSchema)]
pub(crate) struct ToolResult(BTreeMap<String, Value>);
