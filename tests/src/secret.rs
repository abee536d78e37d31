//! I4: secrets are planted in the product's inputs, and its outputs are searched for them.

use std::cell::RefCell;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::{Pod, Program};

thread_local! {
    /// The secrets of the test that runs in this thread.
    static PLANTED: RefCell<Vec<Secret>> = const { RefCell::new(Vec::new()) };
}

/// A text that does not occur anywhere else.
#[derive(Debug, Clone)]
pub struct Secret(String);

impl Secret {
    /// A new secret; `name` says in a failed test where it was planted. At the end of each pod of the test with a canary, it must not be in
    /// any log, metric or health check.
    pub fn planted_in(name: &str) -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let secret = Self(format!("s3cr3t-{name}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed)));
        PLANTED.with_borrow_mut(|planted| planted.push(secret.clone()));
        secret
    }

    /// Asserts that none of the secrets that this test has planted is in a log, a metric or a health check.
    ///
    /// # Panics
    /// When one of them is.
    pub(crate) fn assert_none_logged(pod: &Pod) {
        let said = said(pod);
        for secret in PLANTED.with_borrow(Clone::clone) {
            secret.assert_not_said(&said);
        }
    }

    /// An existing secret.
    pub fn known(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Asserts that the secret is not in any log, metric or health check.
    ///
    /// # Panics
    /// When it is.
    pub fn assert_not_logged(&self, pod: &Pod) {
        self.assert_not_said(&said(pod));
    }

    fn assert_not_said(&self, said: &[(String, String)]) {
        for (place, text) in said {
            self.assert_not_in(place, text);
        }
    }

    /// Asserts that the secret is not in any log, metric, health check, state or status file.
    ///
    /// # Panics
    /// When it is.
    pub fn assert_nowhere(&self, pod: &Pod) {
        self.assert_not_logged(pod);
        let states = [format!("{:?}", pod.evaluator_state()), format!("{:?}", pod.loader_state())];
        for state in states {
            self.assert_not_in("a state", &state);
        }
        self.assert_not_below(&pod.path("status"));
    }

    /// Asserts that the secret is not in any file below a folder.
    ///
    /// # Panics
    /// When it is.
    pub fn assert_not_below(&self, folder: &Path) {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            if path.is_dir() {
                self.assert_not_below(&path);
            } else if let Ok(bytes) = fs::read(&path) {
                self.assert_not_in(&path.display().to_string(), &String::from_utf8_lossy(&bytes));
            }
        }
    }

    /// Asserts that the secret is not in a text.
    ///
    /// # Panics
    /// When it is.
    pub fn assert_not_in(&self, place: &str, text: &str) {
        assert!(!text.contains(&self.0), "the secret {} is in {place}: {text}", self.0);
    }
}

/// The logs, metrics and health checks of a pod's programs: the name of each, and its text.
fn said(pod: &Pod) -> Vec<(String, String)> {
    let mut said = Vec::new();
    for process in pod.processes() {
        said.extend(process.lines().into_iter().map(|line| (format!("the log of {}", process.name()), line)));
    }
    for program in [Program::Evaluator, Program::Loader, Program::Reporter] {
        for path in ["/metrics", "/healthz/policies?verbose", "/readyz?verbose"] {
            if let Ok(answer) = pod.probe(program, path) {
                said.push((format!("{path} of {program}"), answer.body));
            }
        }
    }
    said
}
