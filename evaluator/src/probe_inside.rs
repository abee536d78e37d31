//! What code that has broken out of its instance would try, tried by a test in the process that is shut in.
//!
//! The fail point `evaluator.probe_inside=error` runs it after the confinement and before the first module. Each attempt
//! is one log line `probe` with `attempt` and `outcome`: `refused: <cause>`, or what it got.

use std::fmt::Display;
use std::fs;
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

/// Names of variables that would hold what this program must not have.
const SECRETS: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "KUBECONFIG", "CREDENTIAL"];

/// Tries everything, on this volume among others.
pub(crate) fn run(volume: &Path) {
    tell("connect", TcpStream::connect(("127.0.0.1", 9)).map(|_| "connected"));
    tell("listen", TcpListener::bind(("127.0.0.1", 0)).map(|_| "listening"));
    tell("datagram", UdpSocket::bind(("127.0.0.1", 0)).map(|_| "bound"));
    tell("exec", Command::new("/bin/true").status().map(|status| status.to_string()));
    let name = format!(".portcullis-probe-{}.tmp", std::process::id());
    for (attempt, folder) in [("write", &*std::env::temp_dir()), ("write to the volume", volume)] {
        let file = folder.join(&name);
        tell(attempt, fs::write(&file, "probe").map(|()| "written"));
        // Where it could be written it should not stay.
        let _ = fs::remove_file(&file);
    }
    tell("read", fs::read("/etc/hostname").map(|_| "read"));
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    tell("token", fs::read(token).map(|_| "read"));
    let found: Vec<_> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| SECRETS.iter().any(|secret| name.to_uppercase().contains(secret)))
        .collect();
    let outcome = if found.is_empty() { "nothing".to_owned() } else { found.join(" ") };
    tell("environment", Ok::<_, std::io::Error>(outcome));
}

fn tell<T: Display, E: Display>(attempt: &str, result: Result<T, E>) {
    let outcome = match result {
        Ok(got) => got.to_string(),
        Err(cause) => format!("refused: {cause}"),
    };
    tracing::info!(attempt, outcome, "probe");
}
