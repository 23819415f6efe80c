//! Parses tool calls in the formats of OpenAI, Anthropic and MCP, and answers in the same format.

use serde_json::{Map, Value, json};

use crate::Error;
use crate::answer::{Answer, Image};

/// A tool call.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Name of the tool, if given.
    pub name: Option<String>,
    /// Input of the tool.
    pub input: Map<String, Value>,
    /// Format of the reply.
    pub reply: Reply,
}

/// The format of a call and its reply, with the id of the call.
#[derive(Debug, Clone, PartialEq)]
pub enum Reply {
    /// OpenAI chat completions: `{"id", "type": "function", "function": {"name", "arguments": "{…}"}}`.
    Chat(Value),
    /// OpenAI responses: `{"type": "function_call", "call_id", "name", "arguments": "{…}"}`.
    Responses(Value),
    /// Anthropic messages: `{"type": "tool_use", "id", "name", "input": {…}}`.
    Messages(Value),
    /// MCP, or the plain input, optionally with a `"tool"` field.
    Plain,
}

impl Call {
    /// Parses a call.
    ///
    /// # Errors
    /// Says what is invalid.
    pub fn parse(mut body: Map<String, Value>) -> Result<Self, Error> {
        let kind = body.get("type").and_then(Value::as_str).unwrap_or_default().to_owned();
        if let Some(Value::Object(function)) = body.remove("function") {
            return Self::of(function, "arguments", Reply::Chat(take(&mut body, "id")));
        }
        match kind.as_str() {
            "function_call" => {
                let id = take(&mut body, "call_id");
                Self::of(body, "arguments", Reply::Responses(id))
            }
            "tool_use" => {
                let id = take(&mut body, "id");
                Self::of(body, "input", Reply::Messages(id))
            }
            _ if is_only(&body, &["name", "arguments"]) => Self::of(body, "arguments", Reply::Plain),
            _ if is_only(&body, &["name", "input"]) => Self::of(body, "input", Reply::Plain),
            _ => {
                let name = body.remove("tool").map(text).transpose()?;
                Ok(Self { name, input: body, reply: Reply::Plain })
            }
        }
    }

    fn of(mut call: Map<String, Value>, field: &str, reply: Reply) -> Result<Self, Error> {
        let name = call.remove("name").map(text).transpose()?;
        let input = match take(&mut call, field) {
            Value::Object(input) => input,
            Value::Null => Map::new(),
            // OpenAI's models send the arguments as a string of JSON.
            Value::String(written) if written.trim().is_empty() => Map::new(),
            Value::String(written) => belljar_engine::json::object(written.as_bytes())?,
            _ => return Err(Error::Call(format!("'{field}' is not an object"))),
        };
        Ok(Self { name, input, reply })
    }
}

impl Reply {
    /// Formats an answer as the result to return to the model.
    pub fn with(self, answer: Answer) -> Value {
        let is_error = answer.is_error();
        match self {
            Self::Chat(id) => json!({"role": "tool", "tool_call_id": id, "content": answer.text}),
            Self::Responses(id) => {
                json!({"type": "function_call_output", "call_id": id, "output": answer.text})
            }
            Self::Messages(id) => {
                let content = content(answer.text, answer.images, |image| {
                    let source = json!({"type": "base64", "media_type": image.mime_type, "data": image.data});
                    json!({"type": "image", "source": source})
                });
                json!({"type": "tool_result", "tool_use_id": id, "content": content, "is_error": is_error})
            }
            Self::Plain => {
                let content = content(
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

fn content(text: String, images: Vec<Image>, image: fn(Image) -> Value) -> Vec<Value> {
    std::iter::once(json!({"type": "text", "text": text})).chain(images.into_iter().map(image)).collect()
}

fn take(body: &mut Map<String, Value>, field: &str) -> Value {
    body.remove(field).unwrap_or_default()
}

fn text(value: Value) -> Result<String, Error> {
    match value {
        Value::String(text) => Ok(text),
        _ => Err(Error::Call("the tool name is not a string".to_owned())),
    }
}

/// Returns whether the object has exactly these fields.
fn is_only(body: &Map<String, Value>, fields: &[&str]) -> bool {
    body.len() == fields.len() && fields.iter().all(|field| body.contains_key(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(call: Value) -> Result<Call, Error> {
        Call::parse(call.as_object().unwrap().clone())
    }

    fn answered(call: Call) -> Value {
        let images = vec![Image { mime_type: "image/png".to_owned(), data: "AAAA".to_owned() }];
        call.reply.with(Answer { text: "42".to_owned(), images, structured: Some(json!({"a": 1})) })
    }

    #[test]
    fn a_call_is_taken_as_it_is_and_answered_in_the_same_words() {
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
    fn what_is_no_call_is_refused() {
        for wrong in [
            json!({"tool": 7, "code": ""}),
            json!({"type": "tool_use", "name": "run_code", "input": [1]}),
            json!({"function": {"name": "run_code", "arguments": "{\"code\": "}}),
        ] {
            assert!(parse(wrong.clone()).is_err(), "{wrong}");
        }
    }
}
