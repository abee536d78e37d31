//! The release that tests share, and the turns of tests on it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;

use portcullis_e2e::{Answer, Cluster, Helm, Output, Release, Site, note, skip};
use portcullis_testkit::lock;
use serde_json::{Value, json};

/// The number of replicas at the start of a test.
pub(crate) const REPLICAS: usize = 3;

/// The number of controllers, which the chart has by default.
pub(crate) const CONTROLLERS: usize = 2;

static SITE: LazyLock<Site> = LazyLock::new(Site::from_env);

static SHARED: LazyLock<Release<'static>> = LazyLock::new(|| {
    let release = Release::new(&SITE, "portcullis");
    let installed = release.install(&json!({}));
    if !installed.is_ok() {
        let folder = release.keep("install");
        panic!("helm does not install, see {}:\n{}{}", folder.display(), installed.stdout, installed.stderr);
    }
    release
});

/// The cluster of all tests.
pub(crate) fn site() -> &'static Site {
    &SITE
}

/// A release for one test beside the shared one. It must not install the definitions again: set `crds.install: false`.
pub(crate) fn second_release(name: &str) -> Release<'static> {
    LazyLock::force(&SHARED);
    Release::new(&SITE, name)
}

/// The release that tests share, for a test that has one beside it.
pub(crate) fn shared() -> &'static Release<'static> {
    &SHARED
}

/// The turn of a test, in which no other test uses the cluster. The next turn starts without its policies.
pub(crate) struct Stage {
    release: &'static Release<'static>,
    test: &'static str,
    _evidence: Evidence<'static>,
    _turn: MutexGuard<'static, ()>,
}

/// Upgrades the shared release to these values, unless it has them already.
fn set(release: &Release<'_>, values: &Value) {
    /// The current values; null after an upgrade that failed.
    static SETTINGS: LazyLock<Mutex<Value>> = LazyLock::new(|| Mutex::new(json!({})));
    let mut settings = lock(&SETTINGS);
    if *settings != *values {
        *settings = Value::Null;
        release.upgrade(&Helm::chart().display().to_string(), values).expect("other settings");
        *settings = values.clone();
    }
}

/// Waits for the turn of a test.
pub(crate) fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    lock(&TURN)
}

impl Stage {
    /// Waits for the test's turn on the release with the usual values, all replicas ready, and no policy.
    pub(crate) fn new(test: &'static str) -> Self {
        Self::with(test, &json!({}))
    }

    /// The same with other values of the chart. The next test sets its own again.
    pub(crate) fn with(test: &'static str, values: &Value) -> Self {
        let turn = turn();
        let release = &*SHARED;
        release.begin_test();
        // An earlier test may have failed in the middle.
        release.source().open();
        release.delete_policies();
        release.scale(REPLICAS);
        set(release, values);
        release.wait_for_replicas(REPLICAS);
        Self { release, test, _evidence: Evidence { release, test }, _turn: turn }
    }

    /// The release.
    pub(crate) fn release(&self) -> &'static Release<'static> {
        self.release
    }

    /// Upgrades the release to other values.
    pub(crate) fn set(&self, values: &Value) {
        set(self.release, values);
    }

    /// A namespace for pods of this test.
    pub(crate) fn namespace(&self) -> String {
        self.release.make_namespace(self.test)
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.release.end_test();
    }
}

/// Keeps objects, events and logs of a release if the test fails.
pub(crate) struct Evidence<'r> {
    pub(crate) release: &'r Release<'static>,
    pub(crate) test: &'static str,
}

impl Drop for Evidence<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let folder = self.release.keep(self.test);
            eprintln!("objects, events and logs are kept in {}", folder.display());
        }
    }
}

/// The cluster, if its node runs on this machine. If not, `what` of this test is marked as skipped, because it needs access to the node.
pub(crate) fn own_cluster(what: &str) -> Option<&'static Cluster> {
    let own = SITE.own_cluster();
    if own.is_none() {
        skip(&format!("{what} is not tried: it takes a node that is a process of this machine"));
    }
    own
}

/// Asserts that a request was denied, and that kubectl shows this text.
pub(crate) fn assert_denied(output: &Output, text: &str) {
    assert!(!output.is_ok() && output.stderr.contains("denied the request: "), "{output:?}");
    assert!(output.stderr.contains(text), "{output:?}");
}

/// Asserts that there were enough calls and that all of them got this status. Logs how many there were, and how long the slowest took.
pub(crate) fn assert_all(answers: &[Answer], code: u16) {
    let slowest = answers.iter().map(|answer| answer.answered - answer.sent).max().unwrap_or_default();
    note(&format!("{} calls, the slowest answered after {slowest:.1?}", answers.len()));
    let others: Vec<_> = answers.iter().filter(|answer| answer.code != Some(code)).collect();
    assert!(others.is_empty(), "{} of {} calls: {:?}", others.len(), answers.len(), others[0]);
    assert!(answers.len() > 20, "{} calls prove nothing", answers.len());
}

/// Whether the status of a policy has an entry for each of these pods, and for no other. A status that nobody writes any longer can have
/// the right counts, and pods of a StatefulSet have the names of those before them, so uids are compared.
pub(crate) fn is_about(object: &Value, pods: &[Value]) -> bool {
    let uid = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let entries = object["status"]["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
    let reported: BTreeSet<_> = entries.iter().map(|entry| uid(&entry["podUID"])).collect();
    let there: BTreeSet<_> = pods.iter().map(|pod| uid(&pod["metadata"]["uid"])).collect();
    reported == there
}

/// The address of a pod.
pub(crate) fn address(pod: &Value) -> IpAddr {
    pod["status"]["podIP"].as_str().unwrap().parse().unwrap()
}

/// The names of pods.
pub(crate) fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
