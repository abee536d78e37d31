//! Kubeconfigs: one file with everything that a client needs, certificates included.

use std::net::SocketAddr;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The credentials of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Credentials<'a> {
    /// A client certificate and its key, as PEM.
    Certificate { certificate: &'a str, key: &'a str },
    /// A bearer token.
    Token(&'a str),
    /// A file with a bearer token, which is read again and again.
    TokenFile(&'a Path),
}

impl Credentials<'_> {
    fn user(self) -> Value {
        match self {
            Self::Certificate { certificate, key } => json!({
                "client-certificate-data": STANDARD.encode(certificate),
                "client-key-data": STANDARD.encode(key),
            }),
            Self::Token(token) => json!({ "token": token }),
            Self::TokenFile(path) => json!({ "tokenFile": path }),
        }
    }
}

/// The file, in YAML: one context for each API server, called `api-server-1` and so on.
pub(crate) fn render(
    authority: &str,
    api_servers: &[(u8, SocketAddr)],
    current: u8,
    credentials: Credentials<'_>,
) -> String {
    let name = |number: u8| format!("api-server-{number}");
    let clusters: Vec<Value> = api_servers
        .iter()
        .map(|&(number, address)| {
            let cluster = json!({
                "server": format!("https://{address}"),
                "certificate-authority-data": STANDARD.encode(authority),
            });
            json!({ "name": name(number), "cluster": cluster })
        })
        .collect();
    let contexts: Vec<Value> = api_servers
        .iter()
        .map(|&(number, _)| json!({ "name": name(number), "context": { "cluster": name(number), "user": "user" } }))
        .collect();
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": clusters,
        "contexts": contexts,
        "users": [{ "name": "user", "user": credentials.user() }],
        "current-context": name(current),
    });
    portcullis_yaml::write(&config).expect("strings and lists are YAML")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_api_server_has_a_context() {
        let servers = [(1, "198.18.0.1:6443".parse().unwrap()), (2, "198.18.0.2:6443".parse().unwrap())];
        let text = render("CA", &servers, 2, Credentials::Token("secret"));
        let config: Value = portcullis_yaml::read(&text).unwrap();
        assert_eq!(config["current-context"], "api-server-2");
        assert_eq!(config["contexts"][1]["context"], json!({ "cluster": "api-server-2", "user": "user" }));
        let second = json!({ "server": "https://198.18.0.2:6443", "certificate-authority-data": "Q0E=" });
        assert_eq!(config["clusters"][1]["cluster"], second);
        assert_eq!(config["users"][0]["user"], json!({ "token": "secret" }));
    }
}
