//! Credential helpers: programs on the machine that know logins, which Docker calls `docker-credential-<name>`.

use std::ffi::OsStr;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::Credential;

/// Longest time for a helper.
pub(super) const LONGEST: Duration = Duration::from_secs(10);
/// Longest answer, in bytes.
const LARGEST: u64 = 64 << 10;
/// The prefixes of variables that helpers do not get: the loader's own settings, and logins at the collector.
const OURS: [&str; 2] = ["PORTCULLIS_", "OTEL_EXPORTER_OTLP_"];

/// Why a helper gave no login. It never contains the helper's output.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelperError {
    /// There is no such program.
    #[error("is not on the PATH of this program")]
    Absent,
    /// It cannot be run.
    #[error("cannot be started: {0}")]
    Start(io::ErrorKind),
    /// Its output cannot be read.
    #[error("does not answer")]
    Unreadable,
    /// It ended with a failure status, which means that it has no login.
    #[error("has no login for it")]
    NoLogin,
    /// Its output is not a login.
    #[error("gives something that is not a login")]
    Malformed,
    /// Its output is too long.
    #[error("gives more than {LARGEST} bytes")]
    TooLong,
    /// It takes too long.
    #[error("takes longer than {} s", .0.as_secs_f64())]
    Slow(Duration),
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    username: String,
    secret: String,
}

/// Asks `program` for the login at `server`. After `longest` it is killed, with whatever it started.
pub(super) async fn ask(program: &OsStr, server: &str, longest: Duration) -> Result<Credential, HelperError> {
    let mut command = Command::new(program);
    command.arg("get").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if OURS.iter().any(|ours| name.to_string_lossy().starts_with(ours)) {
            command.env_remove(&name);
        }
    }
    let child = command.process_group(0).kill_on_drop(true).spawn().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => HelperError::Absent,
        kind => HelperError::Start(kind),
    })?;
    let mut group = ProcessGroup(child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw));
    let answer = tokio::time::timeout(longest, talk(child, server)).await;
    let answer = answer.map_err(|_| HelperError::Slow(longest))??;
    // A process that it leaves behind on purpose, for instance an agent, may stay.
    group.0 = None;
    let answer: Answer = serde_json::from_slice(&answer).map_err(|_| HelperError::Malformed)?;
    Ok(match answer.username.as_str() {
        "<token>" => Credential::Identity(answer.secret),
        _ => Credential::Basic { user: answer.username, password: answer.secret },
    })
}

async fn talk(mut child: Child, server: &str) -> Result<Vec<u8>, HelperError> {
    if let Some(mut input) = child.stdin.take() {
        // A helper that does not read the host may still answer.
        let _ = input.write_all(server.as_bytes()).await;
    }
    let mut answer = Vec::new();
    if let Some(output) = child.stdout.take() {
        let read = output.take(LARGEST + 1).read_to_end(&mut answer).await;
        read.map_err(|_| HelperError::Unreadable)?;
    }
    if answer.len() as u64 > LARGEST {
        return Err(HelperError::TooLong);
    }
    let status = child.wait().await.map_err(|_| HelperError::Unreadable)?;
    if status.success() { Ok(answer) } else { Err(HelperError::NoLogin) }
}

/// A process group that is killed when this is dropped.
struct ProcessGroup(Option<Pid>);

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            // The group may have ended by itself just now.
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;
    use std::time::Instant;

    use super::*;

    /// Asks a helper that is a shell script.
    async fn asked(script: &str, longest: Duration) -> Result<Credential, HelperError> {
        let folder = tempfile::tempdir().expect("a folder");
        let program = folder.path().join("helper");
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("writes");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).expect("sets");
        loop {
            match ask(program.as_os_str(), "registry.example", longest).await {
                // Another test of this process had the script open for writing while it started a program.
                Err(HelperError::Start(io::ErrorKind::ExecutableFileBusy)) => {}
                result => return result,
            }
        }
    }

    #[tokio::test]
    async fn l25_a_login_comes_from_a_helper_that_is_told_the_server() {
        let script = r#"read -r server; [ "$1 $server" = "get registry.example" ] || exit 3
            echo '{"ServerURL": "x", "Username": "u", "Secret": "p"}'"#;
        let basic = Credential::Basic { user: "u".into(), password: "p".into() };
        assert_eq!(asked(script, LONGEST).await, Ok(basic));
        let script = r#"echo '{"Username": "<token>", "Secret": "t"}'"#;
        assert_eq!(asked(script, LONGEST).await, Ok(Credential::Identity("t".into())));
    }

    #[tokio::test]
    async fn l25_a_helper_is_bounded_and_what_it_says_is_not_repeated() {
        for (script, error) in [
            ("echo credentials not found; exit 1", HelperError::NoLogin),
            ("echo sekret", HelperError::Malformed),
            ("true", HelperError::Malformed),
            ("yes sekret", HelperError::TooLong),
        ] {
            assert_eq!(asked(script, LONGEST).await, Err(error), "{script}");
        }
        let absent = ask(OsStr::new("/nowhere/docker-credential-x"), "h", LONGEST).await;
        assert_eq!(absent, Err(HelperError::Absent));
    }

    #[tokio::test]
    async fn l25_a_helper_that_hangs_ends_with_all_that_it_started() {
        let folder = tempfile::tempdir().expect("a folder");
        let beats = folder.path().join("beats");
        let longest = Duration::from_millis(300);
        let start = Instant::now();
        let script = format!("while :; do echo; sleep 0.1; done >> {} & sleep 600", beats.display());
        assert_eq!(asked(&script, longest).await, Err(HelperError::Slow(longest)));
        assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
        let beaten = || fs::metadata(&beats).map_or(0, |file| file.len());
        loop {
            let before = beaten();
            tokio::time::sleep(Duration::from_secs(2)).await;
            if beaten() == before {
                break;
            }
            assert!(start.elapsed() < Duration::from_secs(300), "what it started goes on");
        }
    }
}
