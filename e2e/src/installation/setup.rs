//! The options of a pod.

use std::net::{Ipv4Addr, SocketAddr};

use crate::program::Program;

/// The options of a pod: what differs from the defaults.
#[derive(Debug, Clone, Default)]
pub struct PodSetup {
    pub(super) name: Option<String>,
    pub(super) args: Vec<(Program, String, String)>,
    pub(super) env: Vec<(Program, String, String)>,
    pub(super) servers: Vec<(Program, SocketAddr)>,
    pub(super) without: Vec<Program>,
    pub(super) siblings: Option<Vec<Ipv4Addr>>,
    pub(super) is_probed_rarely: bool,
}

impl PodSetup {
    /// Names the pod, even if an earlier pod had this name.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        self.name = Some(name.to_owned());
        self
    }

    /// Sets a flag of a program, instead of the rig's own value.
    #[must_use]
    pub fn flag(mut self, program: Program, flag: &str, value: impl ToString) -> Self {
        self.args.push((program, flag.to_owned(), value.to_string()));
        self
    }

    /// Sets an environment variable of a program.
    #[must_use]
    pub fn env(mut self, program: Program, name: &str, value: &str) -> Self {
        self.env.push((program, name.to_owned(), value.to_owned()));
        self
    }

    /// Arms fail points: `reporter.after_write=exit`.
    #[must_use]
    pub fn fail_points(self, program: Program, points: &str) -> Self {
        self.env(program, "PORTCULLIS_FAILPOINTS", points)
    }

    /// Makes a program use the API server at this address, for instance that of a [`crate::Proxy`].
    #[must_use]
    pub fn through(mut self, program: Program, address: SocketAddr) -> Self {
        self.servers.push((program, address));
        self
    }

    /// Makes its loader serve other loaders, and ask those of the pods at these addresses, with the certificates that the controller
    /// makes for loaders.
    #[must_use]
    pub fn with_siblings(mut self, others: &[Ipv4Addr]) -> Self {
        self.siblings = Some(others.to_vec());
        self
    }

    /// Makes its kubelet check the containers once a second and the object every five seconds, about as often as real ones. By default
    /// it does so several times a second, which is too much for the machine if there are dozens of pods.
    #[must_use]
    pub fn probed_rarely(mut self) -> Self {
        self.is_probed_rarely = true;
        self
    }

    /// Leaves a program out.
    #[must_use]
    pub fn without(mut self, program: Program) -> Self {
        self.without.push(program);
        self
    }

    pub(super) fn or_name(mut self, name: impl FnOnce() -> String) -> Self {
        self.name.get_or_insert_with(name);
        self
    }
}
