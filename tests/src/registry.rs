//! A real registry: Debian's `docker-registry` as a child process on the loopback.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use portcullis_contract::Digest;
use portcullis_registry::oci::{INDEX_TYPE, Image, MANIFEST_TYPE, Manifest};
use portcullis_registry::{Allowed, DockerConfig, Guard, Web, WebSettings, oci};
use rcgen::{KeyPair, SigningKey as _};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::tokens::{ISSUER, SERVICE};
use crate::{Authority, Client, Folder, Launch, Process, TokenService, address, eventually};

/// The user who may pull and push, in a registry with logins.
const USER: &str = "portcullis";
/// The user's password, which is a secret (I4).
const PASSWORD: &str = "portcullis-marker-password";
/// The user with the bcrypt hash of the password.
const HTPASSWD: &str = "portcullis:$2y$04$E2zt64pYOqfx0HpBnHkxpuUdGCBU6Ea29Idna0HOS9SWgVWWg5Im2\n";

/// The authentication of a registry.
enum Login<'a> {
    Nobody,
    Password,
    Tokens(&'a TokenService),
}

/// A running registry. It ends when this is dropped.
pub struct Registry {
    host: String,
    /// The folder of its data and settings.
    _root: TempDir,
    ca: PathBuf,
    docker: PathBuf,
    is_tls: bool,
    process: Process,
}

impl Registry {
    /// A registry over plain HTTP, open to all.
    pub fn plain() -> Self {
        Self::start(false, &Login::Nobody)
    }

    /// A registry over TLS, open to all, with a certificate of [`Authority::shared`] for its address and for `registry.example`.
    pub fn tls() -> Self {
        Self::start(true, &Login::Nobody)
    }

    /// A registry over TLS, with a user and a password.
    pub fn with_login() -> Self {
        Self::start(true, &Login::Password)
    }

    /// A registry over TLS that accepts the tokens of a service.
    pub fn with_tokens(tokens: &TokenService) -> Self {
        Self::start(true, &Login::Tokens(tokens))
    }

    fn start(is_tls: bool, login: &Login) -> Self {
        let program = ["/usr/bin/docker-registry", "/usr/local/bin/docker-registry"].into_iter().map(PathBuf::from);
        let program = program.into_iter().find(|path| path.exists()).unwrap_or_else(|| {
            panic!(
                "there is no docker-registry: install it with apt-get install --no-install-recommends docker-registry"
            )
        });
        let root = tempfile::Builder::new().prefix("registry-").tempdir().expect("a temporary folder");
        let address = address::ports();
        let path = |name: &str| root.path().join(name);
        let mut http = json!({"addr": address.to_string(), "secret": "of no use"});
        if is_tls {
            let names = [&address.ip().to_string(), "localhost", "registry.example"];
            Authority::shared().identity(&names).write_to(root.path());
            http["tls"] = json!({"certificate": path("tls.crt"), "key": path("tls.key")});
        }
        let mut config = json!({
            "version": 0.1,
            "log": {"accesslog": {"disabled": false}, "level": "warn"},
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": http,
        });
        match login {
            Login::Nobody => {}
            Login::Password => {
                fs::write(path("htpasswd"), HTPASSWD).expect("writes");
                config["auth"] = json!({"htpasswd": {"realm": "tests", "path": path("htpasswd")}});
            }
            Login::Tokens(tokens) => {
                fs::write(path("tokens.pem"), tokens.certificate()).expect("writes");
                let (realm, roots) = (tokens.realm(), path("tokens.pem"));
                config["auth"] =
                    json!({"token": {"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": roots}});
            }
        }
        fs::write(path("config.yml"), config.to_string()).expect("writes");
        fs::write(path("ca.pem"), &Authority::shared().pem).expect("writes");
        fs::create_dir(path("docker")).expect("a folder");
        fs::write(path("docker/config.json"), docker_config(&address.to_string(), PASSWORD)).expect("writes");
        let process = Process::start(Launch {
            name: "docker-registry".to_owned(),
            program,
            args: vec!["serve".into(), path("config.yml").into()],
            env: Vec::new(),
            wrapper: Vec::new(),
            user: None,
        });
        let registry = Self {
            host: address.to_string(),
            ca: path("ca.pem"),
            docker: path("docker"),
            _root: root,
            is_tls,
            process,
        };
        registry.wait();
        registry
    }

    fn wait(&self) {
        eventually("the registry to listen", || TcpStream::connect(&self.host).ok());
    }

    /// Its host with the port.
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The file of its certificate authority, for `--source-ca`.
    pub fn ca_file(&self) -> String {
        self.ca.to_string_lossy().into_owned()
    }

    /// A folder with a Docker configuration with the right login.
    pub fn docker_config(&self) -> String {
        self.docker.to_string_lossy().into_owned()
    }

    /// The address of an artifact, as a policy names it.
    pub fn module(&self, name: &str) -> String {
        format!("registry://{}/{name}", self.host)
    }

    /// Pushes a module as `repository:tag`, and returns the digests of its manifest and of the module itself.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push(&self, name: &str, module: &[u8]) -> (Digest, Digest) {
        let manifest = Manifest::of_module(module, BTreeMap::new());
        (self.push_artifact(name, &manifest, module), Digest::of(module))
    }

    pub(crate) fn push_artifact(&self, name: &str, manifest: &Manifest, layer: &[u8]) -> Digest {
        let image: Image = format!("{}/{name}", self.host).parse().expect("a name");
        let client = oci::Registry::new(Web::new(self.settings()), Some(DockerConfig::new(self.docker.clone())));
        runtime().block_on(client.push(&image, layer.to_vec(), manifest)).expect("the registry takes it")
    }

    /// Signs the manifest `signed` of a repository as `cosign sign --key` does: with a statement about it under a tag that is
    /// derived from its digest.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn sign(&self, repository: &str, signed: &Digest, key: &KeyPair) {
        let statement = json!({
            "critical": {
                "identity": {"docker-reference": format!("{}/{repository}", self.host)},
                "image": {"docker-manifest-digest": signed},
                "type": "cosign container image signature",
            },
            "optional": null,
        });
        let statement = statement.to_string().into_bytes();
        let signature = STANDARD.encode(key.sign(&statement).expect("signs"));
        let mut manifest: Value =
            serde_json::from_slice(&Manifest::of_module(&statement, BTreeMap::new()).bytes).expect("JSON");
        manifest["layers"][0]["mediaType"] = "application/vnd.dev.cosign.simplesigning.v1+json".into();
        manifest["layers"][0]["annotations"] = json!({"dev.cosignproject.cosign/signature": signature});
        let manifest = Manifest::parse(manifest.to_string().into_bytes()).expect("a manifest");
        self.push_artifact(&format!("{repository}:sha256-{}.sig", signed.hex()), &manifest, &statement);
    }

    /// Puts an index of one manifest of the repository, which has `size` bytes, under a tag.
    ///
    /// # Panics
    /// When the registry refuses it.
    pub fn push_index(&self, repository: &str, tag: &str, of: &Digest, size: usize) {
        let index = json!({
            "schemaVersion": 2, "mediaType": INDEX_TYPE,
            "manifests": [{"mediaType": MANIFEST_TYPE, "digest": of, "size": size}],
        });
        // An error means that it is installed already.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let scheme = if self.is_tls { "https" } else { "http" };
        let put = reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(Authority::shared().pem.as_bytes()).expect("PEM"))
            .build()
            .expect("a client")
            .put(format!("{scheme}://{}/v2/{repository}/manifests/{tag}", self.host))
            .header("content-type", INDEX_TYPE)
            .body(Bytes::from(index.to_string()));
        let answer = runtime().block_on(put.send()).expect("the registry answers");
        assert!(answer.status().is_success(), "{answer:?}");
    }

    fn settings(&self) -> WebSettings {
        WebSettings {
            header: Duration::from_secs(30),
            total: Duration::from_secs(60),
            lowest_rate: 1,
            authorities: Some(self.ca.clone()),
            plain_hosts: if self.is_tls { [].into() } else { [self.host.clone()].into() },
            allowed: Vec::new(),
            guard: Guard::new(vec!["127.0.0.0/8".parse::<Allowed>().expect("a network")]),
            sources: None,
            name_server: None,
            user_agent: "tests",
        }
    }

    /// How many blobs were downloaded.
    pub fn blobs_given(&self) -> usize {
        self.count("/blobs/sha256:")
    }

    /// How many manifests were downloaded.
    pub fn manifests_given(&self) -> usize {
        self.count("/manifests/")
    }

    /// How often paths with this text were downloaded. A download counts when its answer is complete, or a moment later if
    /// the answer is large.
    fn count(&self, path: &str) -> usize {
        self.read_log();
        let is_one = |line: &String| line.contains("\"GET /v2/") && line.contains(path) && line.contains("\" 200 ");
        self.process.lines().iter().filter(|line| is_one(line)).count()
    }

    /// Waits until its log has been read completely. For that it sends a request that appears in the log.
    fn read_log(&self) {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        // The log of a registry that has ended was read when it ended.
        if !self.process.is_alive() {
            return;
        }
        let address = self.host.parse().expect("an address");
        let client = if self.is_tls { Client::tls(address) } else { Client::plain(address) };
        let path = format!("/v2/so-far-{}/manifests/none", NEXT.fetch_add(1, Ordering::Relaxed));
        client.get(&path).expect("the registry answers");
        let is_read = || self.process.lines().iter().any(|line| line.contains(&path));
        eventually("the registry's log", || is_read().then_some(()));
    }

    /// Stops it; its data stay.
    pub fn stop(&self) {
        self.process.kill();
    }

    /// Starts it again.
    pub fn start_again(&self) {
        self.process.start_again();
        self.wait();
    }
}

fn runtime() -> &'static tokio::runtime::Runtime {
    static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(1).enable_all().build().expect("a runtime")
    });
    &RUNTIME
}

/// A Docker configuration with a login of [`Registry::with_login`]'s user.
pub fn docker_config(host: &str, password: &str) -> String {
    json!({"auths": {host: {"auth": STANDARD.encode(format!("{USER}:{password}"))}}}).to_string()
}

/// Writes it into the folder `docker` beside the policies, and returns the path of that folder.
pub fn write_docker_config(folder: &Folder, host: &str, password: &str) -> String {
    fs::create_dir_all(folder.path("docker")).expect("a folder");
    folder.write("docker/config.json", docker_config(host, password));
    folder.path("docker").to_string_lossy().into_owned()
}

/// A token service that also accepts [`Registry::with_login`]'s user.
pub fn token_service() -> TokenService {
    TokenService::new(USER, PASSWORD)
}

/// The right password of [`Registry::with_login`].
pub fn password() -> &'static str {
    PASSWORD
}
