//! An installation with a controller whose pauses are short, and a namespace for the objects of a test.

use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{
    Canary, IN_TIME, Installation, InstallationOptions, Issuer, Pod, PodSetup, Policy, Program, Right, condition,
    eventually,
};
use serde_json::{Value, json};

use crate::cluster;

pub(crate) struct Scene {
    pub(crate) installation: Installation<'static>,
    pub(crate) namespace: String,
    pub(crate) controller: Arc<Pod>,
}

/// A controller with pauses that are short, but long enough for API servers and pods to follow within each of them on a busy machine.
pub(crate) fn quick() -> PodSetup {
    PodSetup::default()
        .flag(Program::Controller, "--waiting-event", "3s")
        .flag(Program::Controller, "--ca-pause", humantime::format_duration(PAUSE))
        .flag(Program::Controller, "--tls-pause", humantime::format_duration(PAUSE))
}

impl Scene {
    /// An installation with this many replicas, all ready.
    pub(crate) fn new(name: &str, replicas: usize) -> Self {
        Self::with(name, replicas, quick())
    }

    /// The same as [`Scene::new`], with this setup of the controller.
    pub(crate) fn with(name: &str, replicas: usize, controller: PodSetup) -> Self {
        let installation = Installation::start(cluster(), InstallationOptions::named(name));
        let controller = installation.start_controller_with(controller);
        (0..replicas).for_each(|_| drop(installation.add_replica()));
        if replicas > 0 {
            installation.wait_ready();
        }
        let namespace = installation.make_namespace("team");
        Self { installation, namespace, controller }
    }

    /// Creates a pod with this name. The error is what kubectl prints.
    pub(crate) fn create(&self, name: &str) -> Result<(), String> {
        let output = self.installation.create_pod(&self.namespace, name, &json!({}));
        if output.is_ok() { Ok(()) } else { Err(output.stderr) }
    }

    /// Creates a pod in a dry run, and returns the status and the message of the API server.
    pub(crate) fn try_pod(&self) -> (u16, String) {
        self.installation.try_pod(&self.namespace)
    }

    /// Calls [`Scene::try_pod`] 50 times a second, one call after the other, while `act` runs, and returns the answers. Each answer must come in
    /// time.
    pub(crate) fn try_pods_during(&self, act: impl FnOnce()) -> Vec<(u16, String)> {
        self.try_pods_within(IN_TIME, act)
    }

    /// The same as [`Scene::try_pods_during`], with another time limit for each answer.
    pub(crate) fn try_pods_within(&self, limit: Duration, act: impl FnOnce()) -> Vec<(u16, String)> {
        let (done, listener) = (AtomicBool::new(false), self.installation.listener());
        let heard = thread::scope(|scope| {
            let trying = scope.spawn(|| listener.hear(limit, &done, || self.try_pod()));
            let stop = Stop(&done);
            act();
            drop(stop);
            trying.join().expect("an API server answers")
        });
        heard.in_time()
    }

    /// A canary whose pods are denied with this text.
    pub(crate) fn denied_canary(&self, text: &str) -> Canary {
        self.installation.canary(&self.namespace, Right::Denied(text.to_owned()))
    }

    /// Waits until there are this many webhook configurations, and returns them.
    pub(crate) fn webhooks(&self, count: usize) -> Vec<Value> {
        eventually(&format!("{count} webhook configurations"), || {
            Some(self.installation.webhooks()).filter(|webhooks| webhooks.len() == count)
        })
    }

    /// Waits until the policy's webhook condition has this reason for the newest generation, and returns the condition.
    pub(crate) fn wait_reason(&self, policy: &Policy, reason: &str) -> Value {
        let object = self.installation.wait_for_object(policy, &format!("WebhookConfigured with {reason}"), |object| {
            condition(object, "WebhookConfigured").is_some_and(|found| {
                found["reason"] == reason && found["observedGeneration"] == object["metadata"]["generation"]
            })
        });
        condition(&object, "WebhookConfigured").cloned().unwrap_or_default()
    }

    /// The path of a webhook configuration.
    pub(crate) fn path(webhook: &Value) -> String {
        let kind = match webhook["kind"].as_str() {
            Some("MutatingWebhookConfiguration") => "mutatingwebhookconfigurations",
            // Items of a list have no kind.
            _ if !webhook["webhooks"][0]["reinvocationPolicy"].is_null() => "mutatingwebhookconfigurations",
            _ => "validatingwebhookconfigurations",
        };
        let name = webhook["metadata"]["name"].as_str().unwrap_or_default();
        format!("/apis/admissionregistration.k8s.io/v1/{kind}/{name}")
    }

    /// Deletes a policy and waits until it is gone.
    pub(crate) fn delete(&self, policy: &Policy) {
        self.installation.api().delete(&policy.path(), None).expect("an answer").expect("the deletion");
        eventually("the end of the policy", || self.installation.object(policy).is_none().then_some(()));
    }
}

/// Makes a replica trust another authority than that of the source, so that it can fetch nothing. The result undoes that.
pub(crate) fn distrust(replica: &Pod) -> impl FnOnce() + use<> {
    let authorities = replica.folder().join("source-ca.pem");
    let right = fs::read(&authorities).expect("the authorities of sources");
    let [.., (_, other)] = Issuer::new("somebody else").issue("distrust", Duration::from_secs(3600));
    fs::write(&authorities, other).expect("another authority");
    move || fs::write(&authorities, right).expect("the right authorities")
}

/// Ends the creation of pods when it is dropped, so also when the test fails.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// A rule on the creation of these resources of the core group.
pub(crate) fn rules(resources: &[&str]) -> Value {
    json!([{ "apiGroups": [""], "apiVersions": ["v1"], "resources": resources, "operations": ["CREATE"] }])
}

/// The time that API servers have to take over a new authority, and pods a new certificate.
pub(crate) const PAUSE: Duration = Duration::from_secs(15);

/// The time limit for the repair of a webhook, on a machine that may stall for seconds.
pub(crate) const REPAIR: Duration = Duration::from_secs(60);
