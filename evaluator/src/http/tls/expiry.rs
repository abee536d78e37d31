//! When the serving certificate expires, as `/healthz/certificate` of the probe port reports it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use axum::Router;
use axum::extract::State;
use axum::response::IntoResponse;
use axum::routing::get;
use http::StatusCode;
use jiff::Timestamp;

/// Stands for no certificate.
const NONE: i64 = i64::MIN;

/// When the certificate in use expires. Clones share it.
#[derive(Debug, Clone)]
pub(crate) struct Expiry(Arc<AtomicI64>);

impl Default for Expiry {
    fn default() -> Self {
        Self(Arc::new(AtomicI64::new(NONE)))
    }
}

impl Expiry {
    /// Notes that another certificate is in use, which expires at this second since 1970.
    pub(crate) fn set(&self, not_after: i64) {
        self.0.store(not_after, Ordering::Relaxed);
    }

    fn end(&self) -> Option<Timestamp> {
        match self.0.load(Ordering::Relaxed) {
            NONE => None,
            end => Some(Timestamp::from_second(end).unwrap_or(Timestamp::MAX)),
        }
    }
}

/// `/healthz/certificate`.
pub(crate) fn routes(expiry: Expiry) -> Router {
    Router::new().route("/healthz/certificate", get(certificate)).with_state(expiry)
}

async fn certificate(State(expiry): State<Expiry>) -> impl IntoResponse {
    report(expiry.end(), Timestamp::now())
}

/// The report, in the form of the API server's own health checks. A replica with an expired certificate stays ready: connected API servers
/// go on using it, and without it no replica would answer at all.
fn report(end: Option<Timestamp>, now: Timestamp) -> (StatusCode, String) {
    match end {
        None => (StatusCode::SERVICE_UNAVAILABLE, "[-]certificate failed: there is none yet\n".to_owned()),
        Some(end) if end <= now => {
            let text = format!("[-]certificate failed: it ended at {end}; API servers refuse it until it is renewed\n");
            (StatusCode::INTERNAL_SERVER_ERROR, text)
        }
        Some(end) => (StatusCode::OK, format!("[+]certificate ok: it ends at {end}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ended_certificate_is_named_with_its_end() {
        let now: Timestamp = "2026-11-21T12:00:00Z".parse().expect("a time");
        let expiry = Expiry::default();
        assert_eq!(report(expiry.end(), now).0, 503);
        expiry.set(now.as_second() + 1);
        let (code, text) = report(expiry.end(), now);
        assert_eq!((code.as_u16(), &*text), (200, "[+]certificate ok: it ends at 2026-11-21T12:00:01Z\n"));
        expiry.set(now.as_second());
        let (code, text) = report(expiry.end(), now);
        assert!(code == 500 && text.contains("it ended at 2026-11-21T12:00:00Z"), "{text}");
    }
}
