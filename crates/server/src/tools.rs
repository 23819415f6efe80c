//! `/v1/tools/{name}`: runs a model's tool call, in the format of its API, and returns the tool result.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use belljar_engine::provider::Blind;
use belljar_tools::{Answer, Call, Tool};
use serde_json::{Map, Value};

use crate::accounts::Runner;
use crate::body::Whole;
use crate::error::Error;
use crate::mcp::Behalf;
use crate::schema;
use crate::world::World;

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
    State(world): State<Arc<World>>,
    Runner(caller): Runner,
    Path(name): Path<String>,
    body: Whole,
) -> Result<Json<Value>, Error> {
    let tool = Tool::named(&name).map_err(|_| Error::NotFound("tool"))?;
    let Whole { bytes, hold } = body;
    let Call { name: named, input, reply } =
        Call::parse(belljar_engine::json::object::<Map<_, _>>(&bytes)?).map_err(wrong)?;
    drop(bytes);
    let _request_hold = hold.parsed()?;
    if let Some(named) = &named
        && Tool::named(named).map_err(wrong)?.name != tool.name
    {
        return Err(wrong(format!("this is a call of {named}, but the path names {name}")));
    }
    let hands = Behalf::new(&world, caller, None);
    // If the client disconnects, this future is dropped and the run ends.
    let never = Box::pin(std::future::pending());
    let answer = tool.call(&hands, input, &mut Blind, never).await;
    Ok(Json(reply.with(answer.unwrap_or_else(|error| Answer::failure(&error)))))
}

fn wrong(error: impl ToString) -> Error {
    Error::Invalid { field: "tool call", message: error.to_string() }
}
