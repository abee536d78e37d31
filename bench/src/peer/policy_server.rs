//! Kubewarden's policy server, with the policies of a folder.

use std::fs::{self, File};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use serde_json::{Map, Value, json};

use crate::load::Target;
use crate::pod::{Folder, is_ready};
use crate::rounds::Server;

/// How long it may take to compile its modules.
const START: Duration = Duration::from_secs(120);

/// A ready policy server; ended when dropped.
pub(super) struct PolicyServer {
    child: Child,
    authority: String,
}

impl PolicyServer {
    /// Starts the program with the policies and the certificate of a folder, and waits until it is ready.
    pub(super) fn start(program: &Path, workers: usize, folder: &Folder) -> anyhow::Result<Self> {
        let (policies, own) = (folder.path("policies"), folder.path("policy-server"));
        fs::create_dir_all(&own)?;
        fs::write(own.join("policies.yml"), configuration(&policies)?.to_string())?;
        let log = File::create(own.join("log"))?;
        let [port, probes] = free_ports()?.map(|port| port.to_string());

        let mut command = Command::new(program);
        command.args(["--addr", "127.0.0.1", "--port", &port, "--readiness-probe-port", &probes]);
        command.args(["--workers", &workers.to_string(), "--log-level", "error"]);
        command.args(["--ignore-kubernetes-connection-failure", "--policies-download-dir"]).arg(own.join("modules"));
        command.arg("--sigstore-cache-dir").arg(own.join("sigstore")).arg("--policies").arg(own.join("policies.yml"));
        command.arg("--cert-file").arg(folder.path("tls/tls.crt")).arg("--key-file").arg(folder.path("tls/tls.key"));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let child = command.spawn().with_context(|| format!("failed to start {}", program.display()))?;
        let mut server = Self { child, authority: format!("127.0.0.1:{port}") };

        let (start, probes) = (Instant::now(), format!("127.0.0.1:{probes}"));
        while !is_ready(&probes, "/readiness") {
            let ended = server.child.try_wait()?;
            if ended.is_some() || start.elapsed() > START {
                let log = fs::read_to_string(own.join("log"))?;
                let error = log.lines().find(|line| line.starts_with("Error: ")).unwrap_or(&log);
                bail!("the policy server is not ready: {error}");
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(server)
    }

    /// It as a server that is asked about one of its policies.
    pub(super) fn server(&self, policy: &str) -> Server {
        let target = Target { authority: self.authority.clone(), path: format!("/validate/{policy}") };
        Server { name: "policy-server".to_owned(), target, pid: self.child.id() }
    }
}

impl Drop for PolicyServer {
    fn drop(&mut self) {
        // Both fail only when the program has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The name and version that the program prints.
pub(super) fn version(program: &Path) -> anyhow::Result<String> {
    let output = Command::new(program).arg("--version").output().with_context(|| {
        let name = program.display();
        format!("failed to start {name}: build Kubewarden's policy-server for release, and name it by --program FILE")
    })?;
    ensure!(output.status.success(), "{} does not tell its version", program.display());
    // What follows the first line is the list of its builtins.
    Ok(String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or_default().to_owned())
}

/// Two ports that nobody listens on.
fn free_ports() -> anyhow::Result<[u16; 2]> {
    let listeners = [TcpListener::bind("127.0.0.1:0")?, TcpListener::bind("127.0.0.1:0")?];
    let [first, second] = listeners.each_ref().map(TcpListener::local_addr);
    Ok([first?.port(), second?.port()])
}

/// The policies of a folder, in the form of the policy server's `policies.yml`. (All JSON is YAML.)
fn configuration(policies: &Path) -> anyhow::Result<Value> {
    let mut all = Map::new();
    for file in fs::read_dir(policies)? {
        let path = file?.path();
        if path.extension().is_some_and(|extension| extension == "json") {
            let manifest: Value = serde_json::from_slice(&fs::read(&path)?)?;
            let name = manifest["metadata"]["name"].as_str().context("a manifest has no name")?.to_owned();
            all.insert(name, configured(&manifest["spec"], policies));
        }
    }
    Ok(Value::Object(all))
}

/// A policy in that form. Rules are not part of it: the policy server judges whatever it is asked.
fn configured(spec: &Value, modules: &Path) -> Value {
    let url = |policy: &Value| {
        let file = policy["module"].as_str().unwrap_or_default();
        format!("file://{}", modules.join(file).display())
    };
    let settings = |policy: &Value| policy.get("settings").cloned().unwrap_or_else(|| json!({}));
    if let Some(members) = spec["policies"].as_object() {
        let member = |policy: &Value| json!({"module": url(policy), "settings": settings(policy)});
        let members: Map<String, Value> = members.iter().map(|(name, policy)| (name.clone(), member(policy))).collect();
        return json!({"policies": members, "expression": spec["expression"], "message": spec["message"]});
    }
    let mut policy = json!({"module": url(spec), "settings": settings(spec)});
    for (field, theirs) in [("mutating", "allowedToMutate"), ("hostCapabilities", "hostCapabilities")] {
        if let Some(value) = spec.get(field) {
            policy[theirs] = value.clone();
        }
    }
    policy
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn policies_keep_what_both_servers_know() {
        let spec = json!({"module": "a.wasm", "settings": {"x": 1}, "mutating": true, "rules": [{}]});
        let expected = json!({"module": "file:///m/a.wasm", "settings": {"x": 1}, "allowedToMutate": true});
        assert_eq!(configured(&spec, Path::new("/m")), expected);
        let spec = json!({"policies": {"a": {"module": "a.wasm"}}, "expression": "a()", "message": "no"});
        let expected = json!({
            "policies": {"a": {"module": "file:///m/a.wasm", "settings": {}}}, "expression": "a()", "message": "no",
        });
        assert_eq!(configured(&spec, Path::new("/m")), expected);
    }
}
