//! The way to the collector for a program that may make connections.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::uri::Uri;
use prometheus::Registry;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::root_cause;
use crate::telemetry::{OtlpSettings, OtlpTarget, Outlet, export_metrics};

/// The collectors that the environment names.
#[derive(Clone, Default)]
pub struct Collectors {
    /// That of spans.
    pub traces: Option<OtlpClient>,
    /// That of metrics.
    pub metrics: Option<OtlpClient>,
}

impl Collectors {
    /// Those of the environment. What cannot be used of it is logged, and nothing is exported.
    pub fn from_env() -> Self {
        let clients = |settings: OtlpSettings| {
            let client = |target: Option<OtlpTarget>| target.map(OtlpClient::new).transpose();
            Ok(Self { traces: client(settings.traces)?, metrics: client(settings.metrics)? })
        };
        OtlpSettings::from_env().and_then(clients).unwrap_or_else(|problem: String| {
            tracing::warn!(problem, "nothing is exported by OTLP");
            Self::default()
        })
    }

    /// Exports the metrics of a program for ever, if they are to be.
    ///
    /// # Errors
    /// When the registry has a metric of the same name as that which counts exports.
    pub fn export_metrics(&self, program: &'static str, registry: &Registry) -> prometheus::Result<()> {
        match self.metrics.clone() {
            Some(client) => export_metrics(program, registry.clone(), client),
            None => Ok(()),
        }
    }
}

/// Posts to one URL, and to no other.
#[derive(Clone)]
pub struct OtlpClient {
    client: reqwest::Client,
    target: OtlpTarget,
    /// Scheme, host and port, for the log: an URL may have a login.
    place: String,
}

impl OtlpClient {
    /// A client for this target. It follows no redirect.
    ///
    /// # Errors
    /// A sentence that says what about the target cannot be used.
    pub fn new(target: OtlpTarget) -> Result<Self, String> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .referer(false)
            .user_agent(concat!("portcullis/", env!("CARGO_PKG_VERSION")))
            .timeout(target.timeout);
        if let Some(path) = &target.certificate {
            let unusable = |problem: String| format!("OTEL_EXPORTER_OTLP_CERTIFICATE: {path}: {problem}");
            let found = CertificateDer::pem_file_iter(path).and_then(Iterator::collect::<Result<Vec<_>, _>>);
            let found = found.map_err(|error| unusable(error.to_string()))?;
            if found.is_empty() {
                return Err(unusable("there is no certificate in it".to_owned()));
            }
            let certificates = found.iter().map(|der| reqwest::Certificate::from_der(der));
            let certificates: Vec<_> =
                certificates.collect::<Result<_, _>>().map_err(|error| unusable(error.to_string()))?;
            builder = builder.tls_certs_only(certificates);
        } else if target.url.starts_with("http:") {
            // It is never asked over TLS, and where it runs there may be no certificate authority at all, which is an error otherwise.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build().map_err(|error| format!("no client for OTLP: {}", root_cause(&error)))?;
        let uri: Uri = target.url.parse().map_err(|_| "the endpoint of OTLP is no URL".to_owned())?;
        let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
        let place = format!("{}://{}{port}", uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default());
        Ok(Self { client, target, place })
    }
}

impl Outlet for OtlpClient {
    async fn send(&self, body: Bytes) -> Result<(), String> {
        let request = self
            .client
            .post(&self.target.url)
            .headers(self.target.headers.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"))
            .body(body);
        let response = request.send().await.map_err(|error| {
            let cause = if error.is_timeout() { "no answer in time".to_owned() } else { root_cause(&error) };
            format!("{}: {cause}", self.place)
        })?;
        // What else the collector says is not read.
        let status = response.status();
        if status.is_success() { Ok(()) } else { Err(format!("{} answers {status}", self.place)) }
    }
}
