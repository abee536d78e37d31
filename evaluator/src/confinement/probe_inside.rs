//! What code that broke out of its instance would try, tried by a test in the confined process.
//!
//! The fail point `evaluator.probe_inside=error` runs it after the confinement and before the first module. Each attempt
//! is one log line `probe` with `attempt` and `outcome`: `refused: <cause>`, or what it got.

use std::fmt::Display;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::process::Command;

use rustix::mount::{FsOpenFlags, MountFlags, fsopen, mount};
use rustix::net::{SendFlags, Shutdown, sendto, shutdown};
use rustix::process::{PidfdFlags, getpid, pidfd_open};

/// Parts of the names of variables that this program must not have.
const SECRETS: [&str; 5] = ["TOKEN", "SECRET", "PASSWORD", "KUBECONFIG", "CREDENTIAL"];

/// A folder that every user may write to on most machines, even in a container with a read-only root.
const SHARED_MEMORY: &str = "/dev/shm";

/// The flag by which a TCP socket connects while it sends: `MSG_FASTOPEN` of the kernel's `linux/socket.h`.
const FAST_OPEN: SendFlags = SendFlags::from_bits_retain(0x2000_0000);

/// A listener from before the confinement, as the program has some.
pub(super) fn listener() -> io::Result<TcpListener> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
}

/// Makes all attempts, some of them on these folders and with this listener.
pub(super) fn run(volume: &Path, private: &Path, listener: io::Result<TcpListener>) {
    log_attempt("connect", TcpStream::connect(("127.0.0.1", 9)).map(|_| "connected"));
    if let Some(server) = api_server() {
        log_attempt("connect to the API server", TcpStream::connect(server).map(|_| "connected"));
    }
    log_attempt("listen", TcpListener::bind(("127.0.0.1", 0)).map(|_| "listening"));
    log_attempt("datagram", UdpSocket::bind(("127.0.0.1", 0)).map(|_| "bound"));
    log_attempt("connect while sending", listener.and_then(connect_while_sending));
    log_attempt("exec", Command::new("/bin/true").status().map(|status| status.to_string()));
    // Unlike `/bin/true`, this program exists in every image.
    log_attempt(
        "exec itself",
        Command::new("/proc/self/exe").arg("--version").status().map(|status| status.to_string()),
    );
    // Calls that are refused because the filter does not list them; as root, or without the filter, each would get further.
    let flags = MountFlags::empty();
    log_attempt("mount", mount("none", private, "no-such-file-system", flags, None).map(|()| "mounted"));
    log_attempt("open a file system", fsopen("tmpfs", FsOpenFlags::empty()).map(|_| "opened"));
    log_attempt("handle of a process", pidfd_open(getpid(), PidfdFlags::empty()).map(|_| "opened"));
    let name = format!(".portcullis-probe-{}.tmp", std::process::id());
    let beside = private.parent().unwrap_or(private);
    for (attempt, folder) in [
        ("write", &*std::env::temp_dir()),
        ("write to the volume", volume),
        ("write beside the private copies", beside),
        ("write to shared memory", Path::new(SHARED_MEMORY)),
        ("write a private copy", private),
    ] {
        let file = folder.join(&name);
        log_attempt(attempt, fs::write(&file, "probe").map(|()| "written"));
        // A file that could be written should not stay.
        let _ = fs::remove_file(&file);
    }
    log_attempt("read", fs::read("/etc/hostname").map(|_| "read"));
    log_attempt("look around", fs::read_dir("/").map(|_| "read"));
    log_attempt("look for processes", fs::read_dir("/proc").map(|_| "read"));
    let token = "/var/run/secrets/kubernetes.io/serviceaccount/token";
    log_attempt("token", fs::read(token).map(|_| "read"));
    let found: Vec<_> = std::env::vars_os()
        .filter_map(|(name, _)| name.into_string().ok())
        .filter(|name| SECRETS.iter().any(|secret| name.to_uppercase().contains(secret)))
        .collect();
    let outcome = if found.is_empty() { "nothing".to_owned() } else { found.join(" ") };
    log_attempt("environment", Ok::<_, io::Error>(outcome));
}

/// Once it listens no longer, a socket is as good as a new one, which the filter would not give.
fn connect_while_sending(listener: TcpListener) -> io::Result<&'static str> {
    shutdown(&listener, Shutdown::Read)?;
    sendto(&listener, b"probe", FAST_OPEN, &SocketAddr::from((Ipv4Addr::LOCALHOST, 9)))?;
    Ok("connected")
}

/// The address of the API server, as Kubernetes gives it to every container of a pod.
fn api_server() -> Option<(String, u16)> {
    let host = std::env::var("KUBERNETES_SERVICE_HOST").ok()?;
    Some((host, std::env::var("KUBERNETES_SERVICE_PORT").ok()?.parse().ok()?))
}

fn log_attempt<T: Display, E: Display>(attempt: &str, result: Result<T, E>) {
    let outcome = match result {
        Ok(got) => got.to_string(),
        Err(cause) => format!("refused: {cause}"),
    };
    tracing::info!(attempt, outcome, "probe");
}
