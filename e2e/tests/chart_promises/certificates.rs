//! Certificates of a release: in Secrets, in webhooks, and as its pods report them.

use std::collections::BTreeSet;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use portcullis_e2e::{Issuer, Release, eventually};
use serde_json::{Map, Value, json};

use crate::stage::names;

/// The interval at which pods are checked: often enough for changes that take seconds, and without much load.
const PACE: Duration = Duration::from_millis(200);

/// The certificates of a release, whose namespace and policy server have the same name.
#[derive(Clone, Copy)]
pub(crate) struct Certificates<'r>(pub(crate) &'r Release<'static>);

impl Certificates<'_> {
    /// The name of a Secret.
    pub(crate) fn name(self, kind: &str) -> String {
        format!("portcullis-{}-{kind}", self.0.namespace())
    }

    fn path(self, kind: &str) -> String {
        format!("/api/v1/namespaces/{}/secrets/{}", self.0.namespace(), self.name(kind))
    }

    /// A value of a Secret (`ca`, `tls`, `external`, `siblings`) as text; empty if the Secret does not have it.
    pub(crate) fn text(self, kind: &str, key: &str) -> String {
        let secret = self.0.api().get(&self.path(kind)).unwrap_or_default();
        let bytes = secret["data"][key].as_str().map(|text| STANDARD.decode(text).unwrap());
        bytes.map(|bytes| String::from_utf8(bytes).unwrap()).unwrap_or_default()
    }

    /// Replaces a value of a Secret.
    pub(crate) fn spoil(self, kind: &str, key: &str, text: &str) {
        let data = json!({ "data": { key: STANDARD.encode(text) } });
        self.0.api().patch(&self.path(kind), &data).unwrap().expect("a spoiled Secret");
    }

    /// Removes a Secret.
    pub(crate) fn delete(self, kind: &str) {
        self.0.api().delete(&self.path(kind), None).unwrap().expect("a deleted Secret");
    }

    /// Writes an external Secret, with a certificate that is valid for this long.
    pub(crate) fn put(self, issuer: &Issuer, left: Duration) {
        let texts = issuer.issue(self.0.namespace(), left);
        let data: Map<String, Value> =
            texts.iter().map(|(key, text)| ((*key).to_owned(), STANDARD.encode(text).into())).collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data,
            "metadata": { "name": self.name("external") },
        });
        self.0.api().apply(&self.path("external"), "somebody-else", &secret).unwrap().expect("the Secret");
    }

    /// The `caBundle` of each entry of each webhook configuration.
    pub(crate) fn bundles(self) -> Vec<String> {
        let entries = |webhook: Value| webhook["webhooks"].as_array().cloned().unwrap_or_default();
        let bundle = |entry: Value| {
            let text = entry["clientConfig"]["caBundle"].as_str().unwrap_or_default().to_owned();
            String::from_utf8(STANDARD.decode(text).unwrap()).unwrap()
        };
        self.0.webhooks().into_iter().flat_map(entries).map(bundle).collect()
    }

    /// Asserts that every webhook trusts all of these authorities.
    pub(crate) fn assert_trusted(self, authorities: &[&str]) {
        let bundles = self.bundles();
        let trusts = |bundle: &String| authorities.iter().all(|authority| bundle.contains(authority));
        assert!(!bundles.is_empty() && bundles.iter().all(trusts), "{authorities:?} are not all in {bundles:#?}");
    }

    /// The end of the certificate that each pod has loaded last, by its log.
    fn taken(self) -> BTreeSet<String> {
        let ends = |line: &str| {
            let entry: Value = serde_json::from_str(line).ok()?;
            (entry["message"] == "certificate taken").then(|| entry["ends"].as_str().unwrap_or_default().to_owned())
        };
        let of_pod = |name: &String| {
            let path = format!("/api/v1/namespaces/{}/pods/{name}/log?container=evaluator", self.0.namespace());
            let (_, log) = self.0.api().text(&path).unwrap();
            log.lines().rev().find_map(ends).unwrap_or_default()
        };
        names(&self.0.pods()).iter().map(of_pod).collect()
    }

    /// Waits until all pods have loaded a certificate other than the one with this end, and returns its end. Annotates the pods in the meantime,
    /// so that kubelets update their Secrets as early as possible, and calls `look` each time.
    pub(crate) fn wait_taken(self, other_than: &str, mut look: impl FnMut()) -> String {
        let mut count = 0_u32;
        eventually("another certificate in all pods", || {
            count += 1;
            for name in names(&self.0.pods()) {
                let path = format!("/api/v1/namespaces/{}/pods/{name}", self.0.namespace());
                let note = json!({ "metadata": { "annotations": { "portcullis-test/look": count.to_string() } } });
                self.0.api().patch(&path, &note).unwrap().expect("an annotated pod");
            }
            look();
            std::thread::sleep(PACE);
            let mut taken = self.taken();
            let one = taken.pop_first().filter(|one| taken.is_empty() && !one.is_empty());
            one.filter(|one| one != other_than)
        })
    }

    /// The health check of the certificate in each pod's evaluator: status and text.
    pub(crate) fn health(self) -> Vec<(u16, String)> {
        let of_pod = |name: &String| {
            let path = format!("/api/v1/namespaces/{}/pods/{name}:8081/proxy", self.0.namespace());
            self.0.api().text(&format!("{path}/healthz/certificate")).unwrap()
        };
        names(&self.0.pods()).iter().map(of_pod).collect()
    }
}
