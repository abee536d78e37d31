//! A server that answers AdmissionReviews, as the webhook of a test.

use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::CertifiedKey;
use rustls::pki_types::PrivateKeyDer;
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use serde_json::{Value, json};

/// The most bytes of a review; API servers send at most two objects of 3 MiB.
const MOST: usize = 8 << 20;

/// A server with a certificate of its own. It answers one call after the other, until the test ends.
#[derive(Debug)]
pub struct ReviewServer {
    address: SocketAddr,
    certificate: String,
}

impl ReviewServer {
    /// Listens at `address`; API servers call it by `name`, a DNS name or an IP address. `answer` gets the path of a call and its review, and
    /// says whether the request is allowed, or why it is not.
    ///
    /// # Panics
    /// When it cannot listen, or the name cannot be that of a certificate.
    pub fn start(
        address: SocketAddr,
        name: &str,
        answer: impl Fn(&str, &Value) -> Result<(), String> + Send + 'static,
    ) -> Self {
        let CertifiedKey { cert, signing_key } =
            rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("the name is that of a certificate");
        let key = PrivateKeyDer::try_from(signing_key.serialize_der()).expect("rcgen wrote a key");
        let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("the provider has them")
            .with_no_client_auth()
            .with_single_cert(vec![cert.der().clone()], key)
            .expect("they belong together");
        let listener = TcpListener::bind(address).expect("the address is free");
        let address = listener.local_addr().expect("it listens");
        let config = Arc::new(config);
        thread::spawn(move || {
            for socket in listener.incoming().map_while(Result::ok) {
                let Ok(connection) = ServerConnection::new(Arc::clone(&config)) else { continue };
                // A caller that goes away in the middle of a call has no answer.
                let _ = serve(BufReader::new(StreamOwned::new(connection, socket)), &answer);
            }
        });
        Self { address, certificate: cert.pem() }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its certificate, as the field `caBundle` of a webhook has it.
    pub fn ca_bundle(&self) -> String {
        STANDARD.encode(&self.certificate)
    }
}

/// Answers one call, and closes the connection.
fn serve(
    mut stream: BufReader<StreamOwned<ServerConnection, std::net::TcpStream>>,
    answer: &impl Fn(&str, &Value) -> Result<(), String>,
) -> io::Result<()> {
    let (mut first, mut length) = (String::new(), 0);
    stream.read_line(&mut first)?;
    loop {
        let mut line = String::new();
        if stream.read_line(&mut line)? == 0 || line == "\r\n" {
            break;
        }
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap_or(0);
        }
    }
    let mut body = vec![0; usize::min(length, MOST)];
    stream.read_exact(&mut body)?;
    let review: Value = serde_json::from_slice(&body)?;
    // API servers add their timeout as a query.
    let path = first.split([' ', '?']).nth(1).unwrap_or_default();
    let mut response = json!({ "uid": review["request"]["uid"], "allowed": true });
    if let Err(message) = answer(path, &review) {
        response["allowed"] = json!(false);
        response["status"] = json!({ "message": message });
    }
    let reply = json!({ "apiVersion": review["apiVersion"], "kind": review["kind"], "response": response }).to_string();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {}", reply.len());
    let stream = stream.get_mut();
    write!(stream, "{head}\r\nConnection: close\r\n\r\n{reply}")?;
    stream.conn.send_close_notify();
    stream.flush()
}
