//! `/v1/tools/{name}`: runs a model's tool call, in the format of its API, and returns the tool result.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use belljar_engine::provider::DiscardSink;
use belljar_tools::{ModelCall, Tool, ToolAnswer};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::schema;
use crate::app_state::AppState;
use crate::error::Error;
use crate::http::body::JsonBody;
use crate::http::callers::RunCaller;
use crate::tool_backend::TenantBackend;

/// A tool call in OpenAI's format (`function` with `arguments`, or `function_call`) or Anthropic's
/// (`tool_use` with `input`), or only the tool's input, optionally with `"tool"` beside it. `belljar tools`
/// prints the input of each tool.
#[derive(Deserialize, JsonSchema)]
#[schemars(example = json!({"language": "python", "code": "print(6 * 7)"}))]
struct ToolCall(Map<String, Value>);

/// The answer for the model, in the format of the call: a message with the role `tool`, a
/// `function_call_output` or a `tool_result`; otherwise `content`, `structuredContent` and `isError`, as in
/// MCP.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ToolResult(#[schemars(with = "Map<String, Value>")] Value);

/// Runs a model's tool call: an unchanged OpenAI or Anthropic call, or only the tool's input.
#[utoipa::path(
    post, path = "/v1/tools/{name}", tag = "tools", request_body = ref(schema::request::<ToolCall>()),
    params(("name" = String, Path,
        description = "Tool name: run_code, run_command, sandbox_open, …; code_execution means run_code")),
    responses(
        (status = 200, description = "The tool result, in the format of the call; if the tool failed, with \
            the reason for the model", body = ref(schema::response::<ToolResult>())),
        (status = 404, description = "No such tool"),
        (status = 422, description = "Not a tool call, or a call of another tool"),
    )
)]
pub(crate) async fn call(
    State(state): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<ToolResult>, Error> {
    let tool = Tool::find(&name).map_err(|_| Error::NotFound("tool"))?;
    let JsonBody { bytes, reservation } = body;
    let ModelCall { name: named, input, reply } =
        ModelCall::parse(belljar_engine::json::parse_object::<ToolCall>(&bytes)?.0).map_err(wrong)?;
    drop(bytes);
    let _request_hold = reservation.into_request()?;
    if let Some(named) = &named
        && Tool::find(named).map_err(wrong)?.name != tool.name
    {
        return Err(wrong(format!("this is a call of {named}, but the path names {name}")));
    }
    let backend = TenantBackend::new(&state, caller, None);
    // If the client disconnects, this future is dropped and the run ends.
    let never = Box::pin(std::future::pending());
    let answer = tool.call(&backend, input, &mut DiscardSink, never).await;
    Ok(Json(ToolResult(reply.render(answer.unwrap_or_else(|error| ToolAnswer::failure(&error))))))
}

fn wrong(error: impl ToString) -> Error {
    Error::Invalid { field: "tool call", message: error.to_string() }
}
