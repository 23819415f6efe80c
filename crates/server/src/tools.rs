//! `/v1/tools/{name}`: runs a model's tool call, in the format of its API, and returns the tool result.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use belljar_engine::provider::DiscardSink;
use belljar_tools::{ModelCall, Tool, ToolAnswer};
use serde_json::{Map, Value};

use crate::app_state::AppState;
use crate::authentication::RunCaller;
use crate::body::JsonBody;
use crate::error::Error;
use crate::mcp::TenantBackend;
use crate::schema;

/// Runs a model's tool call: an unchanged OpenAI or Anthropic call, or only the tool's input.
#[utoipa::path(
    post, path = "/v1/tools/{name}", tag = "tools", request_body = schema::ToolCall,
    params(("name" = String, Path,
        description = "Tool name: run_code, run_command, sandbox_open, …; code_execution means run_code")),
    responses(
        (status = 200, description = "The tool result, in the format of the call; if the tool failed, with \
            the reason for the model", body = schema::ToolResult),
        (status = 404, description = "No such tool", body = schema::Problem),
        (status = 422, description = "Not a tool call, or a call of another tool", body = schema::Problem),
    )
)]
pub(crate) async fn call(
    State(world): State<Arc<AppState>>,
    RunCaller(caller): RunCaller,
    Path(name): Path<String>,
    body: JsonBody,
) -> Result<Json<Value>, Error> {
    let tool = Tool::find(&name).map_err(|_| Error::NotFound("tool"))?;
    let JsonBody { bytes, hold } = body;
    let ModelCall { name: named, input, reply } =
        ModelCall::parse(belljar_engine::json::parse_object::<Map<_, _>>(&bytes)?).map_err(wrong)?;
    drop(bytes);
    let _request_hold = hold.into_request()?;
    if let Some(named) = &named
        && Tool::find(named).map_err(wrong)?.name != tool.name
    {
        return Err(wrong(format!("this is a call of {named}, but the path names {name}")));
    }
    let hands = TenantBackend::new(&world, caller, None);
    // If the client disconnects, this future is dropped and the run ends.
    let never = Box::pin(std::future::pending());
    let answer = tool.call(&hands, input, &mut DiscardSink, never).await;
    Ok(Json(reply.render(answer.unwrap_or_else(|error| ToolAnswer::failure(&error)))))
}

fn wrong(error: impl ToString) -> Error {
    Error::Invalid { field: "tool call", message: error.to_string() }
}
