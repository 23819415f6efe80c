//! The MCP server: offers the tools, and sandbox files as resources, in current and earlier protocol
//! revisions.

use std::sync::Arc;

use belljar_engine::admit::MAX_REQUEST_BYTES;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Extensions, Implementation,
    ListResourceTemplatesResult, ListResourcesResult, ListToolsResult, PaginatedRequestParams,
    ProgressNotificationParam, ReadResourceRequestParams, ReadResourceResponse, ReadResourceResult,
    ServerCapabilities, ServerConfig, ToolAnnotations,
};
use rmcp::service::{RequestContext, ServiceExt};
use rmcp::transport::async_rw::AsyncRwTransport;
use rmcp::{ErrorData, RoleServer, ServerHandler};
use serde_json::{Map, Value};
use tokio::io::{AsyncRead, AsyncWrite};

use crate::answer::ToolAnswer;
use crate::backend::ToolBackend;
use crate::progress::{ProgressSender, forward_progress};
use crate::resources;
use crate::table::{Tool, ToolEffect};

const INSTRUCTIONS: &str = "Runs code in isolated sandboxes. run_code runs one program and keeps nothing; for work in \
    several steps, sandbox_open opens a sandbox whose files persist, for run_code, run_command, read_file, write_file \
    and list_files.";

/// Finds the backend for the caller of a request.
pub trait McpHost: Send + Sync + 'static {
    /// Returns the backend for a request; `request` has the transport's data, e.g. the authenticated caller.
    ///
    /// # Errors
    /// Says why the request is not permitted.
    fn backend(&self, request: &Extensions) -> Result<Arc<dyn ToolBackend>, ErrorData>;
}

/// A host with a single caller.
impl McpHost for Arc<dyn ToolBackend> {
    fn backend(&self, _request: &Extensions) -> Result<Arc<dyn ToolBackend>, ErrorData> {
        Ok(Arc::clone(self))
    }
}

/// The MCP request handler.
#[derive(Debug)]
pub struct McpServer<O>(pub O);

/// Serves one client over a pair of streams until it disconnects.
pub async fn serve(
    backend: Arc<dyn ToolBackend>,
    read: impl AsyncRead + Send + Unpin + 'static,
    write: impl AsyncWrite + Send + Unpin + 'static,
) {
    let transport = AsyncRwTransport::new_server(read, write).with_max_line_length(MAX_REQUEST_BYTES);
    match McpServer(backend).serve(transport).await {
        Ok(running) => drop(running.waiting().await),
        // The client disconnected before initialization.
        Err(error) => tracing::debug!(%error, "MCP session not established"),
    }
}

/// Returns the MCP definition of a tool.
pub(crate) fn definition(tool: &Tool) -> rmcp::model::Tool {
    let annotations = ToolAnnotations::with_title(tool.title)
        .read_only(tool.effect == ToolEffect::Reads)
        .destructive(tool.effect == ToolEffect::Destroys)
        .idempotent(matches!(tool.effect, ToolEffect::Reads | ToolEffect::Writes))
        .open_world(false);
    rmcp::model::Tool::new(tool.name, tool.description, Arc::new(tool.input.clone()))
        .with_title(tool.title)
        .with_raw_output_schema(Arc::new(tool.output.clone()))
        .with_annotations(annotations)
}

impl<O: McpHost> ServerHandler for McpServer<O> {
    fn get_info(&self) -> ServerConfig {
        let capabilities = ServerCapabilities::builder().enable_tools().enable_resources().build();
        let own = Implementation::new("belljar", env!("CARGO_PKG_VERSION")).with_title("Belljar");
        ServerConfig::new(capabilities).with_server_info(own).with_instructions(INSTRUCTIONS)
    }

    async fn list_tools(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(Tool::all().iter().map(definition).collect()))
    }

    fn get_tool(&self, name: &str) -> Option<rmcp::model::Tool> {
        Tool::find(name).ok().map(definition)
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let backend = self.0.backend(&context.extensions)?;
        let tool =
            Tool::find(&request.name).map_err(|error| ErrorData::invalid_params(error.to_string(), None))?;
        Ok(call_tool_with_progress(tool, &*backend, request.arguments.unwrap_or_default(), &context)
            .await
            .into())
    }

    async fn list_resources(
        &self,
        _request: Option<PaginatedRequestParams>,
        context: RequestContext<RoleServer>,
    ) -> Result<ListResourcesResult, ErrorData> {
        let backend = self.0.backend(&context.extensions)?;
        Ok(ListResourcesResult::with_all_items(resources::list(&*backend).await))
    }

    async fn list_resource_templates(
        &self,
        _request: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListResourceTemplatesResult, ErrorData> {
        Ok(ListResourceTemplatesResult::with_all_items(vec![resources::file_template()]))
    }

    async fn read_resource(
        &self,
        request: ReadResourceRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<ReadResourceResponse, ErrorData> {
        let backend = self.0.backend(&context.extensions)?;
        let contents = resources::read(&*backend, &request.uri)
            .await
            .map_err(|error| ErrorData::resource_not_found(error.to_string(), None))?;
        Ok(ReadResourceResult::new(vec![contents]).into())
    }
}

/// Calls a tool and sends progress notifications meanwhile.
async fn call_tool_with_progress(
    tool: &Tool,
    backend: &dyn ToolBackend,
    input: Map<String, Value>,
    context: &RequestContext<RoleServer>,
) -> CallToolResult {
    let mut progress = ProgressSender::default();
    let messages = progress.0.subscribe();
    let call = tool.call(backend, input, &mut progress, Box::pin(context.ct.cancelled()));
    let mut steps = 0;
    let answer = forward_progress(messages, call, |what| {
        steps += 1;
        notify_progress(context, steps, what)
    });
    to_mcp_result(answer.await.unwrap_or_else(|error| ToolAnswer::failure(&error)))
}

/// Sends a progress notification, if the client asked for them.
async fn notify_progress(context: &RequestContext<RoleServer>, steps: u32, what: String) {
    let Some(token) = context.meta.get_progress_token() else { return };
    let param = ProgressNotificationParam::new(token, f64::from(steps)).with_message(what);
    // A lost notification is harmless: the client still gets the result.
    let _ = context.peer.notify_progress(param).await;
}

fn to_mcp_result(answer: ToolAnswer) -> CallToolResult {
    let is_error = answer.is_error();
    let images = answer.images.into_iter().map(|image| ContentBlock::image(image.data, image.mime_type));
    let blocks: Vec<_> = std::iter::once(ContentBlock::text(answer.text)).chain(images).collect();
    let mut result = CallToolResult::success(blocks);
    (result.is_error, result.structured_content) = (Some(is_error), answer.structured);
    result
}
