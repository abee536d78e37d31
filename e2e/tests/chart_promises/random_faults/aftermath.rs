//! Assertions after the last fault.

use std::thread;
use std::time::{Duration, Instant};

use portcullis_e2e::{condition, eventually, probe_ports};
use serde_json::{Value, json};

use super::attempts::Attempts;
use super::effect::{ODD_SUMMARY, ODD_TIMEOUT};
use super::stand::Stand;
use super::usage::Usages;
use super::victim::SECRET;
use crate::stage::{REPLICAS, names};

/// How long nothing may change.
const QUIET: Duration = Duration::from_secs(2);

impl Stand {
    /// Ends every fault, and asserts that everything recovers without help: statuses are right, nothing is left of deleted objects, no
    /// secret was logged, nothing changes any longer, and no program uses much more than before. Returns what happened, as a text.
    pub(super) fn recover(&mut self) -> String {
        self.calm();
        self.wait_for_status();
        self.look();
        let run = self.start.elapsed();
        self.end_calls();
        self.wait_for_no_trace();
        self.wait_for_quiet();
        let after = Usages::back_to(&self.before, self.release);
        let attempts = Attempts::since(self.start, self.release.source());
        attempts.assert_bounded();
        self.look_for_secrets();
        self.tally.text(run, self.excuses.total(Instant::now()), (&self.before, &after), &attempts)
    }

    /// Waits until every policy is Ready on all replicas, and its status only names pods that exist.
    fn wait_for_status(&self) {
        let api = self.release.api();
        for policy in self.victims.iter().map(|victim| victim.policy()).chain([&self.canary]) {
            policy.wait_until(&api, "a status that is true", |object| {
                let status = &object["status"];
                let is = |kind: &str, value: &str| {
                    condition(object, kind).is_some_and(|found| {
                        found["status"] == value && found["observedGeneration"] == object["metadata"]["generation"]
                    })
                };
                let pods = names(&self.release.pods());
                let entries = status["replicas"].as_array().map(Vec::as_slice).unwrap_or_default();
                is("Ready", "True")
                    && is("Enforced", "True")
                    && is("Degraded", "False")
                    && is("WebhookConfigured", "True")
                    && status["replicaCounts"]["current"] == REPLICAS
                    && status["summary"] == format!("{REPLICAS}/{REPLICAS}")
                    && entries.iter().all(|entry| pods.iter().any(|pod| entry["pod"] == **pod))
            });
        }
    }

    /// Waits until nothing is left of deleted pods and policies, or of the faults' edits of webhooks.
    fn wait_for_no_trace(&self) {
        let (api, namespace) = (self.release.api(), self.release.namespace());
        let list = |path: &str| api.get(path).unwrap_or_default()["items"].as_array().cloned().unwrap_or_default();
        let sorted = |mut names: Vec<String>| {
            names.sort();
            names
        };
        eventually("a report of each pod, and no other", || {
            let reports =
                list(&format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{namespace}/replicareports"));
            (sorted(names(&reports)) == sorted(names(&self.release.pods()))).then_some(())
        });
        eventually("webhooks as they were", || {
            let webhooks = self.release.webhooks();
            let mut entries = webhooks.iter().flat_map(|webhook| webhook["webhooks"].as_array().into_iter().flatten());
            entries.all(|entry| entry["timeoutSeconds"] != ODD_TIMEOUT).then_some(())
        });
        eventually("an authority and a certificate", || {
            let is_there =
                |kind| api.get(&format!("/api/v1/namespaces/{namespace}/secrets/portcullis-{namespace}-{kind}"));
            ["ca", "tls"].into_iter().all(|kind| is_there(kind).is_some()).then_some(())
        });
        eventually("holders of the Leases that are there", || {
            let leases = list(&format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"));
            let pods = names(&[self.release.pods(), self.release.controllers()].concat());
            let is_held = |lease: &Value| pods.iter().any(|pod| lease["spec"]["holderIdentity"] == **pod);
            (leases.len() >= 2 && leases.iter().all(is_held)).then_some(())
        });
        eventually("the end of a policy that was deleted", || {
            let gone = api.read(&self.passing.path()).is_ok_and(|reply| reply.code == 404);
            let service = json!({
                "apiVersion": "v1", "kind": "Service", "metadata": { "generateName": "asked-" },
                "spec": { "ports": [{ "port": 80 }] },
            });
            let path = format!("/api/v1/namespaces/{}/services?dryRun=All", self.namespace);
            (gone && api.create(&path, &service).is_ok_and(|reply| reply.is_ok())).then_some(())
        });
    }

    /// Waits until policies and webhooks no longer change.
    fn wait_for_quiet(&self) {
        let api = self.release.api();
        let versions = || {
            let paths = self.victims.iter().map(|victim| victim.policy().path()).chain([self.canary.path()]);
            let policies = paths.map(|path| api.get(&path).unwrap_or_default());
            policies
                .chain(self.release.webhooks())
                .map(|object| object["metadata"]["resourceVersion"].clone())
                .collect()
        };
        let mut before: Vec<Value> = versions();
        eventually("two seconds without a change", || {
            thread::sleep(QUIET);
            let now = versions();
            let is_quiet = now == before;
            before = now;
            is_quiet.then_some(())
        });
    }

    /// Asserts that the content of objects and settings is not in logs, metrics, events, statuses or reports.
    pub(super) fn look_for_secrets(&self) {
        let kubectl = |args: &[&str]| self.release.kubectl(args.iter().copied()).expect("the output").to_owned();
        for app in ["portcullis-policy-server", "portcullis-controller"] {
            let selector = format!("app.kubernetes.io/name={app}");
            let logs =
                kubectl(&["logs", "--selector", &selector, "--all-containers", "--tail=-1", "--max-log-requests=30"]);
            assert!(!logs.is_empty(), "no logs of {app}");
            assert!(!logs.contains(SECRET), "{app} tells a secret in its logs");
        }
        for pod in [self.release.pods(), self.release.controllers()].concat() {
            let name = pod["metadata"]["name"].as_str().unwrap();
            // The logs of containers that were killed, as far as the kubelet keeps them.
            for status in pod["status"]["containerStatuses"].as_array().into_iter().flatten() {
                let container = status["name"].as_str().unwrap();
                if status["lastState"]["terminated"].is_object() {
                    let logs = kubectl(&["logs", name, "--container", container, "--previous"]);
                    assert!(!logs.contains(SECRET), "{container} of {name} told a secret in its logs");
                }
            }
            for port in probe_ports(&pod) {
                let what = format!("the metrics of {name}:{port}");
                let metrics = eventually(&what, || self.release.metrics(&pod, port));
                assert!(metrics.contains("portcullis_build_info"), "{what}: {metrics}");
                assert!(!metrics.contains(SECRET), "{what} tell a secret");
            }
        }
        let told = kubectl(&["get", "events,replicareports", "--all-namespaces", "--output=json"]);
        assert!(!told.contains(SECRET), "events or reports tell a secret");
        for victim in &self.victims {
            let object = self.release.api().get(&victim.policy().path()).unwrap();
            assert!(!object["status"].to_string().contains(SECRET), "{:#}", object["status"]);
            assert_ne!(object["status"]["summary"], ODD_SUMMARY);
        }
    }
}
