//! `net/v1/dns_lookup_host`.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use hickory_resolver::net::NetError;
use portcullis_registry::CurrentResolver;
use serde_json::json;

use crate::ProvideError;

/// The longest name, in bytes (RFC 1035, section 2.3.4).
const LONGEST: usize = 253;
/// The most addresses in a reply.
const MOST: usize = 256;
/// How long an answer of a name server counts, whatever its own lifetime: policies decide by what is true now. A second bounds how often a
/// name is asked for.
const FRESH: Duration = Duration::from_secs(1);

/// Looks up names.
pub(crate) struct Names {
    resolver: CurrentResolver,
}

impl Names {
    /// A resolver that asks `name_server`, or the system's name servers if it is `None`.
    pub(crate) fn new(name_server: Option<SocketAddr>) -> Self {
        let resolver = CurrentResolver::new(name_server, |options| {
            options.positive_max_ttl = Some(FRESH);
            options.negative_max_ttl = Some(FRESH);
        });
        Self { resolver }
    }

    /// The addresses of the host that the payload names.
    ///
    /// # Errors
    /// When it is not a valid name, or has no address now.
    pub(crate) async fn look_up(&self, payload: &[u8]) -> Result<Bytes, ProvideError> {
        let host: String = serde_json::from_slice(payload).map_err(ProvideError::failed)?;
        if host.is_empty() || host.len() > LONGEST {
            return Err(ProvideError::failed(format!("want the name of a host, of 1 to {LONGEST} bytes")));
        }
        let failed = |error: NetError| failure(&host, &error);
        let resolver = self.resolver.get().map_err(failed)?;
        let found = resolver.lookup_ip(host.as_str()).await.map_err(failed)?;
        let mut ips: Vec<String> = found.iter().take(MOST).map(|ip| ip.to_string()).collect();
        ips.sort();
        Ok(Bytes::from(json!({ "ips": ips }).to_string()))
    }
}

/// Why there is no address. If the name does not exist, it has no records of any kind, so that is an answer. If it only has no records of one
/// kind, it is not: each kind of address is asked for by itself, and the question about the other kind may have failed.
fn failure(host: &str, error: &NetError) -> ProvideError {
    let text = format!("failed to look up {host}: {error}");
    if error.is_nx_domain() { ProvideError::negative(text) } else { ProvideError::failed(text) }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Instant;

    use hickory_resolver::net::{DnsError, NoRecords};
    use hickory_resolver::proto::op::{Query, ResponseCode};
    use portcullis_util::lock;
    use tokio::net::UdpSocket;
    use tokio::time::sleep;

    use super::*;

    /// The address that a name has now; none while it does not exist.
    type Now = Arc<Mutex<Option<[u8; 4]>>>;

    /// Starts a name server whose answers may be cached for an hour. It ends with the runtime of the test.
    async fn name_server(now: Now) -> SocketAddr {
        let socket = UdpSocket::bind("127.0.0.1:0").await.expect("binds");
        let address = socket.local_addr().expect("an address");
        tokio::spawn(async move {
            let mut question = [0; 512];
            loop {
                let (length, from) = socket.recv_from(&mut question).await.expect("a question");
                let ip = *lock(&now);
                socket.send_to(&reply(&question[..length], ip), from).await.expect("sends");
            }
        });
        address
    }

    /// The address for a question of type A, no records for other types, and that the name does not exist without an address.
    fn reply(question: &[u8], ip: Option<[u8; 4]>) -> Vec<u8> {
        const HOUR: [u8; 4] = 3600_u32.to_be_bytes();
        // The question: a header, then the name, its type and its class.
        let end = 12 + question[12..].iter().position(|byte| *byte == 0).expect("a name ends") + 5;
        let is_a = question[end - 4..end - 2] == [0, 1];
        let has_answer = is_a && ip.is_some();
        let code = if ip.is_some() { 0 } else { 3 };
        // The id, that this is an authoritative answer, its code, and the numbers of questions, answers, authorities and others.
        let mut reply = question[..2].to_vec();
        reply.extend([0x85, 0x80 | code, 0, 1, 0, u8::from(has_answer), 0, u8::from(!has_answer), 0, 0]);
        reply.extend(&question[12..end]);
        if let Some(ip) = ip.filter(|_| is_a) {
            // The name of the question, type A, class IN, lifetime, length and address.
            reply.extend([&[0xc0, 12, 0, 1, 0, 1][..], &HOUR, &[0, 4], &ip].concat());
        } else {
            // The SOA record of the root zone: two names that are the root, a serial number, three times, and the lifetime of this answer.
            let data = [&[0, 0][..], &[0, 0, 0, 1], &HOUR, &HOUR, &HOUR, &HOUR].concat();
            reply.extend([&[0, 0, 6, 0, 1][..], &HOUR, &[0, 22], &data].concat());
        }
        reply
    }

    #[tokio::test]
    async fn a_name_is_asked_for_again_after_a_second_whatever_the_name_server_says() {
        let now = Now::default();
        let names = Names::new(Some(name_server(Arc::clone(&now)).await));
        let look_up = async || names.look_up(b"\"web.example.\"").await;
        let error = look_up().await.expect_err("it does not exist");
        assert!(matches!(&error, ProvideError::Negative(text) if text.starts_with("failed to look up")), "{error}");
        for ip in [[192, 0, 2, 7], [192, 0, 2, 8]] {
            *lock(&now) = Some(ip);
            let [a, b, c, d] = ip;
            let wanted = format!(r#"{{"ips":["{a}.{b}.{c}.{d}"]}}"#);
            let limit = Instant::now() + Duration::from_secs(30);
            while look_up().await.ok().is_none_or(|found| found != wanted) {
                assert!(Instant::now() < limit, "{wanted}");
                sleep(Duration::from_millis(50)).await;
            }
        }
    }

    #[test]
    fn only_that_a_name_does_not_exist_is_an_answer() {
        let no_records = |code| NetError::from(NoRecords::new(Query::default(), code));
        for (error, is_answer) in [
            (no_records(ResponseCode::NXDomain), true),
            (no_records(ResponseCode::NoError), false),
            (NetError::Dns(DnsError::ResponseCode(ResponseCode::ServFail)), false),
            (NetError::Timeout, false),
            (NetError::NoConnections, false),
        ] {
            let told = failure("web.example", &error);
            assert_eq!(matches!(told, ProvideError::Negative(_)), is_answer, "{error}");
            assert!(
                told.to_string().starts_with("Callback evaluation failure: failed to look up web.example: "),
                "{told}"
            );
        }
    }

    #[tokio::test]
    async fn what_is_no_name_is_an_error() {
        let names = Names::new(Some(([127, 0, 0, 1], 9).into()));
        for payload in ["", "{}", "\"\"", &format!("\"{}\"", "a".repeat(LONGEST + 1))] {
            assert!(names.look_up(payload.as_bytes()).await.is_err(), "{payload}");
        }
    }

    #[tokio::test]
    async fn an_address_is_its_own() {
        let names = Names::new(Some(([127, 0, 0, 1], 9).into()));
        assert_eq!(names.look_up(b"\"192.0.2.7\"").await.expect("an address"), r#"{"ips":["192.0.2.7"]}"#);
    }
}
