//! The release that tests share, and one test's turn on it.

use std::sync::{LazyLock, Mutex, MutexGuard};
use std::thread;

use portcullis_e2e::{Answer, Cluster, Helm, Output, Release, Site, note, skip};
use portcullis_testkit::lock;
use serde_json::{Value, json};

/// How many replicas a test finds.
pub(crate) const REPLICAS: usize = 3;

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

/// A release of a test's own, beside the shared one, which has the definitions: say `crds.install: false`.
pub(crate) fn second_release(name: &str) -> Release<'static> {
    LazyLock::force(&SHARED);
    Release::new(&SITE, name)
}

/// One test's turn: nobody else does anything on the cluster meanwhile. Policies end with it.
pub(crate) struct Stage {
    release: &'static Release<'static>,
    test: &'static str,
    _evidence: Evidence<'static>,
    _turn: MutexGuard<'static, ()>,
}

/// `helm upgrade` of the shared release, unless it has these settings.
fn set(release: &Release<'_>, values: &Value) {
    /// Those that it has; nothing after an upgrade that failed.
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
    /// The release as all tests have it, with all replicas ready and no policy.
    pub(crate) fn new(test: &'static str) -> Self {
        Self::with(test, &json!({}))
    }

    /// The same with other settings of the chart. The next test that wants others sets them.
    pub(crate) fn with(test: &'static str, values: &Value) -> Self {
        let turn = turn();
        let release = &*SHARED;
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

    /// `helm upgrade` to other settings.
    pub(crate) fn set(&self, values: &Value) {
        set(self.release, values);
    }

    /// A namespace for pods of this test.
    pub(crate) fn namespace(&self) -> String {
        self.release.make_namespace(self.test)
    }
}

/// Keeps what tells why, when a test with a release of its own fails.
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

/// The cluster, where its node is this machine's; where it is not, `what` of this test is skipped, as it looks into the node.
pub(crate) fn own_cluster(what: &str) -> Option<&'static Cluster> {
    let own = SITE.own_cluster();
    if own.is_none() {
        skip(&format!("{what} is not tried: it takes a node that is a process of this machine"));
    }
    own
}

/// Asserts that a request was refused with this text among kubectl's words.
pub(crate) fn assert_denied(output: &Output, text: &str) {
    assert!(!output.is_ok() && output.stderr.contains("denied the request: "), "{output:?}");
    assert!(output.stderr.contains(text), "{output:?}");
}

/// Asserts that there were some calls and that every one of them got this status. Writes how many there were, and how long the slowest took.
pub(crate) fn assert_all(answers: &[Answer], code: u16) {
    let slowest = answers.iter().map(|answer| answer.answered - answer.sent).max().unwrap_or_default();
    note(&format!("{} calls, the slowest answered after {slowest:.1?}", answers.len()));
    let others: Vec<_> = answers.iter().filter(|answer| answer.code != Some(code)).collect();
    assert!(others.is_empty(), "{} of {} calls: {:?}", others.len(), answers.len(), others[0]);
    assert!(answers.len() > 20, "{} calls prove nothing", answers.len());
}

/// The names of pods.
pub(crate) fn names(pods: &[Value]) -> Vec<String> {
    pods.iter().map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned()).collect()
}
