//! What the environment says about OTLP. Pure, but for reading it.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Uri;
use portcullis_contract::Signal;

/// The time for one export, if `OTEL_EXPORTER_OTLP_TIMEOUT` says none.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time that may be said.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Exporters that are not OTLP and need nothing here: `/metrics` is there for Prometheus in any case.
const NO_EXPORTER: [&str; 2] = ["none", "prometheus"];

/// Where OTLP goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OtlpSettings {
    /// Where spans go; none where they are not exported.
    pub traces: Option<OtlpTarget>,
    /// Where metrics go; none where they are not exported.
    pub metrics: Option<OtlpTarget>,
}

/// A collector's URL for one signal.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpTarget {
    /// `http` or `https`, with the path.
    pub url: String,
    /// What is sent along, for instance a token. Its values are secret.
    pub headers: HeaderMap,
    /// Longest time of one export.
    pub timeout: Duration,
    /// A PEM file with the authorities of the collector's certificate; none for those of the system.
    pub certificate: Option<String>,
}

impl std::fmt::Debug for OtlpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpTarget").field("url", &self.url).finish_non_exhaustive()
    }
}

impl OtlpSettings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A sentence about the first variable that cannot be used.
    pub fn from_env() -> Result<Self, String> {
        Self::of(|name| std::env::var(name).ok())
    }

    /// The same of any variables.
    ///
    /// # Errors
    /// A sentence about the first variable that cannot be used.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        // An empty variable counts as none, as the specification wants it.
        let set = |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        if is_disabled(&set) {
            return Ok(Self::default());
        }
        let (traces, metrics) = (target(&set, Signal::Traces)?, target(&set, Signal::Metrics)?);
        Ok(Self { traces, metrics })
    }
}

/// Whether the environment switches the export of this signal off, whatever else is set.
pub fn is_off(signal: Signal) -> bool {
    let set = |name: &str| std::env::var(name).ok();
    let exporter = format!("OTEL_{}_EXPORTER", name(signal));
    is_disabled(&set) || set(&exporter).is_some_and(|exporter| NO_EXPORTER.contains(&exporter.as_str()))
}

/// What a signal is called in names of variables.
fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "TRACES",
        Signal::Metrics => "METRICS",
    }
}

fn is_disabled(set: &impl Fn(&str) -> Option<String>) -> bool {
    set("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

fn target(set: &impl Fn(&str) -> Option<String>, signal: Signal) -> Result<Option<OtlpTarget>, String> {
    let (path, signal) = (if signal == Signal::Traces { "/v1/traces" } else { "/v1/metrics" }, name(signal));
    if let Some(exporter) = set(&format!("OTEL_{signal}_EXPORTER")).filter(|exporter| exporter != "otlp") {
        let problem = format!("OTEL_{signal}_EXPORTER is {exporter:?}; want \"otlp\" or \"none\"");
        return if NO_EXPORTER.contains(&exporter.as_str()) { Ok(None) } else { Err(problem) };
    }
    // The name of the variable that is set, and its value: that of the signal goes before the common one.
    let either = |what: &str| {
        let own = format!("OTEL_EXPORTER_OTLP_{signal}_{what}");
        let common = format!("OTEL_EXPORTER_OTLP_{what}");
        [own, common].into_iter().find_map(|name| set(&name).map(|text| (name, text)))
    };
    let Some((name, endpoint)) = either("ENDPOINT") else { return Ok(None) };
    let is_common = name == "OTEL_EXPORTER_OTLP_ENDPOINT";
    let url = if is_common { format!("{}{path}", endpoint.trim_end_matches('/')) } else { endpoint };
    let is_url = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if !is_url {
        return Err(format!("{name} is no URL that begins with http:// or https://"));
    }
    if let Some((name, protocol)) = either("PROTOCOL").filter(|(_, protocol)| protocol != "http/protobuf") {
        let port = if protocol == "grpc" { "; collectors take it on port 4318, and grpc on 4317" } else { "" };
        return Err(format!("{name} is {protocol:?}, which is not supported; set http/protobuf{port}"));
    }
    let mut headers = HeaderMap::new();
    if let Some((name, text)) = either("HEADERS") {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = header(pair).ok_or_else(|| format!("{name} is no list like key=value,key2=value2"))?;
            headers.append(key, value);
        }
    }
    let timeout = match either("TIMEOUT") {
        Some((name, text)) => {
            let milliseconds =
                text.parse().map_err(|_| format!("{name} is {text:?}; want a number of milliseconds"))?;
            Duration::from_millis(milliseconds).clamp(Duration::from_millis(1), LONGEST_TIMEOUT)
        }
        None => TIMEOUT,
    };
    Ok(Some(OtlpTarget { url, headers, timeout, certificate: either("CERTIFICATE").map(|(_, path)| path) }))
}

/// A header of the list; its value has percent signs in place of what may not stand in a list.
fn header(pair: &str) -> Option<(HeaderName, HeaderValue)> {
    let (key, value) = pair.split_once('=')?;
    let mut bytes = value.trim().bytes();
    let mut decoded = Vec::with_capacity(value.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        decoded.push(if byte == b'%' { digit(bytes.next()?)? << 4 | digit(bytes.next()?)? } else { byte });
    }
    let mut value = HeaderValue::from_bytes(&decoded).ok()?;
    value.set_sensitive(true);
    Some((key.trim().parse().ok()?, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &[(&str, &str)]) -> Result<Option<OtlpTarget>, String> {
        let value = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned());
        OtlpSettings::of(value).map(|settings| settings.traces)
    }

    const COMMON: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

    #[test]
    fn nothing_is_exported_without_an_endpoint_or_where_it_is_switched_off() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        assert_eq!(of(&[COMMON, ("OTEL_SDK_DISABLED", "True")]), Ok(None));
        assert_eq!(of(&[COMMON, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        // Without an endpoint, the protocol that something else was given is no matter.
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]), Ok(None));
    }

    #[test]
    fn the_path_is_that_of_the_signal_unless_its_own_endpoint_is_set() {
        let url = |variables: &[_]| of(variables).expect("usable").expect("exported").url;
        assert_eq!(url(&[COMMON]), "http://collector:4318/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example:443/in?x=1");
        assert_eq!(url(&[COMMON, own]), "https://traces.example:443/in?x=1");
        let metrics = |name: &str| (name == COMMON.0).then(|| COMMON.1.to_owned());
        let metrics = OtlpSettings::of(metrics).expect("usable").metrics.expect("exported");
        assert_eq!(metrics.url, "http://collector:4318/v1/metrics");
    }

    #[test]
    fn headers_timeout_and_certificate() {
        let target = of(&[
            COMMON,
            ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20abc%3D, x-tenant = a ,"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_CERTIFICATE", "/ca.pem"),
        ]);
        let target = target.expect("usable").expect("exported");
        assert_eq!(target.headers["authorization"], "Bearer abc=");
        assert_eq!(target.headers["x-tenant"], "a");
        assert_eq!((target.timeout, target.certificate.as_deref()), (Duration::from_millis(2500), Some("/ca.pem")));
        assert!(!format!("{target:?} {:?}", target.headers).contains("abc"), "{target:?}");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "a=b");
        let target = of(&[COMMON, ("OTEL_EXPORTER_OTLP_HEADERS", "c=d"), own]).expect("usable").expect("exported");
        assert_eq!(target.headers.len(), 1);
    }

    #[test]
    fn what_cannot_be_used_is_named_with_what_works() {
        for (variable, text) in [
            (
                ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
                "OTEL_EXPORTER_OTLP_PROTOCOL is \"grpc\", which is not supported; set http/protobuf; collectors take it on port 4318",
            ),
            (
                ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
                "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL is \"http/json\", which is not supported; set http/protobuf",
            ),
            (("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is no URL"),
            (
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "file:///etc/passwd"),
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is no URL",
            ),
            (("OTEL_EXPORTER_OTLP_HEADERS", "secret"), "OTEL_EXPORTER_OTLP_HEADERS is no list"),
            (("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0a"), "OTEL_EXPORTER_OTLP_HEADERS is no list"),
            (("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"), "OTEL_EXPORTER_OTLP_TIMEOUT is \"10s\""),
            (("OTEL_TRACES_EXPORTER", "zipkin"), "OTEL_TRACES_EXPORTER is \"zipkin\""),
        ] {
            let error = of(&[COMMON, variable]).expect_err("refused");
            assert!(error.starts_with(text) && !error.contains("secret"), "{error}");
        }
    }
}
