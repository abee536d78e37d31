//! A pod for tests of the ports: one policy that denies, one that decides, and the canary.

use crate::{Folder, Pod, PodSetup, Policy, Raw, RawResponse};

/// A policy that denies everything; most requests of tests of the ports must not reach it.
pub const DENIES: &str = "cluster/denies";

/// A pod with [`DENIES`], the example `no-privileged`, and the canary.
pub struct Server {
    /// The pod.
    pub pod: Pod,
    /// The pod's folder.
    pub folder: Folder,
}

impl Server {
    /// Starts the pod.
    pub fn start() -> Self {
        Self::with(|setup| setup)
    }

    /// Starts the pod with another setup.
    pub fn with(change: impl FnOnce(PodSetup) -> PodSetup) -> Self {
        let folder = Folder::with_canary();
        folder.put(&Policy::cluster("denies").guest("always_deny"));
        folder.put(&Policy::cluster("no-privileged").example("no-privileged"));
        let pod = change(Pod::on(&folder)).start();
        pod.wait_current(DENIES, 1);
        pod.wait_current("cluster/no-privileged", 1);
        Self { pod, folder }
    }

    /// A new connection.
    ///
    /// # Panics
    /// When it is refused.
    pub fn connect(&self) -> Raw {
        Raw::tls(self.pod.admission()).expect("connects")
    }

    /// Sends one request on a new connection.
    ///
    /// # Panics
    /// When it is not answered.
    pub fn send(&self, bytes: impl AsRef<[u8]>) -> RawResponse {
        let mut connection = self.connect();
        connection.send(bytes).expect("sends");
        connection.response().expect("answers")
    }

    /// How often the policy was asked.
    pub fn asked(&self) -> u64 {
        let count = |verdict: &str| {
            self.pod
                .metric(&format!("portcullis_policy_evaluations_total{{policy=\"{DENIES}\",verdict=\"{verdict}\"}}"))
        };
        ["allowed", "denied", "mutated", "error"].map(count).iter().sum::<f64>() as u64
    }

    /// Asserts that no program panicked, and ends the pod.
    ///
    /// # Panics
    /// When one did, or an invariant does not hold.
    pub fn finish(self) {
        assert_eq!(self.pod.metric("portcullis_panics_total") as u64, 0);
    }
}
