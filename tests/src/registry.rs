//! A real registry: Debian's `docker-registry` as a child process on the loopback.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_contract::Digest;
use portcullis_registry::oci::{Image, Manifest};
use portcullis_registry::{Allowed, DockerConfig, Guard, Web, WebSettings, oci};
use serde_json::json;
use tempfile::TempDir;

use crate::{Authority, Folder, Launch, Process, address, eventually};

/// The user that may pull and push where there is a login.
const USER: &str = "portcullis";
/// His password, which is a secret (I4).
const PASSWORD: &str = "portcullis-marker-password";
/// The user with the bcrypt hash of his password.
const HTPASSWD: &str = "portcullis:$2y$04$E2zt64pYOqfx0HpBnHkxpuUdGCBU6Ea29Idna0HOS9SWgVWWg5Im2\n";

/// A running registry. It ends when this goes.
pub struct Registry {
    host: String,
    /// What it keeps, and its settings.
    _root: TempDir,
    ca: PathBuf,
    docker: PathBuf,
    is_tls: bool,
    process: Process,
}

impl Registry {
    /// Over plain HTTP, for everybody.
    pub fn plain() -> Self {
        Self::start(false, false)
    }

    /// Over TLS with a certificate of [`Authority::shared`], for everybody.
    pub fn tls() -> Self {
        Self::start(true, false)
    }

    /// Over TLS, with a login.
    pub fn with_login() -> Self {
        Self::start(true, true)
    }

    fn start(is_tls: bool, login: bool) -> Self {
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
            Authority::shared().identity(&[&address.ip().to_string(), "localhost"]).write_to(root.path());
            http["tls"] = json!({"certificate": path("tls.crt"), "key": path("tls.key")});
        }
        let mut config = json!({
            "version": 0.1,
            "log": {"accesslog": {"disabled": false}, "level": "warn"},
            "storage": {"filesystem": {"rootdirectory": path("data")}},
            "http": http,
        });
        if login {
            fs::write(path("htpasswd"), HTPASSWD).expect("writes");
            config["auth"] = json!({"htpasswd": {"realm": "tests", "path": path("htpasswd")}});
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

    /// The file of its authority, for `--source-ca`.
    pub fn ca_file(&self) -> String {
        self.ca.to_string_lossy().into_owned()
    }

    /// A folder with a Docker configuration that has the right login.
    pub fn docker_config(&self) -> String {
        self.docker.to_string_lossy().into_owned()
    }

    /// The address of an artifact, as a policy names it.
    pub fn module(&self, name: &str) -> String {
        format!("registry://{}/{name}", self.host)
    }

    /// Pushes a module as `repository:tag`, and gives the digests of its manifest and of itself.
    ///
    /// # Panics
    /// When the registry does not take it.
    pub fn push(&self, name: &str, module: &[u8]) -> (Digest, Digest) {
        static RUNTIME: LazyLock<tokio::runtime::Runtime> = LazyLock::new(|| {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().expect("a runtime")
        });
        let image: Image = format!("{}/{name}", self.host).parse().expect("a name");
        let client = oci::Registry::new(Web::new(self.settings()), Some(DockerConfig::new(self.docker.clone())));
        let manifest = Manifest::of_module(module, BTreeMap::new());
        let pushed = RUNTIME.block_on(client.push(&image, module.to_vec(), &manifest)).expect("the registry takes it");
        (pushed, Digest::of(module))
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

    /// How many blobs were given out.
    pub fn blobs_given(&self) -> usize {
        self.count("/blobs/sha256:")
    }

    /// How many manifests were given out.
    pub fn manifests_given(&self) -> usize {
        self.count("/manifests/")
    }

    fn count(&self, path: &str) -> usize {
        let is_one = |line: &String| line.contains("\"GET /v2/") && line.contains(path) && line.contains("\" 200 ");
        self.process.lines().iter().filter(|line| is_one(line)).count()
    }

    /// Stops it; what it keeps stays.
    pub fn stop(&self) {
        self.process.kill();
    }

    /// Starts it again.
    pub fn start_again(&self) {
        self.process.start_again();
        self.wait();
    }
}

/// A Docker configuration with a login of [`Registry::with_login`]'s user.
pub fn docker_config(host: &str, password: &str) -> String {
    json!({"auths": {host: {"auth": STANDARD.encode(format!("{USER}:{password}"))}}}).to_string()
}

/// Writes it into the folder `docker` beside the policies, and gives that folder.
pub fn write_docker_config(folder: &Folder, host: &str, password: &str) -> String {
    fs::create_dir_all(folder.path("docker")).expect("a folder");
    folder.write("docker/config.json", docker_config(host, password));
    folder.path("docker").to_string_lossy().into_owned()
}

/// The right password of [`Registry::with_login`].
pub fn password() -> &'static str {
    PASSWORD
}
