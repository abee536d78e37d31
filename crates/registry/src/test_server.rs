//! A source for unit tests, without TLS.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use portcullis_util::lock;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::{Guard, SourcesFile, Web, WebSettings};

/// A source that gives these answers, by the last part of the path. Returns its host, and the parts that it was asked for.
pub(crate) async fn serve(answers: HashMap<String, Vec<u8>>) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
    let host = listener.local_addr().expect("is bound").to_string();
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let noted = Arc::clone(&asked);
    tokio::spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let mut request = vec![0; 16 << 10];
            let length = connection.read(&mut request).await.unwrap_or(0);
            let text = String::from_utf8_lossy(&request[..length]);
            // What does not begin like this is TLS, which is tried first.
            let Some(path) = text.strip_prefix("GET ").and_then(|rest| rest.split(' ').next()) else { continue };
            let last = path.split('?').next().and_then(|path| path.rsplit('/').next()).unwrap_or_default().to_owned();
            let (status, body) = answers.get(&last).map_or(("404 Not Found", &[][..]), |body| ("200 OK", body));
            lock(&noted).push(last);
            let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", body.len());
            // A client that refuses a large body closes the connection before all of it was written.
            let _ = connection.write_all(&[head.as_bytes(), body].concat()).await;
        }
    });
    (host, asked)
}

/// A client that asks this host without TLS and without a proxy, whatever the environment says.
pub(crate) fn web(host: &str) -> Web {
    let sources = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(&sources, format!("insecure_sources: ['{host}']\nproxies: {{}}\n")).expect("writes");
    Web::new(WebSettings {
        header: Duration::from_secs(30),
        total: Duration::from_secs(30),
        lowest_rate: 1,
        authorities: None,
        plain_hosts: BTreeSet::new(),
        allowed: Vec::new(),
        guard: Guard::new(vec!["127.0.0.0/8".parse().expect("a network")]),
        sources: Some(SourcesFile::read(sources.path()).expect("good")),
        name_server: None,
        user_agent: "tests",
    })
}
