//! Modules from a web server that behaves as each test says.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::{Phase, Reason};
use portcullis_testkit::{Asked, Reply, exchange, lock};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use crate::folder::{Folder, Loader, eventually, get, numbered, policy};

#[derive(Default)]
struct Script {
    answers: HashMap<String, Reply>,
    asked: Vec<Asked>,
}

struct Server {
    address: SocketAddr,
    script: Arc<Mutex<Script>>,
}

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new() -> Self {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "test authority");
        let pem = params.self_signed(&key).expect("signs").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    fn config(&self, name: &str, expired: bool) -> Arc<ServerConfig> {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("parameters");
        if expired {
            params.not_before = date_time_ymd(2001, 1, 1);
            params.not_after = date_time_ymd(2002, 1, 1);
        }
        let certificate: CertificateDer<'static> = params.signed_by(&key, &self.issuer).expect("signs").der().clone();
        let key = PrivateKeyDer::try_from(key.serialize_der()).expect("a key");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate], key)
            .expect("a pair");
        Arc::new(config)
    }
}

impl Server {
    fn start(config: Option<Arc<ServerConfig>>) -> Self {
        Self::start_on("127.0.0.1:0", config)
    }

    fn start_on(address: &str, config: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind(address).expect("binds");
        let address = listener.local_addr().expect("an address");
        let script = Arc::new(Mutex::new(Script::default()));
        let kept = Arc::clone(&script);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (config, script) = (config.clone(), Arc::clone(&kept));
                thread::spawn(move || {
                    let reply = |asked: &Asked| {
                        let mut script = lock(&script);
                        script.asked.push(asked.clone());
                        script.answers.get(&asked.path).cloned().unwrap_or_else(|| Reply::status(404))
                    };
                    // An error means that the client hung up, which some tests want.
                    let _ = match config {
                        Some(config) => {
                            let connection = ServerConnection::new(config).expect("a connection");
                            exchange(&mut StreamOwned::new(connection, stream), reply)
                        }
                        None => exchange(&mut &stream, reply),
                    };
                });
            }
        });
        Self { address, script }
    }

    fn on(&self, path: &str, answer: Reply) {
        lock(&self.script).answers.insert(path.to_owned(), answer);
    }

    fn asked(&self, path: &str) -> Vec<Instant> {
        lock(&self.script).asked.iter().filter(|asked| asked.path == path).map(|asked| asked.at).collect()
    }
}

/// A folder, a good server, and a loader that trusts it.
struct Rig {
    folder: Folder,
    authority: Authority,
    server: Server,
}

impl Rig {
    fn new() -> Self {
        let authority = Authority::new();
        let server = Server::start(Some(authority.config("127.0.0.1", false)));
        let folder = Folder::new();
        folder.write("ca.pem", &authority.pem);
        Self { folder, authority, server }
    }

    fn start(&self, extra: &[&str]) -> Loader {
        let ca = self.folder.path().join("ca.pem");
        let extra: Vec<&str> =
            ["--source-ca", ca.to_str().expect("text")].into_iter().chain(extra.iter().copied()).collect();
        self.folder.start(&extra)
    }

    fn want(&self, name: &str, path: &str) {
        let address = format!("https://{}{path}", self.server.address);
        self.folder.write(&format!("{name}.yaml"), policy(name, &address, "{}"));
    }
}

fn reason(loader: &Loader, name: &str) -> Reason {
    loader.fails(&format!("cluster/{name}")).failure.expect("a failure").reason
}

#[test]
fn a_module_is_fetched_once() {
    let rig = Rig::new();
    rig.server.on("/a", Reply::ok(numbered(1)));
    for name in ["a", "b", "c"] {
        rig.want(name, "/a");
    }
    let mut loader = rig.start(&[]);
    for name in ["a", "b", "c"] {
        loader.serves(&format!("cluster/{name}"), 1);
    }
    let (status, _) = get(loader.probes, &format!("/healthz/sources/{}", rig.server.address));
    assert_eq!(status, 200);
    loader.stop();
    let loader = rig.start(&[]);
    rig.want("d", "/a");
    loader.serves("cluster/d", 1);
    assert_eq!(rig.server.asked("/a").len(), 1 + 1, "once, and once more for a policy of another life of the loader");
    assert_eq!(loader.metric("portcullis_compilations_total{result=\"ok\"}"), 0.0);
}

#[test]
fn fault_l01_a_source_that_comes_back_is_used() {
    let authority = Authority::new();
    let address = TcpListener::bind("127.0.0.1:0").expect("binds").local_addr().expect("an address");
    let folder = Folder::new();
    folder.write("ca.pem", &authority.pem);
    folder.write("a.yaml", policy("a", &format!("https://{address}/a"), "{}"));
    let ca = folder.path().join("ca.pem");
    let loader = folder.start(&["--source-ca", ca.to_str().expect("text")]);
    assert_eq!(reason(&loader, "a"), Reason::RegistryUnreachable);
    let server = Server::start_on(&address.to_string(), Some(authority.config("127.0.0.1", false)));
    server.on("/a", Reply::ok(numbered(1)));
    loader.serves("cluster/a", 1);
    assert!(loader.policy("cluster/a").expect("the policy").failure.is_none());
}

#[test]
fn fault_l02_a_source_that_hangs_holds_up_no_other() {
    let rig = Rig::new();
    rig.server.on("/slow", Reply::silence());
    rig.server.on("/good", Reply::ok(numbered(1)));
    for number in 0..8 {
        rig.want(&format!("slow{number}"), &format!("/slow?{number}"));
        rig.server.on(&format!("/slow?{number}"), Reply::silence());
    }
    let other = Server::start(Some(rig.authority.config("127.0.0.1", false)));
    other.on("/good", Reply::ok(numbered(1)));
    rig.folder.write("good.yaml", policy("good", &format!("https://{}/good", other.address), "{}"));
    let loader = rig.start(&["--fetch-header-timeout", "15s"]);
    loader.serves("cluster/good", 1);
    // The times of the requests, because the rest may take long on a busy machine.
    let first_asked = |number| Some((*rig.server.asked(&format!("/slow?{number}")).first()?, number));
    let (asked, first) = eventually("a request that hangs", || (0..8).filter_map(first_asked).min());
    let waited = other.asked("/good")[0].saturating_duration_since(asked);
    assert!(waited < Duration::from_secs(15), "it waited for the one that hangs");
    assert_eq!(reason(&loader, &format!("slow{first}")), Reason::RegistryTimeout);
}

#[test]
fn fault_l04_l05_l06_l08_statuses_have_their_reasons() {
    let rig = Rig::new();
    let statuses = [
        (500, Reason::RegistryServerError),
        (502, Reason::RegistryServerError),
        (503, Reason::RegistryServerError),
        (504, Reason::RegistryServerError),
        (401, Reason::Unauthorized),
        (403, Reason::Unauthorized),
        (404, Reason::NotFound),
        (429, Reason::RegistryThrottled),
    ];
    for (status, _) in statuses {
        let reply = Reply::status(status);
        let reply = if status == 429 { reply.header("retry-after", "3") } else { reply };
        rig.server.on(&format!("/e{status}"), reply);
        rig.want(&format!("e{status}"), &format!("/e{status}"));
    }
    let loader = rig.start(&[]);
    for (status, expected) in statuses {
        assert_eq!(reason(&loader, &format!("e{status}")), expected, "{status}");
    }
    rig.server.on("/e500", Reply::ok(numbered(1)));
    loader.serves("cluster/e500", 1);
    let asked = eventually("a second attempt", || Some(rig.server.asked("/e429")).filter(|asked| asked.len() > 1));
    assert!(asked[1] - asked[0] >= Duration::from_secs(3));
}

#[test]
fn fault_l09_a_cut_body_leaves_nothing() {
    let rig = Rig::new();
    let module = numbered(1);
    let cut = module.len() * 6 / 10;
    rig.server.on("/a", Reply::ok(module).cut_after(cut));
    rig.want("a", "/a");
    let loader = rig.start(&[]);
    assert_eq!(reason(&loader, "a"), Reason::BlobTruncated);
    assert!(loader.files("modules").is_empty());
    rig.server.on("/a", Reply::ok(numbered(1)));
    loader.serves("cluster/a", 1);
    assert!(loader.files("tmp").is_empty());
}

#[test]
fn fault_l12_a_body_without_end_stops_at_the_limit() {
    let rig = Rig::new();
    rig.server.on("/a", Reply::endless());
    rig.want("a", "/a");
    let loader = rig.start(&["--max-module-size", "4MiB"]);
    assert_eq!(reason(&loader, "a"), Reason::ModuleTooLarge);
    eventually("no file", || (loader.files("tmp").is_empty() && loader.files("modules").is_empty()).then_some(()));
    thread::sleep(Duration::from_millis(1500));
    assert_eq!(rig.server.asked("/a").len(), 1, "final");
}

#[test]
fn fault_l14_l15_redirects_are_bounded() {
    let rig = Rig::new();
    let address = rig.server.address;
    rig.server.on("/loop", Reply::redirect("/loop"));
    rig.server.on("/plain", Reply::redirect(&format!("http://{address}/a")));
    rig.server.on("/good", Reply::redirect(&format!("https://{address}/a")));
    rig.server.on("/a", Reply::ok(numbered(1)));
    for name in ["loop", "plain", "good"] {
        rig.want(name, &format!("/{name}"));
    }
    let loader = rig.start(&[]);
    assert_eq!(reason(&loader, "loop"), Reason::RedirectRefused);
    assert_eq!(reason(&loader, "plain"), Reason::RedirectRefused);
    loader.serves("cluster/good", 1);
    assert!(rig.server.asked("/loop").len().is_multiple_of(6));
}

#[test]
fn fault_l16_bad_certificates_are_named() {
    let rig = Rig::new();
    let stranger = Authority::new();
    let mut servers = Vec::new();
    for (name, config, word) in [
        ("expired", Some(rig.authority.config("127.0.0.1", true)), "expired"),
        ("name", Some(rig.authority.config("other.example", false)), "host name"),
        ("authority", Some(stranger.config("127.0.0.1", false)), "authority"),
    ] {
        let server = Server::start(config);
        rig.folder.write(&format!("{name}.yaml"), policy(name, &format!("https://{}/a", server.address), "{}"));
        servers.push((name, word, server));
    }
    // Versions earlier than TLS 1.2 end in this alert, whatever else the server says.
    let old = TcpListener::bind("127.0.0.1:0").expect("binds");
    rig.folder.write("old.yaml", policy("old", &format!("https://{}/a", old.local_addr().expect("an address")), "{}"));
    thread::spawn(move || old.incoming().flatten().for_each(|stream| say(stream, &TLS_1_1_ALERT)));
    let noise = TcpListener::bind("127.0.0.1:0").expect("binds");
    let address = noise.local_addr().expect("an address");
    rig.folder.write("noise.yaml", policy("noise", &format!("https://{address}/a"), "{}"));
    thread::spawn(move || noise.incoming().flatten().for_each(|stream| say(stream, b"HTTP/1.1 400 No\r\n\r\n")));
    let loader = rig.start(&[]);
    for (name, word) in
        servers.iter().map(|(name, word, _)| (*name, *word)).chain([("old", "TLS 1.2"), ("noise", "right port")])
    {
        let failure = loader.fails(&format!("cluster/{name}")).failure.expect("a failure");
        assert!(failure.message.contains(word), "{name}: {failure}");
        assert_eq!(failure.reason, Reason::TLSFailed, "{name}: {failure}");
    }
}

/// Alert, TLS 1.1, fatal, protocol_version.
const TLS_1_1_ALERT: [u8; 7] = [21, 3, 2, 0, 2, 2, 70];

fn say(mut stream: TcpStream, bytes: &[u8]) {
    let mut hello = [0; 512];
    let _ = stream.read(&mut hello);
    let _ = stream.write_all(bytes);
    // The client hangs up when it has read this.
    let _ = stream.set_read_timeout(Some(Duration::from_secs(30)));
    let _ = std::io::copy(&mut stream, &mut std::io::sink());
}

#[test]
fn fault_l17_a_new_authority_is_taken_without_a_restart() {
    let rig = Rig::new();
    rig.folder.write("ca.pem", Authority::new().pem);
    rig.server.on("/a", Reply::ok(numbered(1)));
    rig.want("a", "/a");
    let loader = rig.start(&["--retry-outside", "10m"]);
    assert_eq!(reason(&loader, "a"), Reason::TLSFailed);
    rig.folder.write("ca.pem", &rig.authority.pem);
    loader.serves("cluster/a", 1);
}

#[test]
fn l23_plain_http_and_hosts_that_are_not_listed_are_refused() {
    let plain = Server::start(None);
    plain.on("/a", Reply::ok(numbered(1)));
    let folder = Folder::new();
    let address = plain.address.to_string();
    folder.write("a.yaml", policy("a", &format!("http://{address}/a"), "{}"));
    let loader = folder.start(&[]);
    assert_eq!(reason(&loader, "a"), Reason::SourceNotAllowed);
    assert!(plain.asked("/a").is_empty());
    drop(loader);
    let loader = folder.start(&["--allow-http-host", &address, "--allow-source", "https://example.com/*"]);
    assert_eq!(reason(&loader, "a"), Reason::SourceNotAllowed);
    drop(loader);
    let loader = folder.start(&["--allow-http-host", &address]);
    loader.serves("cluster/a", 1);
}

#[test]
fn i4_nothing_tells_a_secret() {
    let rig = Rig::new();
    rig.want("query", "/a?token=marker-1234");
    let address = rig.server.address;
    rig.folder.write("user.yaml", policy("user", &format!("https://marker-1234:marker-1234@{address}/a"), "{}"));
    rig.folder.write("settings.yaml", policy("settings", "a.wasm", "marker-1234"));
    let loader = rig.start(&[]);
    for name in ["query", "user", "settings"] {
        loader.fails(&format!("cluster/{name}"));
    }
    let shown = [
        serde_json::to_string(&loader.loader_state()).expect("JSON"),
        loader.log(),
        get(loader.probes, "/metrics").1,
        get(loader.probes, "/healthz/policies?verbose").1,
        get(loader.probes, "/healthz/sources?verbose").1,
    ];
    for text in shown {
        assert!(!text.contains("marker-1234"), "{text}");
    }
}

#[test]
fn a_download_shows_its_progress() {
    let rig = Rig::new();
    rig.server.on("/a", Reply::silence());
    rig.want("a", "/a");
    let loader = rig.start(&[]);
    eventually("the download", || loader.policy("cluster/a").filter(|policy| policy.phase == Phase::Fetching));
}
