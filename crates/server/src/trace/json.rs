//! Spans in the OTLP JSON format: ids as hexadecimal digits, 64-bit numbers as strings.

use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value as Json, json};

use super::TraceContext;

/// A timed operation.
#[derive(Debug)]
pub(crate) struct TraceSpan {
    pub(crate) context: TraceContext,
    pub(crate) parent: Option<[u8; 8]>,
    pub(crate) name: String,
    pub(crate) kind: SpanKind,
    pub(crate) started: SystemTime,
    pub(crate) ended: SystemTime,
    /// Whether it failed because of the server.
    pub(crate) failed: bool,
    pub(crate) attributes: Vec<(&'static str, AttributeValue)>,
}

/// The span kind, with the numbers of OTLP.
#[derive(Debug, Clone, Copy)]
pub(crate) enum SpanKind {
    Internal = 1,
    Server = 2,
}

/// The value of an attribute.
#[derive(Debug)]
pub(crate) enum AttributeValue {
    Word(&'static str),
    Text(String),
    Whole(i64),
    Real(f64),
}

impl From<&'static str> for AttributeValue {
    fn from(word: &'static str) -> Self {
        Self::Word(word)
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// Returns the body of one export call.
pub(super) fn body(spans: &[TraceSpan]) -> String {
    let service = [
        attribute("service.name", &AttributeValue::Word("belljar")),
        attribute("service.version", &AttributeValue::Word(env!("CARGO_PKG_VERSION"))),
    ];
    let spans: Vec<_> = spans.iter().map(object).collect();
    json!({"resourceSpans": [{
        "resource": {"attributes": service},
        "scopeSpans": [{"scope": {"name": "belljar"}, "spans": spans}],
    }]})
    .to_string()
}

fn object(span: &TraceSpan) -> Json {
    let attributes: Vec<_> = span.attributes.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut object = json!({
        "traceId": hex(&span.context.trace),
        "spanId": hex(&span.context.span),
        "name": span.name,
        "kind": span.kind as u8,
        "startTimeUnixNano": nanoseconds(span.started),
        "endTimeUnixNano": nanoseconds(span.ended),
        "attributes": attributes,
        "status": if span.failed { json!({"code": 2}) } else { json!({}) },
    });
    if let Some(parent) = span.parent {
        object["parentSpanId"] = hex(&parent).into();
    }
    object
}

fn attribute(key: &str, value: &AttributeValue) -> Json {
    let value = match value {
        AttributeValue::Word(word) => json!({"stringValue": word}),
        AttributeValue::Text(text) => json!({"stringValue": text}),
        AttributeValue::Whole(number) => json!({"intValue": number.to_string()}),
        AttributeValue::Real(number) => json!({"doubleValue": number}),
    };
    json!({"key": key, "value": value})
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn nanoseconds(time: SystemTime) -> String {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string()
}
