//! Why telemetry is not exported. The texts are for the log, so they quote neither headers nor logins.

/// A variable that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OtlpError {
    /// None of the exporters is known.
    #[error("{variable} is {text:?}; want \"otlp\" or \"none\"")]
    Exporter {
        /// The variable.
        variable: String,
        /// Its value.
        text: String,
    },
    /// The endpoint in this variable has no scheme or no host.
    #[error("{0} is not a URL that begins with http:// or https://")]
    Endpoint(String),
    /// Collectors speak another protocol than the configured one at this port.
    #[error("{variable} is {text:?}, which is not supported; set http/protobuf{}", port(.text))]
    Protocol {
        /// The variable.
        variable: String,
        /// Its value.
        text: String,
    },
    /// The value of this variable is not a list of headers.
    #[error("{0} is not a list like key=value,key2=value2")]
    Headers(String),
    /// The timeout is not a number.
    #[error("{variable} is {text:?}; want a number of milliseconds")]
    Timeout {
        /// The variable.
        variable: String,
        /// Its value.
        text: String,
    },
    /// The file of certificate authorities cannot be read, or has none in it.
    #[error("OTEL_EXPORTER_OTLP_CERTIFICATE: {path}: {problem}")]
    Certificate {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// No client can be made, with the cause.
    #[error("no client for OTLP: {0}")]
    Client(String),
    /// The client does not accept the URL of the endpoint.
    #[error("the OTLP endpoint is not a URL")]
    Url,
}

/// What helps if another protocol is configured.
fn port(protocol: &str) -> &'static str {
    if protocol == "grpc" { "; collectors take it on port 4318, and grpc on 4317" } else { "" }
}

/// Why telemetry was not exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// The metrics could not be encoded.
    #[error("failed to encode them: {0}")]
    Encode(#[source] tokio::task::JoinError),
    /// There is no connection to the collector, or no answer in time.
    #[error("{place}: {cause}")]
    Unreachable {
        /// Its URL, without a login.
        place: String,
        /// The cause.
        cause: String,
    },
    /// The collector rejects the telemetry.
    #[error("{place} answers {status}")]
    Rejected {
        /// Its URL, without a login.
        place: String,
        /// The status of its answer.
        status: http::StatusCode,
    },
    /// The broker does not accept the telemetry, with its reason.
    #[error("{0}")]
    Broker(String),
}
