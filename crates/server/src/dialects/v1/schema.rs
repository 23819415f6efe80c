//! Schemas of the OpenAPI document, generated from the types that are parsed and serialized.
//!
//! An operation refers to a schema with `body = ref(schema::response::<T>())`. The reference also adds the
//! schema to the document that is being generated.

use std::cell::RefCell;

use belljar_engine::schema::words_as_enum;
use schemars::generate::{SchemaGenerator, SchemaSettings};
use schemars::{JsonSchema, Schema};
use serde_json::{Map, Value};

/// Path of the schemas in the document.
const DEFINITIONS: &str = "/components/schemas";

thread_local! {
    /// The generators of the document that this thread generates.
    static GENERATORS: RefCell<Generators> = RefCell::default();
}

struct Generators {
    requests: SchemaGenerator,
    responses: SchemaGenerator,
}

impl Default for Generators {
    fn default() -> Self {
        let settings = || {
            SchemaSettings::draft2020_12().with(|settings| {
                settings.definitions_path = DEFINITIONS.into();
                settings.meta_schema = None;
            })
        };
        Self {
            requests: settings().into_generator(),
            // Every field that is always serialized is required.
            responses: settings().for_serialize().into_generator(),
        }
    }
}

/// Returns a reference to the schema of a request body.
pub(crate) fn request<T: JsonSchema>() -> String {
    GENERATORS.with_borrow_mut(|generators| reference(&generators.requests.subschema_for::<T>()))
}

/// Returns a reference to the schema of a response body.
pub(crate) fn response<T: JsonSchema>() -> String {
    GENERATORS.with_borrow_mut(|generators| reference(&generators.responses.subschema_for::<T>()))
}

fn reference(schema: &Schema) -> String {
    schema.get("$ref").and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// Takes all schemas that were referred to, by name. A type that is both read and written has the schema of
/// requests, in which fields may be absent.
pub(crate) fn take_schemas() -> Map<String, Value> {
    let mut generators = GENERATORS.take();
    let mut schemas = generators.responses.take_definitions(true);
    schemas.extend(generators.requests.take_definitions(true));
    schemas.values_mut().for_each(simplify);
    schemas
}

/// Rewrites a schema for generators of clients, which know few formats and expect `enum` for words.
fn simplify(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            if let Some(Value::String(format)) = object.get_mut("format") {
                match format.as_str() {
                    "uint8" | "uint16" | "uint32" => "int32".clone_into(format),
                    "uint64" | "uint" => "int64".clone_into(format),
                    _ => {}
                }
            }
            // Defaults of absent objects, lists and texts say nothing.
            if object.get("default").is_some_and(|value| !value.is_boolean() && !value.is_number()) {
                object.remove("default");
            }
            words_as_enum(object);
            object.values_mut().for_each(simplify);
        }
        Value::Array(values) => values.iter_mut().for_each(simplify),
        _ => {}
    }
}

/// Raw bytes.
#[derive(JsonSchema)]
#[schemars(extend("format" = "binary"))]
#[expect(dead_code, reason = "bodies of bytes are streamed")]
pub(crate) struct Bytes(String);
