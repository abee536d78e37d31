//! Tries connections from a pod's network.

use std::net::SocketAddr;
use std::process::{Command, Stdio};

use super::Container;
use crate::PodProgram;

/// The result of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// There is an answer.
    Answered,
    /// It arrives, but nothing listens there.
    NobodyListens,
    /// The network rejects it.
    Forbidden,
    /// Nothing comes back.
    Lost,
}

impl Container {
    /// Connects to an address from the network of this container's pod, and sends a request of HTTP.
    ///
    /// # Panics
    /// When `nsenter` cannot be started.
    pub fn reach(&self, program: &PodProgram, address: SocketAddr) -> Reach {
        self.try_to(program, &["get", &format!("http://{address}/")])
    }

    /// Asks a DNS server for the API server's service, over UDP, from the network of this container's pod.
    ///
    /// # Panics
    /// When `nsenter` cannot be started.
    pub fn reach_dns(&self, program: &PodProgram, server: SocketAddr) -> Reach {
        self.try_to(program, &["lookup", "kubernetes.default.svc.cluster.local.", &server.to_string()])
    }

    fn try_to(&self, program: &PodProgram, words: &[&str]) -> Reach {
        let mut enter = Command::new("nsenter");
        // Proxy settings must not apply in a pod's network.
        enter.env_clear().env("PATH", crate::node::path());
        enter.args(["--target", &self.pid().to_string(), "--net", "--"]).arg(&program.path).args(words);
        let output = enter.stdin(Stdio::null()).output();
        let output = output.unwrap_or_else(|error| panic!("failed to start nsenter: {error}"));
        reach(&String::from_utf8_lossy(&output.stderr))
    }
}

/// An error of HTTP, or bytes that are not HTTP, also count as an answer.
fn reach(said: &str) -> Reach {
    let says = |words: &[&str]| words.iter().any(|words| said.contains(words));
    if says(&["no route to host"]) {
        Reach::Forbidden
    } else if says(&["connection refused"]) {
        Reach::NobodyListens
    } else if says(&["i/o timeout", "Client.Timeout exceeded", "context deadline exceeded"]) {
        Reach::Lost
    } else {
        assert!(!says(&["nsenter: "]), "{said}");
        Reach::Answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_answer_is_told_apart() {
        let dial = |why: &str| reach(&format!("error: Get \"http://a/\": dial tcp 198.19.0.130:1: {why}\n"));
        assert_eq!(dial("no route to host"), Reach::Forbidden);
        assert_eq!(dial("connect: connection refused"), Reach::NobodyListens);
        assert_eq!(dial("i/o timeout"), Reach::Lost);
        let lookup =
            |why: &str| reach(&format!("error: lookup a on b: read udp 198.19.0.130:1->198.18.0.11:53: {why}\n"));
        assert_eq!(lookup("read: no route to host"), Reach::Forbidden);
        assert_eq!(lookup("i/o timeout"), Reach::Lost);
        assert_eq!(reach(""), Reach::Answered);
        assert_eq!(reach("error: http://a/ answers 404 Not Found\n"), Reach::Answered);
        assert_eq!(
            reach("error: Get \"http://a/\": net/http: HTTP/1.x transport connection broken\n"),
            Reach::Answered
        );
    }
}
