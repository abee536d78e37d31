//! Turns an answer that is not a module into an error.

use std::time::Duration;

use http::header::RETRY_AFTER;
use http::{HeaderMap, StatusCode};
use jiff::Timestamp;
use portcullis_contract::Reason;

use crate::resolve::RefusedAddress;
use crate::{FetchError, tls};

/// Longest wait that a source can ask for. A longer one is shortened to this.
const LONGEST_RETRY_AFTER: Duration = Duration::from_secs(3600);

/// The error for something that took too long.
pub(crate) fn slow(host: &str, what: &str, after: Duration) -> FetchError {
    FetchError::new(Reason::RegistryTimeout, format!("{host}: {what} for {} s", after.as_secs_f64()))
}

/// The error for a transport error, by its kind.
pub(crate) fn failed(host: &str, error: reqwest::Error, in_body: bool, after_redirect: bool) -> FetchError {
    // The URL may hold a query, which is often secret.
    let error = error.without_url();
    if let Some(cause) = tls::find::<rustls::Error>(&error) {
        let text = match cause {
            // The bytes that came instead of TLS do not help the user.
            rustls::Error::InvalidMessage(_) => format!("{host}: {}", tls::explain(cause)),
            cause => format!("{host}: {}: {cause}", tls::explain(cause)),
        };
        return FetchError::new(Reason::TLSFailed, text);
    }
    if let Some(refused) = tls::find::<RefusedAddress>(&error) {
        let reason = if after_redirect { Reason::RedirectRefused } else { Reason::SourceNotAllowed };
        let text = format!("{host} leads to {refused}: the installation can allow it with --allow-private");
        // What a name server says may be wrong for a while.
        return FetchError { retry_after: Some(Duration::ZERO), ..FetchError::new(reason, text) };
    }
    let cause = portcullis_util::root_cause(&error);
    if error.is_timeout() {
        return FetchError::new(Reason::RegistryTimeout, format!("{host}: no connection in time"));
    }
    // The variant for this is private to the HTTP client, so only its text shows it.
    if cause.contains("proxy authorization required") {
        return FetchError::new(
            Reason::Unauthorized,
            format!("the proxy on the way to {host} refuses its credentials"),
        );
    }
    match in_body {
        false => FetchError::new(Reason::RegistryUnreachable, format!("failed to reach {host}: {cause}")),
        true => FetchError::new(Reason::BlobTruncated, format!("{host}: the body ended early: {cause}")),
    }
}

/// The error for an answer that is not a module.
pub(crate) fn refused(host: &str, status: StatusCode, headers: &HeaderMap) -> FetchError {
    let retry_after = headers.get(RETRY_AFTER).and_then(|value| retry_after(value.to_str().ok()?));
    let (reason, text) = match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::PROXY_AUTHENTICATION_REQUIRED => {
            (Reason::Unauthorized, "refuses to give the module")
        }
        StatusCode::NOT_FOUND | StatusCode::GONE => (Reason::NotFound, "has no such module"),
        StatusCode::TOO_MANY_REQUESTS => (Reason::RegistryThrottled, "asks to come back later"),
        StatusCode::REQUEST_TIMEOUT => (Reason::RegistryTimeout, "timed out waiting for the request"),
        _ if status.is_server_error() && retry_after.is_some() => {
            (Reason::RegistryThrottled, "asks to come back later")
        }
        _ if status.is_server_error() => (Reason::RegistryServerError, "has a fault of its own"),
        _ => (Reason::NotFound, "gives no module"),
    };
    let mut error = FetchError::new(reason, format!("{host} {text} (status {})", status.as_u16()));
    error.retry_after = retry_after;
    error
}

/// Reads a number of seconds, or an HTTP date.
fn retry_after(value: &str) -> Option<Duration> {
    let wait = match value.trim().parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let date = jiff::fmt::rfc2822::parse(value.trim()).ok()?.timestamp();
            Duration::try_from(date.duration_since(Timestamp::now())).unwrap_or_default()
        }
    };
    Some(wait.min(LONGEST_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_have_their_reasons() {
        let reason =
            |status: u16| refused("h", StatusCode::from_u16(status).expect("a status"), &HeaderMap::new()).reason;
        for (status, expected) in [
            (401, Reason::Unauthorized),
            (403, Reason::Unauthorized),
            (404, Reason::NotFound),
            (429, Reason::RegistryThrottled),
            (500, Reason::RegistryServerError),
            (502, Reason::RegistryServerError),
            (503, Reason::RegistryServerError),
            (504, Reason::RegistryServerError),
        ] {
            assert_eq!(reason(status), expected, "{status}");
        }
    }

    #[test]
    fn l05_retry_after_is_seconds_or_a_date() {
        assert_eq!(retry_after("7"), Some(Duration::from_secs(7)));
        assert_eq!(retry_after("999999999"), Some(LONGEST_RETRY_AFTER));
        assert_eq!(retry_after("Wed, 21 Oct 2015 07:28:00 GMT"), Some(Duration::ZERO));
        assert_eq!(retry_after("soon"), None);
    }
}
