//! The settings of OTLP in the environment. Pure, except for reading it.

use std::time::Duration;

use http::header::{HeaderMap, HeaderName, HeaderValue};
use http::uri::Uri;
use portcullis_contract::Signal;

use super::error::OtlpError;

/// The time limit of one export, unless `OTEL_EXPORTER_OTLP_TIMEOUT` sets another.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The longest time limit that can be set.
const LONGEST_TIMEOUT: Duration = Duration::from_secs(60);

/// Values of the exporter variables that need nothing here: `/metrics` is there for Prometheus in any case.
const NO_EXPORTER: [&str; 2] = ["none", "prometheus"];

/// The ends of the names of variables that are in the specification but not supported here.
const UNSUPPORTED: [&str; 3] = ["CLIENT_CERTIFICATE", "CLIENT_KEY", "COMPRESSION"];

/// Samplers of the SDK. The last one, with `always_on`, is used if another is set.
const SAMPLERS: [&str; 6] = [
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_off",
    "parentbased_traceidratio",
    "parentbased_always_on",
];

/// Where OTLP goes. The settings of one signal do not affect the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OtlpSettings {
    /// The collector of spans; `None` if they are not exported. The error is about the first variable that cannot be
    /// used.
    pub traces: Result<Option<OtlpTarget>, OtlpError>,
    /// The collector of metrics, in the same form.
    pub metrics: Result<Option<OtlpTarget>, OtlpError>,
    /// The names of variables that are set and have no effect here.
    pub ignored: Vec<String>,
}

/// A collector's URL for one signal.
#[derive(Clone, PartialEq, Eq)]
pub struct OtlpTarget {
    /// `http` or `https`, with the path. It may have a login.
    pub url: String,
    /// Headers to send, for instance with a token. Their values are secret.
    pub headers: HeaderMap,
    /// Longest time for one export.
    pub timeout: Duration,
    /// A PEM file with the authorities of the collector's certificate; `None` for those of the system.
    pub certificate: Option<String>,
}

impl OtlpTarget {
    /// Scheme, host and port, for the log.
    pub fn place(&self) -> String {
        let uri = self.url.parse::<Uri>().unwrap_or_default();
        let port = uri.port().map(|port| format!(":{port}")).unwrap_or_default();
        format!("{}://{}{port}", uri.scheme_str().unwrap_or_default(), uri.host().unwrap_or_default())
    }
}

impl std::fmt::Debug for OtlpTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OtlpTarget").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl OtlpSettings {
    /// Reads the environment.
    pub fn from_env() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    /// Reads the settings from any variables.
    pub fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &str| filled(variable(name));
        if is_disabled(&set) {
            return Self { traces: Ok(None), metrics: Ok(None), ignored: Vec::new() };
        }
        let (traces, metrics) = (target(&set, Signal::Traces), target(&set, Signal::Metrics));
        let mut ignored = Vec::new();
        for (signal, target) in [(Signal::Traces, &traces), (Signal::Metrics, &metrics)] {
            if matches!(target, Ok(Some(_))) {
                let found = UNSUPPORTED.iter().filter_map(|what| either(&set, signal, what));
                // Without compression, "none" is already in effect.
                ignored.extend(found.filter(|(_, text)| text != "none").map(|(name, _)| name));
            }
        }
        ignored.sort();
        ignored.dedup();
        Self { traces, metrics, ignored }
    }
}

/// Whether the environment switches off the export of this signal, whatever else is set.
pub fn is_off(signal: Signal) -> bool {
    let set = |name: &str| filled(std::env::var(name).ok());
    is_disabled(&set) || exporter(&set, signal) == Ok(false)
}

/// What is wrong with the variables of the sampler; `None` if they are valid.
pub(super) fn sampler_problem(variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let set = |name: &str| filled(variable(name));
    let sampler = set("OTEL_TRACES_SAMPLER")?;
    if !SAMPLERS.contains(&sampler.as_str()) {
        let known = SAMPLERS.join(", ");
        return Some(format!("OTEL_TRACES_SAMPLER is {sampler:?}, want one of {known}; the last of these is used"));
    }
    let share = set("OTEL_TRACES_SAMPLER_ARG").unwrap_or_default();
    let is_share = share.parse::<f64>().is_ok_and(|share| (0.0..=1.0).contains(&share));
    (sampler.ends_with("traceidratio") && !is_share)
        .then(|| format!("OTEL_TRACES_SAMPLER_ARG is {share:?}, want a number from 0 to 1 like 0.01"))
}

/// An empty variable counts as absent, as the specification demands.
fn filled(text: Option<String>) -> Option<String> {
    text.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// The part of a variable's name that stands for a signal.
fn name(signal: Signal) -> &'static str {
    match signal {
        Signal::Traces => "TRACES",
        Signal::Metrics => "METRICS",
    }
}

fn is_disabled(set: &impl Fn(&str) -> Option<String>) -> bool {
    set("OTEL_SDK_DISABLED").is_some_and(|text| text.eq_ignore_ascii_case("true"))
}

/// Whether OTLP is among the exporters of a signal, as it is by default.
fn exporter(set: &impl Fn(&str) -> Option<String>, signal: Signal) -> Result<bool, OtlpError> {
    let variable = format!("OTEL_{}_EXPORTER", name(signal));
    let Some(text) = set(&variable) else { return Ok(true) };
    let exporters: Vec<_> = text.split(',').map(str::trim).collect();
    if exporters.contains(&"otlp") {
        return Ok(true);
    }
    match exporters.iter().all(|exporter| NO_EXPORTER.contains(exporter)) {
        true => Ok(false),
        false => Err(OtlpError::Exporter { variable, text }),
    }
}

/// The name and value of the variable that is set: the signal's own variable takes precedence over the common one.
fn either(set: &impl Fn(&str) -> Option<String>, signal: Signal, what: &str) -> Option<(String, String)> {
    let own = format!("OTEL_EXPORTER_OTLP_{}_{what}", name(signal));
    let common = format!("OTEL_EXPORTER_OTLP_{what}");
    [own, common].into_iter().find_map(|name| set(&name).map(|text| (name, text)))
}

fn target(set: &impl Fn(&str) -> Option<String>, signal: Signal) -> Result<Option<OtlpTarget>, OtlpError> {
    let either = |what: &str| either(set, signal, what);
    if !exporter(set, signal)? {
        return Ok(None);
    }
    let Some((name, endpoint)) = either("ENDPOINT") else { return Ok(None) };
    let path = if signal == Signal::Traces { "/v1/traces" } else { "/v1/metrics" };
    let is_common = name == "OTEL_EXPORTER_OTLP_ENDPOINT";
    let url = if is_common { format!("{}{path}", endpoint.trim_end_matches('/')) } else { endpoint };
    let is_url = url.parse::<Uri>().is_ok_and(|uri| {
        matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty())
    });
    if !is_url {
        return Err(OtlpError::Endpoint(name));
    }
    if let Some((variable, text)) = either("PROTOCOL").filter(|(_, protocol)| protocol != "http/protobuf") {
        return Err(OtlpError::Protocol { variable, text });
    }
    let mut headers = HeaderMap::new();
    if let Some((name, text)) = either("HEADERS") {
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let (key, value) = header(pair).ok_or_else(|| OtlpError::Headers(name.clone()))?;
            headers.append(key, value);
        }
    }
    let timeout = match either("TIMEOUT") {
        Some((variable, text)) => {
            let Ok(milliseconds) = text.parse::<u64>() else { return Err(OtlpError::Timeout { variable, text }) };
            // By the specification, 0 means no limit.
            if milliseconds == 0 { LONGEST_TIMEOUT } else { Duration::from_millis(milliseconds).min(LONGEST_TIMEOUT) }
        }
        None => TIMEOUT,
    };
    Ok(Some(OtlpTarget { url, headers, timeout, certificate: either("CERTIFICATE").map(|(_, path)| path) }))
}

/// A header of the list. In its value, characters that are not allowed in a list are percent-encoded.
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

    fn all(variables: &[(&str, &str)]) -> OtlpSettings {
        OtlpSettings::of(|name| value(variables, name))
    }

    fn value(variables: &[(&str, &str)], name: &str) -> Option<String> {
        variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
    }

    fn of(variables: &[(&str, &str)]) -> Result<Option<OtlpTarget>, OtlpError> {
        all(variables).traces
    }

    const COMMON: (&str, &str) = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318/");

    #[test]
    fn nothing_is_exported_without_an_endpoint_or_where_it_is_switched_off() {
        assert_eq!(of(&[]), Ok(None));
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]), Ok(None));
        assert_eq!(of(&[COMMON, ("OTEL_SDK_DISABLED", "True")]), Ok(None));
        assert_eq!(of(&[COMMON, ("OTEL_TRACES_EXPORTER", "none")]), Ok(None));
        // Without an endpoint, a protocol that is not supported does not matter.
        assert_eq!(of(&[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]), Ok(None));
    }

    #[test]
    fn the_path_is_that_of_the_signal_unless_its_own_endpoint_is_set() {
        let url = |variables: &[_]| of(variables).expect("usable").expect("exported").url;
        assert_eq!(url(&[COMMON]), "http://collector:4318/v1/traces");
        let own = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://traces.example:443/in?x=1");
        assert_eq!(url(&[COMMON, own]), "https://traces.example:443/in?x=1");
        let metrics = all(&[COMMON]).metrics.expect("usable").expect("exported");
        assert_eq!(metrics.url, "http://collector:4318/v1/metrics");
    }

    #[test]
    fn one_signal_goes_on_without_the_other() {
        let settings = all(&[COMMON, ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc")]);
        assert!(settings.traces.is_err() && settings.metrics.is_ok_and(|target| target.is_some()));
        let settings = all(&[COMMON, ("OTEL_METRICS_EXPORTER", "console"), ("OTEL_TRACES_EXPORTER", "console, otlp")]);
        assert!(settings.metrics.is_err() && settings.traces.is_ok_and(|target| target.is_some()));
        assert_eq!(all(&[COMMON, ("OTEL_METRICS_EXPORTER", "none,prometheus")]).metrics, Ok(None));
    }

    #[test]
    fn what_has_no_effect_is_named() {
        let compression = ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip");
        let key = ("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY", "/key.pem");
        assert_eq!(all(&[COMMON, compression, key]).ignored, [compression.0, key.0]);
        assert!(all(&[COMMON, (compression.0, "none")]).ignored.is_empty());
        assert!(all(&[compression, key]).ignored.is_empty());
    }

    #[test]
    fn samplers_that_are_not_known_are_named() {
        let problem = |variables: &[_]| sampler_problem(|name| value(variables, name)).unwrap_or_default();
        let (sampler, share) = ("OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG");
        assert_eq!(problem(&[]), "");
        assert_eq!(problem(&[(sampler, "always_off")]), "");
        assert_eq!(problem(&[(sampler, "parentbased_traceidratio"), (share, "0.01")]), "");
        assert!(problem(&[(sampler, "jaeger_remote")]).starts_with("OTEL_TRACES_SAMPLER is \"jaeger_remote\""));
        for bad in ["", "1%", "2", "-1"] {
            let said = problem(&[(sampler, "traceidratio"), (share, bad)]);
            assert!(said.starts_with("OTEL_TRACES_SAMPLER_ARG is "), "{bad}: {said}");
        }
    }

    #[test]
    fn a_login_of_the_endpoint_is_not_shown() {
        let target = of(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "https://me:secret@collector:4318/secret")]);
        let target = target.expect("usable").expect("exported");
        assert_eq!(target.place(), "https://collector:4318");
        assert!(!format!("{target:?}").contains("secret"), "{target:?}");
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
        let timeout = |text| of(&[COMMON, ("OTEL_EXPORTER_OTLP_TIMEOUT", text)]);
        for (text, seconds) in [("0", 60), ("2000", 2), ("90000", 60)] {
            let target = timeout(text).expect("usable").expect("exported");
            assert_eq!(target.timeout, Duration::from_secs(seconds));
        }
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
            (
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "collector:4318"),
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not a URL",
            ),
            (
                ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "file:///etc/passwd"),
                "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT is not a URL",
            ),
            (("OTEL_EXPORTER_OTLP_HEADERS", "secret"), "OTEL_EXPORTER_OTLP_HEADERS is not a list"),
            (("OTEL_EXPORTER_OTLP_HEADERS", "a=b%0a"), "OTEL_EXPORTER_OTLP_HEADERS is not a list"),
            (("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"), "OTEL_EXPORTER_OTLP_TIMEOUT is \"10s\""),
            (("OTEL_TRACES_EXPORTER", "zipkin"), "OTEL_TRACES_EXPORTER is \"zipkin\""),
        ] {
            let error = of(&[COMMON, variable]).expect_err("refused").to_string();
            assert!(error.starts_with(text) && !error.contains("secret"), "{error}");
        }
    }
}
