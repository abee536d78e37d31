//! The code that causes each fault.

use std::thread;
use std::time::Duration;

use portcullis_e2e::{Component, Container};
use serde_json::{Value, json};

use super::fault::{Fault, Part};
use super::stand::Stand;

/// The delay of a slow source.
const SLOW: Duration = Duration::from_millis(700);

/// A kubelet that starts treats containers that are younger than 10 s as new, so they are not ready until their first probe. If all replicas
/// are that young, the service has no endpoints, and Portcullis cannot prevent that.
const YOUNG: Duration = Duration::from_secs(11);

const LEASES: &str = "/apis/coordination.k8s.io/v1";
const WEBHOOKS: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";

/// A `timeoutSeconds` that a fault writes into webhooks.
pub(super) const ODD_TIMEOUT: u32 = 29;
/// A summary that a fault writes into statuses.
pub(super) const ODD_SUMMARY: &str = "99/99";

impl Stand {
    /// Causes a fault now. If the API server is not available, a fault that needs it may have no effect.
    pub(super) fn perform(&mut self, fault: &Fault) {
        match fault {
            Fault::KillContainer { program, replica } => {
                if let Some(pod) = nth(self.release.pods(), *replica) {
                    self.kill(&pod, program);
                }
            }
            Fault::FreezeContainer { program, replica, time } => {
                let container = nth(self.release.pods(), *replica).and_then(|pod| Container::of(&pod, program));
                let frozen = container.map(|container| container.freeze());
                thread::sleep(*time);
                drop(frozen);
            }
            Fault::DeletePod { replica, at_once } => {
                if let Some(pod) = nth(self.release.pods(), *replica) {
                    self.delete_pod(&pod, at_once.then_some(0));
                }
            }
            Fault::KillLeader => {
                let lease = format!("portcullis-{0}-controller", self.release.namespace());
                let holder = self.lease(&lease)["spec"]["holderIdentity"].clone();
                let mut pods = self.release.controllers();
                pods.retain(|pod| pod["metadata"]["name"] == holder);
                if let Some(pod) = pods.first() {
                    self.kill(pod, "controller");
                }
            }
            Fault::DeleteController { pod } => {
                if let Some(pod) = nth(self.release.controllers(), *pod) {
                    self.delete_pod(&pod, None);
                }
            }
            Fault::Scale { replicas } => {
                self.wanted = *replicas;
                self.release.scale(*replicas);
            }
            Fault::RestartRollout => self.restart("portcullis-policy-server", &self.mark()),
            Fault::UndoRollout => self.restart("portcullis-policy-server", &Value::Null),
            Fault::RestartControllers => self.restart("portcullis-controller", &self.mark()),
            Fault::RestartApiServer { is_killed } => {
                let server = Component::ApiServer(1);
                if *is_killed {
                    self.cluster.kill(server)
                } else {
                    self.cluster.stop(server)
                }
                self.cluster.start_again(server);
            }
            Fault::FreezePart { part, time } => {
                let component = component(*part);
                self.cluster.pause(component);
                thread::sleep(*time);
                self.cluster.resume(component);
            }
            Fault::RestartKubelet => {
                thread::sleep(YOUNG);
                self.cluster.restart_kubelet();
            }
            Fault::WhileSourceIsClosed { time, fault } => {
                self.release.source().close();
                self.perform(fault);
                thread::sleep(*time);
                self.release.source().open();
            }
            Fault::WhileSourceIsSlow { time, fault } => {
                self.release.source().slow(SLOW);
                self.perform(fault);
                thread::sleep(*time);
                self.release.source().slow(Duration::ZERO);
            }
            Fault::Edit { victim, edit } => self.victims[*victim].edit(self.release, *edit),
            Fault::EditWebhook { webhook } => self.edit_webhook(*webhook),
            Fault::EditStatus { victim } => {
                let path = format!("{}/status", self.victims[*victim].policy().path());
                let _ = self.release.api().patch(&path, &json!({ "status": { "summary": ODD_SUMMARY } }));
            }
            Fault::DeleteLease { lease } => {
                let path = format!("{LEASES}/namespaces/{}/leases", self.release.namespace());
                let list = self.release.api().get(&path).unwrap_or_default()["items"].take();
                if let Some(lease) = nth(list.as_array().cloned().unwrap_or_default(), *lease) {
                    let name = lease["metadata"]["name"].as_str().unwrap();
                    let _ = self.release.api().delete(&format!("{path}/{name}"), None);
                }
            }
            Fault::DeleteSecret { is_authority } => {
                let (namespace, kind) = (self.release.namespace(), if *is_authority { "ca" } else { "tls" });
                let path = format!("/api/v1/namespaces/{namespace}/secrets/portcullis-{namespace}-{kind}");
                let _ = self.release.api().delete(&path, None);
            }
            Fault::PolicyComes => self.apply(&self.passing),
            Fault::PolicyGoes => {
                let _ = self.release.api().delete(&self.passing.path(), None);
            }
        }
    }

    fn delete_pod(&self, pod: &Value, grace_seconds: Option<u32>) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let path = format!("/api/v1/namespaces/{}/pods/{name}", self.release.namespace());
        let _ = self.release.api().delete(&path, grace_seconds);
    }

    /// A value that is different each time.
    fn mark(&self) -> Value {
        self.start.elapsed().as_millis().to_string().into()
    }

    /// The patch of `kubectl rollout restart`, or with null that of a `kubectl rollout undo` after it.
    fn restart(&self, deployment: &str, mark: &Value) {
        let path = format!("/apis/apps/v1/namespaces/{}/deployments/{deployment}", self.release.namespace());
        let annotations = json!({ "kubectl.kubernetes.io/restartedAt": mark });
        let _ = self
            .release
            .api()
            .patch(&path, &json!({ "spec": { "template": { "metadata": { "annotations": annotations } } } }));
    }

    fn edit_webhook(&self, number: usize) {
        if let Some(mut webhook) = nth(self.release.webhooks(), number) {
            for entry in webhook["webhooks"].as_array_mut().into_iter().flatten() {
                entry["timeoutSeconds"] = ODD_TIMEOUT.into();
            }
            let name = webhook["metadata"]["name"].as_str().unwrap().to_owned();
            let patch = json!({ "webhooks": webhook["webhooks"] });
            let _ = self.release.api().patch(&format!("{WEBHOOKS}/{name}"), &patch);
        }
    }

    /// A Lease of the release, or null.
    fn lease(&self, name: &str) -> Value {
        let path = format!("{LEASES}/namespaces/{}/leases/{name}", self.release.namespace());
        self.release.api().get(&path).unwrap_or_default()
    }
}

fn component(part: Part) -> Component {
    match part {
        Part::ApiServer => Component::ApiServer(1),
        Part::Etcd => Component::Etcd,
        Part::ControllerManager => Component::ControllerManager,
        Part::Kubelet => Component::Kubelet,
        Part::KubeProxy => Component::KubeProxy,
    }
}

/// An element of a list, in the order of creation, by a number that may be larger than the list; `None` if the list is empty.
fn nth(mut list: Vec<Value>, number: usize) -> Option<Value> {
    let born = |object: &Value| {
        let text = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
        (text("creationTimestamp"), text("name"))
    };
    list.sort_by_key(born);
    let index = number.checked_rem(list.len())?;
    Some(list.swap_remove(index))
}
