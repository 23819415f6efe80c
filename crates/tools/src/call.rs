//! Parses tool calls in the formats of OpenAI, Anthropic and MCP, and answers in the same format.

use serde_json::{Map, Value, json};

use crate::Error;
use crate::answer::{AnswerImage, ToolAnswer};

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelCall {
    /// Name of the tool, if given.
    pub name: Option<String>,
    /// Input of the tool.
    pub input: Map<String, Value>,
    /// Format of the reply.
    pub reply: ReplyFormat,
}

/// The format of a call and its reply, with the id of the call.
#[derive(Debug, Clone, PartialEq)]
pub enum ReplyFormat {
    /// OpenAI chat completions: `{"id", "type": "function", "function": {"name", "arguments": "{…}"}}`.
    Chat(Value),
    /// OpenAI responses: `{"type": "function_call", "call_id", "name", "arguments": "{…}"}`.
    Responses(Value),
    /// Anthropic messages: `{"type": "tool_use", "id", "name", "input": {…}}`.
    Messages(Value),
    /// MCP, or the plain input, optionally with a `"tool"` field.
    Plain,
}

impl ModelCall {
    /// Parses a call.
    ///
    /// # Errors
    /// Says what is invalid.
    pub fn parse(mut body: Map<String, Value>) -> Result<Self, Error> {
        let kind = body.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(Value::Object(function)) = body.remove("function") {
            return Self::from_fields(function, "arguments", ReplyFormat::Chat(take_field(&mut body, "id")));
        }
        match kind.as_str() {
            "function_call" => {
                let id = take_field(&mut body, "call_id");
                Self::from_fields(body, "arguments", ReplyFormat::Responses(id))
            }
            "tool_use" => {
                let id = take_field(&mut body, "id");
                Self::from_fields(body, "input", ReplyFormat::Messages(id))
            }
            _ if has_exactly(&body, &["name", "arguments"]) => {
                Self::from_fields(body, "arguments", ReplyFormat::Plain)
            }
            _ if has_exactly(&body, &["name", "input"]) => {
                Self::from_fields(body, "input", ReplyFormat::Plain)
            }
            _ => {
                let name = body.remove("tool").map(into_string).transpose()?;
                Ok(Self { name, input: body, reply: ReplyFormat::Plain })
            }
        }
    }

    fn from_fields(mut call: Map<String, Value>, field: &str, reply: ReplyFormat) -> Result<Self, Error> {
        let name = call.remove("name").map(into_string).transpose()?;
        let input = match take_field(&mut call, field) {
            Value::Object(input) => input,
            Value::Null => Map::new(),
            // OpenAI's models send the arguments as a string of JSON.
            Value::String(written) if written.trim().is_empty() => Map::new(),
            Value::String(written) => belljar_engine::json::parse_object(written.as_bytes())?,
            _ => return Err(Error::Call(format!("'{field}' is not an object"))),
        };
        Ok(Self { name, input, reply })
    }
}

impl ReplyFormat {
    /// Formats an answer as the result to return to the model.
    pub fn render(self, answer: ToolAnswer) -> Value {
        let is_error = answer.is_error();
        match self {
            Self::Chat(id) => json!({"role": "tool", "tool_call_id": id, "content": answer.text}),
            Self::Responses(id) => {
                json!({"type": "function_call_output", "call_id": id, "output": answer.text})
            }
            Self::Messages(id) => {
                let content = render_content(answer.text, answer.images, |image| {
                    let source = json!({"type": "base64", "media_type": image.mime_type, "data": image.data});
                    json!({"type": "image", "source": source})
                });
                json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error})
            }
            Self::Plain => {
                let content = render_content(
                    answer.text,
                    answer.images,
                    |image| json!({"type": "image", "mimeType": image.mime_type, "data": image.data}),
                );
                let mut result = json!({"content": content, "isError": is_error});
                if let Some(structured) = answer.structured {
                    result["structuredContent"] = structured;
                }
                result
            }
        }
    }
}

fn render_content(text: String, images: Vec<AnswerImage>, image: fn(AnswerImage) -> Value) -> Vec<Value> {
    std::iter::once(json!({"type": "text", "text": text})).chain(images.into_iter().map(image)).collect()
}

fn take_field(body: &mut Map<String, Value>, field: &str) -> Value {
    body.remove(field).unwrap_or_default()
}

fn into_string(value: Value) -> Result<String, Error> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Error::Call("the tool name is not a string".to_owned())),
    }
}

/// Returns whether the object has exactly these fields.
fn has_exactly(body: &Map<String, Value>, fields: &[&str]) -> bool {
    body.len() == fields.len() && fields.iter().all(|field| body.contains_key(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(call: Value) -> Result<ModelCall, Error> {
        ModelCall::parse(call.as_object().unwrap().clone())
    }

    fn answered(call: ModelCall) -> Value {
        let images = vec![AnswerImage { mime_type: "image/png".to_owned(), data: "AAAA".to_owned() }];
        call.reply.render(ToolAnswer { text: "42".to_owned(), images, structured: Some(json!({"a": 1})) })
    }

    #[test]
    fn calls_are_answered_in_their_own_format() {
        let input = json!({"language": "python", "code": "print(42)"});
        let written = input.to_string();
        let chat = json!({"id": "call_1", "type": "function",
            "function": {"name": "run_code", "arguments": written}});
        let responses = json!({"type": "function_call", "id": "fc_1", "call_id": "call_2", "status": "completed",
            "name": "run_code", "arguments": written});
        let messages = json!({"type": "tool_use", "id": "toolu_1", "name": "run_code", "input": input});
        let mcp = json!({"name": "run_code", "arguments": input});
        let own = json!({"tool": "run_code", "language": "python", "code": "print(42)"});
        let calls = [chat, responses, messages, mcp, own].map(|call| parse(call).unwrap());
        for call in &calls {
            assert_eq!((call.name.as_deref(), &Value::from(call.input.clone())), (Some("run_code"), &input));
        }
        let [chat, responses, messages, mcp, own] = calls.map(answered);
        assert_eq!(chat, json!({"role": "tool", "tool_call_id": "call_1", "content": "42"}));
        assert_eq!(responses, json!({"type": "function_call_output", "call_id": "call_2", "output": "42"}));
        assert_eq!(messages["tool_use_id"], "toolu_1");
        assert_eq!(messages["content"][1]["source"]["media_type"], "image/png");
        assert_eq!((&mcp["content"][0]["text"], &mcp["structuredContent"]["a"]), (&json!("42"), &json!(1)));
        assert_eq!(mcp, own);
    }

    #[test]
    fn malformed_calls_are_refused() {
        for wrong in [
            json!({"tool": 7, "code": ""}),
            json!({"type": "tool_use", "name": "run_code", "input": [1]}),
            json!({"function": {"name": "run_code", "arguments": "{\"code\": "}}),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
