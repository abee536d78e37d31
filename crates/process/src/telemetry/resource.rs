//! The program and pod that telemetry is about.

use std::sync::OnceLock;

use opentelemetry::KeyValue;
use opentelemetry_proto::transform::common::tonic::ResourceAttributesWithSchema;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::IdGenerator as _;

use super::ids::Ids;
use crate::VERSION;

/// The attributes in `OTEL_RESOURCE_ATTRIBUTES` and `OTEL_SERVICE_NAME`, or the program's name if there are none. A random id distinguishes two
/// processes.
pub(super) fn resource(program: &'static str) -> Resource {
    static INSTANCE: OnceLock<String> = OnceLock::new();
    let instance = INSTANCE.get_or_init(|| Ids.new_trace_id().to_string());
    let found = Resource::builder().build();
    let has = |key: &str| {
        found.iter().any(|(found, value)| found.as_str() == key && !value.as_str().starts_with("unknown_service"))
    };
    let resource = Resource::builder().with_attribute(KeyValue::new("service.version", VERSION));
    let resource = match has("service.instance.id") {
        true => resource,
        false => resource.with_attribute(KeyValue::new("service.instance.id", instance.clone())),
    };
    if has("service.name") { resource } else { resource.with_service_name(program) }.build()
}

/// The same attributes in the form that is exported.
pub(super) fn attributes(resource: &Resource) -> ResourceAttributesWithSchema {
    ResourceAttributesWithSchema::from(resource)
}
