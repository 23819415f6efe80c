//! `/v1/tools/{name}`: a model's tool call, as the model wrote it, becomes a tool result.

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

/// Does what a model's tool call asks for: a call of OpenAI's or Anthropic's as it is, or the tool's input by itself.
#[utoipa::path(
    post, path = "/v1/tools/{name}", tag = "tools", request_body = schema::ToolCall,
    params(("name" = String, Path, description = "The tool: run_code, run_command, sandbox_open, …; code_execution is run_code")),
    responses(
        (status = 200, description = "The tool result, in the words of the call, also where the tool came to nothing: the \
            model reads why", body = schema::ToolResult),
        (status = 404, description = "There is no such tool", body = schema::Problem),
        (status = 422, description = "It is no tool call, or one of another tool", body = schema::Problem),
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
        return Err(wrong(format!("it is a call of {named}, and this is {name}")));
    }
    let hands = Behalf::new(&world, caller, None);
    // Who hangs up takes the run along.
    let never = Box::pin(std::future::pending());
    let answer = tool.call(&hands, input, &mut Blind, never).await;
    Ok(Json(reply.with(answer.unwrap_or_else(|error| Answer::failure(&error)))))
}

fn wrong(error: impl ToString) -> Error {
    Error::Invalid { field: "tool call", message: error.to_string() }
}
