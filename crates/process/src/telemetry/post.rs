//! Posts to the collector, for a program that may make connections.

use bytes::Bytes;
use http::header::{CONTENT_TYPE, HeaderValue};
use http::uri::Uri;
use portcullis_util::root_cause;
use prometheus::Registry;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::telemetry::{ExportError, OtlpError, OtlpSettings, OtlpTarget, Outlet, export_metrics};

/// The collectors that the environment names.
#[derive(Clone, Default)]
pub struct Collectors {
    /// The collector of spans; `None` if they are not exported.
    pub traces: Option<OtlpClient>,
    /// The collector of metrics; `None` if they are not exported.
    pub metrics: Option<OtlpClient>,
}

impl Collectors {
    /// The collectors of the environment. A setting that cannot be used is logged, and its signal is not exported.
    pub fn from_env() -> Self {
        let settings = OtlpSettings::from_env();
        for variable in &settings.ignored {
            tracing::warn!(variable, "this variable is not supported and has no effect");
        }
        Self { traces: client("spans", settings.traces), metrics: client("metrics", settings.metrics) }
    }

    /// Exports the metrics of a program again and again, if metrics are exported at all.
    ///
    /// # Errors
    /// When the registry already has a metric with the name of the counter of exports.
    pub fn export_metrics(&self, program: &'static str, registry: &Registry) -> prometheus::Result<()> {
        match self.metrics.clone() {
            Some(client) => export_metrics(program, registry.clone(), client),
            None => Ok(()),
        }
    }
}

fn client(what: &str, target: Result<Option<OtlpTarget>, OtlpError>) -> Option<OtlpClient> {
    let client = target.and_then(|target| target.map(OtlpClient::new).transpose());
    client.unwrap_or_else(|problem| {
        let problem = problem.to_string();
        tracing::warn!(problem, "{what} are not exported by OTLP");
        None
    })
}

/// Posts to one URL only.
#[derive(Clone)]
pub struct OtlpClient {
    client: reqwest::Client,
    target: OtlpTarget,
    /// Scheme, host and port, for the log: the URL may have a login.
    place: String,
}

impl OtlpClient {
    /// A client for this target. It follows no redirect and uses no proxy.
    ///
    /// # Errors
    /// When the target cannot be used.
    pub fn new(target: OtlpTarget) -> Result<Self, OtlpError> {
        let mut builder = reqwest::Client::builder()
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .referer(false)
            .user_agent(concat!("portcullis/", env!("CARGO_PKG_VERSION")))
            .timeout(target.timeout);
        if let Some(path) = &target.certificate {
            let unusable = |problem| OtlpError::Certificate { path: path.clone(), problem };
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
            // It never uses TLS, and a container may have no certificate authorities at all, which would otherwise be an error.
            builder = builder.tls_certs_only([]);
        }
        let client = builder.build();
        let client = client.map_err(|error| OtlpError::Client(root_cause(&error.without_url())))?;
        if target.url.parse::<Uri>().is_err() {
            return Err(OtlpError::Url);
        }
        let place = target.place();
        Ok(Self { client, target, place })
    }
}

impl Outlet for OtlpClient {
    async fn send(&self, body: Bytes) -> Result<(), ExportError> {
        let request = self
            .client
            .post(&self.target.url)
            .headers(self.target.headers.clone())
            .header(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"))
            .body(body);
        let response = request.send().await.map_err(|error| {
            let error = error.without_url();
            let cause = if error.is_timeout() { "no answer in time".to_owned() } else { root_cause(&error) };
            ExportError::Unreachable { place: self.place.clone(), cause }
        })?;
        // The rest of the collector's answer is not read.
        let status = response.status();
        let rejected = || ExportError::Rejected { place: self.place.clone(), status };
        status.is_success().then_some(()).ok_or_else(rejected)
    }
}
