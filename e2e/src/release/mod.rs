//! The chart in a cluster, installed by the real Helm, as users install it.

mod container;
mod keep;
mod load;
mod metrics;
mod network_policies;
mod own_canary;
mod reach;

use std::time::Duration;

use serde_json::{Value, json};

pub use container::{Container, Frozen};
pub use load::{Answer, Load};
pub use metrics::probe_ports;
pub use reach::Reach;

use crate::api::Api;
use crate::canary_check::CanaryCheck;
use crate::helm::Helm;
use crate::installation::{Policy, SERVICE};
use crate::json::merge;
use crate::site::Site;
use crate::source::Source;
use crate::{Cluster, Output, Rules, eventually_within};

/// How long pods may take to start, all of them, on a busy machine.
const START: Duration = Duration::from_secs(600);

/// How long helm may take.
const HELM_LIMIT: &str = "10m";

/// A release of the chart. Namespace, release and policy server have the same name. It stays when this is dropped. A test that is named after
/// a row of the fault catalogue must have called its evaluators meanwhile, with a canary or a load, or have said why not
/// ([`Release::without_canary`]).
pub struct Release<'s> {
    site: &'s Site,
    name: String,
    source: Source,
    canary_check: CanaryCheck,
}

impl<'s> Release<'s> {
    /// A release that is not installed yet, in a new namespace that enforces the strictest Pod Security Standard.
    ///
    /// # Panics
    /// When the API server refuses the namespace.
    pub fn new(site: &'s Site, name: &str) -> Self {
        let labels = json!({ "pod-security.kubernetes.io/enforce": "restricted" });
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
        });
        put(site, &format!("/api/v1/namespaces/{name}"), &namespace);
        Self { site, name: name.to_owned(), source: site.start_source(), canary_check: CanaryCheck::default() }
    }

    /// The cluster.
    pub fn site(&self) -> &'s Site {
        self.site
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.name
    }

    /// The source of modules for its policies.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// The API of the cluster, as an administrator.
    pub fn api(&self) -> Api {
        self.site.api()
    }

    /// `helm install` of the repository's chart, which waits until all is ready.
    pub fn install(&self, values: &Value) -> Output {
        self.install_chart(&Helm::chart().display().to_string(), values)
    }

    /// `helm install` of a chart, which waits until all is ready.
    pub fn install_chart(&self, chart: &str, values: &Value) -> Output {
        self.helm("install", chart, values)
    }

    /// `helm upgrade` to a chart, which waits until all is ready.
    pub fn upgrade(&self, chart: &str, values: &Value) -> Output {
        self.helm("upgrade", chart, values)
    }

    /// `helm uninstall`, which waits until everything is gone.
    pub fn uninstall(&self) -> Output {
        self.site.helm(["uninstall", &self.name, "--namespace", &self.name, "--wait", "--timeout", HELM_LIMIT], "")
    }

    fn helm(&self, command: &str, chart: &str, values: &Value) -> Output {
        let mut all = self.values();
        merge(&mut all, values);
        let args =
            [command, &self.name, chart, "--namespace", &self.name, "--values", "-", "--wait", "--timeout", HELM_LIMIT];
        self.site.helm(args, &all.to_string())
    }

    /// The values for tests: short waits, and a source of modules that is not public.
    fn values(&self) -> Value {
        let mut values = json!({
            "policyServer": self.name,
            "modules": { "authorities": self.source.authority(), "allowedPrivate": [self.source.ip().to_string()] },
            "loader": { "extraArgs": ["--retry-initial=200ms", "--retry-cap=2s", "--retry-outside=2s"] },
            "evaluator": { "startGate": "20s" },
        });
        let (registry, tag) = self.site.images();
        for (name, value) in [("registry", registry), ("tag", tag)] {
            if let Some(value) = value {
                merge(&mut values, &json!({ "image": { name: value } }));
            }
        }
        values
    }

    /// Waits until there are exactly this many replicas, all of them ready and in the service, and no terminating ones.
    ///
    /// # Panics
    /// When the time is up; shows the state of the pods.
    pub fn wait_for_replicas(&self, count: usize) {
        let mut pods = Vec::new();
        let is_so = || {
            pods = self.pods();
            (pods.len() == count && pods.iter().all(is_ready) && self.endpoints() == count).then_some(())
        };
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            eventually_within(START, &format!("{count} ready replicas"), is_so);
        }));
        if waited.is_err() {
            let told = self.site.kubectl(["describe", "pods", "--namespace", &self.name]);
            panic!("waited in vain for {count} ready replicas:\n{}", told.stdout);
        }
    }

    /// Waits until there are exactly this many controllers, all of them ready, and no terminating ones.
    ///
    /// # Panics
    /// When the time is up.
    pub fn wait_for_controllers(&self, count: usize) {
        eventually_within(START, &format!("{count} ready controllers"), || {
            let pods = self.controllers();
            (pods.len() == count && pods.iter().all(is_ready)).then_some(())
        });
    }

    /// The pods of the policy server, including terminating ones.
    pub fn pods(&self) -> Vec<Value> {
        self.pods_of("portcullis-policy-server")
    }

    /// The pods of the controller, including terminating ones.
    pub fn controllers(&self) -> Vec<Value> {
        self.pods_of("portcullis-controller")
    }

    fn pods_of(&self, app: &str) -> Vec<Value> {
        let label = format!("app.kubernetes.io%2Fname%3D{app}");
        self.items(&format!("/api/v1/namespaces/{}/pods?labelSelector={label}", self.name))
    }

    /// The number of ready replicas in the service.
    pub fn endpoints(&self) -> usize {
        let label = format!("kubernetes.io%2Fservice-name%3D{SERVICE}");
        let slices = self
            .items(&format!("/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector={label}", self.name));
        let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).count()
    }

    /// The webhook configurations of this installation, of both kinds.
    pub fn webhooks(&self) -> Vec<Value> {
        let label = format!("policies.portcullis.dev%2Fpolicy-server%3D{}", self.name);
        let kinds = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
        let list = |kind| self.items(&format!("/apis/admissionregistration.k8s.io/v1/{kind}?labelSelector={label}"));
        kinds.into_iter().flat_map(list).collect()
    }

    /// The NetworkPolicies of the namespace.
    pub fn network_policies(&self) -> Vec<Value> {
        self.items(&format!("/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies", self.name))
    }

    /// Enforces NetworkPolicies for all present pods, on the node of the release's cluster.
    ///
    /// # Panics
    /// When they contain a field that is not supported.
    pub fn enforce<'c>(&self, cluster: &'c Cluster, policies: &[Value]) -> Rules<'c> {
        let (pods, namespaces) = (self.items("/api/v1/pods"), self.items("/api/v1/namespaces"));
        cluster.filter_packets("policies", &network_policies::chains(policies, &pods, &namespaces))
    }

    fn items(&self, path: &str) -> Vec<Value> {
        self.api().list(path)
    }

    /// `kubectl scale` of the policy server. kubectl is started only if the API server is busy or does not answer.
    ///
    /// # Panics
    /// When the API server refuses.
    pub fn scale(&self, replicas: usize) {
        let deployments = format!("/apis/apps/v1/namespaces/{}/deployments", self.name);
        let path = format!("{deployments}/portcullis-policy-server/scale?fieldManager=kubectl");
        let patched = self.api().patch(&path, &json!({ "spec": { "replicas": replicas } }));
        if let Ok(reply) = patched
            && !matches!(reply.code, 409 | 429 | 503 | 504)
        {
            reply.expect("another number of replicas");
            return;
        }
        let replicas = format!("--replicas={replicas}");
        let scaled = self.kubectl(["scale", "deployment/portcullis-policy-server", &replicas]);
        scaled.expect("another number of replicas");
    }

    /// Runs kubectl in the release's namespace.
    pub fn kubectl<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Output {
        let args: Vec<&str> = args.into_iter().collect();
        self.site.kubectl([&["--namespace", &self.name], &args[..]].concat())
    }

    /// Makes a namespace for the objects of a test; policies of [`Release::cluster_policy`] match only objects in such
    /// namespaces. Returns its name.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn make_namespace(&self, suffix: &str) -> String {
        self.make_namespace_with(suffix, &json!({ "portcullis-test": self.name }))
    }

    /// The same with other labels.
    fn make_namespace_with(&self, suffix: &str, labels: &Value) -> String {
        let name = format!("{}-{suffix}", self.name);
        let namespace =
            json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels } });
        let path = format!("/api/v1/namespaces/{name}");
        put(self.site, &path, &namespace);
        let account = format!("{path}/serviceaccounts/default");
        eventually_within(START, "the account that pods have", || self.api().get(&account));
        name
    }

    /// A builder of a ClusterPolicy, on pods of the namespaces that [`Release::make_namespace`] made.
    pub fn cluster_policy(&self, name: &str) -> Policy {
        Policy::cluster(name, &self.name)
    }

    /// The name of the pod that holds the Lease of this kind of program, `reporter` or `controller`; `None` if there is none, or no API
    /// server answers.
    pub fn lease_holder(&self, kind: &str) -> Option<String> {
        let namespace = self.namespace();
        let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/portcullis-{namespace}-{kind}");
        let lease = self.api().get(&path)?;
        lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
    }

    /// A builder of a Policy, on pods of its namespace.
    pub fn policy(&self, namespace: &str, name: &str) -> Policy {
        Policy::namespaced(namespace, name, &self.name)
    }

    /// `kubectl apply` of a policy, after its module was added to the source.
    pub fn apply(&self, policy: &Policy) -> Output {
        let manifest = policy.manifest(&self.source).to_string();
        self.site.kubectl_with(["apply", "--filename=-"], &manifest)
    }

    /// Applies policies and waits until all are Ready at their newest generation.
    ///
    /// # Panics
    /// When one is refused, or not Ready in time; shows its status.
    pub fn apply_ready(&self, policies: &[Policy]) {
        for policy in policies {
            put(self.site, &policy.path(), &policy.manifest(&self.source));
        }
        for policy in policies {
            policy.wait_for(&self.api(), "Ready", "True");
        }
    }

    /// Removes every policy of this policy server.
    ///
    /// # Panics
    /// When one is not removed in time.
    pub fn delete_policies(&self) {
        let group = "/apis/policies.portcullis.dev/v1alpha1";
        let mut paths = Vec::new();
        for kind in ["clusterpolicies", "policies"] {
            let list = self.items(&format!("{group}/{kind}"));
            for object in list.iter().filter(|object| object["spec"]["policyServer"] == *self.name) {
                let [name, namespace] = ["name", "namespace"].map(|field| object["metadata"][field].as_str());
                let home = namespace.map(|namespace| format!("/namespaces/{namespace}")).unwrap_or_default();
                paths.push(format!("{group}{home}/{kind}/{}", name.unwrap_or_default()));
            }
        }
        // All at once, because each of them takes some pauses to vanish.
        for path in &paths {
            let deleted = self.api().delete(path, None).expect("an API server answers");
            assert!(deleted.is_ok() || deleted.code == 404, "{path}: {} {}", deleted.code, deleted.body["message"]);
        }
        for path in &paths {
            eventually_within(START, &format!("the end of {path}"), || self.api().find(path).is_none().then_some(()));
        }
    }

    /// `kubectl create` of a small pod that is never scheduled. The fields of `extra` are merged into it.
    pub fn create_pod(&self, namespace: &str, name: &str, extra: &Value) -> Output {
        let mut pod = pod(namespace, name);
        merge(&mut pod, extra);
        self.site.kubectl_with(["create", "--filename=-"], &pod.to_string())
    }

    /// Creates pods in dry runs, `per_second` times a second, until the load is ended.
    pub fn load(&self, namespace: &str, per_second: u32) -> Load {
        let pod = json!({ "metadata": { "name": null, "generateName": "tried-" } });
        let mut body = self::pod(namespace, "tried");
        merge(&mut body, &pod);
        self.load_of(namespace, "pods", &body, per_second)
    }

    /// [`Release::load`] with objects of a resource of the core group.
    pub fn load_of(&self, namespace: &str, resource: &str, object: &Value, per_second: u32) -> Load {
        self.canary_check.done();
        Load::start(&self.api(), format!("/api/v1/namespaces/{namespace}/{resource}?dryRun=All"), object, per_second)
    }
}

fn put(site: &Site, path: &str, object: &Value) {
    site.api().put(path, object, |object| site.kubectl_with(["apply", "--filename=-"], object));
}

/// A pod that is never scheduled.
fn pod(namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
        "spec": {
            "schedulerName": "nobody",
            "containers": [{ "name": "main", "image": "example.invalid/none" }],
        },
    })
}

/// Whether all containers of a pod are ready, and it is not terminating.
fn is_ready(pod: &Value) -> bool {
    let conditions = pod["status"]["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_ready = conditions.iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True");
    is_ready && pod["metadata"]["deletionTimestamp"].is_null()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pod_that_ends_is_not_ready() {
        let mut pod = json!({ "metadata": {}, "status": { "conditions": [{ "type": "Ready", "status": "True" }] } });
        assert!(is_ready(&pod));
        pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        assert!(!is_ready(&pod));
        assert!(!is_ready(&json!({})));
    }
}
