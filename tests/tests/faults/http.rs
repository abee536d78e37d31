//! Section 9: what the tests of the admission port share.

use portcullis_tests::{Canary, Folder, Pod, PodSetup, Policy, Raw, RawResponse};

/// A policy that denies everything; most requests of these tests must not reach it.
pub(crate) const DENIES: &str = "cluster/denies";

/// A pod with that policy and the canary.
pub(crate) struct Server {
    pub(crate) pod: Pod,
    pub(crate) canary: Canary,
    pub(crate) folder: Folder,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::with(|setup| setup)
    }

    pub(crate) fn with(change: impl FnOnce(PodSetup) -> PodSetup) -> Self {
        let folder = Folder::with_canary();
        folder.put(&Policy::cluster("denies").guest("always_deny"));
        folder.put(&Policy::cluster("no-privileged").example("no-privileged"));
        let pod = change(Pod::on(&folder)).start();
        pod.wait_current(DENIES, 1);
        pod.wait_current("cluster/no-privileged", 1);
        Self { canary: Canary::on(&pod), pod, folder }
    }

    /// A connection of its own.
    pub(crate) fn connect(&self) -> Raw {
        Raw::tls(self.pod.admission()).expect("connects")
    }

    /// One request on a connection of its own.
    pub(crate) fn send(&self, bytes: impl AsRef<[u8]>) -> RawResponse {
        let mut connection = self.connect();
        connection.send(bytes).expect("sends");
        connection.response().expect("answers")
    }

    /// How often the policy was asked.
    pub(crate) fn asked(&self) -> u64 {
        let count = |verdict: &str| {
            self.pod
                .metric(&format!("portcullis_policy_evaluations_total{{policy=\"{DENIES}\",verdict=\"{verdict}\"}}"))
        };
        ["allowed", "denied", "mutated", "error"].map(count).iter().sum::<f64>() as u64
    }

    /// I1 and I2, and nothing panicked.
    pub(crate) fn finish(self) {
        assert_eq!(self.pod.metric("portcullis_panics_total") as u64, 0);
        self.canary.finish(&self.pod);
    }
}

/// TRANSPORT of section 1: a plain error in the form that all errors have, no AdmissionReview. Gives the message.
pub(crate) fn assert_refused(response: &RawResponse, status: u16) -> String {
    assert_eq!(response.status, status, "{response:?}");
    let body: serde_json::Value = serde_json::from_str(&response.body).unwrap_or_default();
    assert_eq!(body["status"], status, "{response:?}");
    let message = body["message"].as_str().unwrap_or_default();
    assert!(!message.is_empty(), "{response:?}");
    message.to_owned()
}
