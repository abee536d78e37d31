//! Portcullis in a namespace of a running cluster: the chart's objects, and pods whose containers are processes of this machine.
//!
//! The API server reaches the evaluators by the name of their service, the programs have the tokens of their pods and no other
//! rights, and the test is the kubelet: it mounts the certificate, probes, restarts containers, and ends pods whose object is
//! deleted.

mod canary;
mod http;
mod intervals;
mod kubelet;
mod launch;
mod manifests;
mod mount;
mod options;
pub(crate) mod own_canary;
mod pod;
mod policy;
mod recovery;
mod setup;
mod token;

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

pub use crate::chart_names::{CONTROLLER_ACCOUNT, LOADER_MEMORY, POLICY_SERVER_ACCOUNT, SERVICE};
pub use canary::{Canary, FLOODED, Heard, IN_TIME, Listener, Right};
pub use options::{Certificates, InstallationOptions};
pub use pod::Pod;
pub use policy::{Policy, condition};
pub use recovery::assert_recovers_on_node;
pub use setup::PodSetup;
pub use token::NEW_TOKEN;

use crate::api::Api;
use crate::canary_check::CanaryCheck;
use crate::issuer::Issuer;
use crate::program::Program;
use crate::source::Source;
use crate::wait::eventually;
use crate::{Cluster, Output, lock, stand_in};

/// The lifetime of a certificate that the test makes instead of a controller.
const LIFETIME: Duration = Duration::from_secs(3650 * 24 * 3600);

/// An installation. Its pods end with it, and its objects that are in no namespace, but policies, are removed. If it had evaluators, a test
/// that is named after a row of the fault catalogue must have had a canary on it, or have said why not ([`Installation::without_canary`]).
/// No program may have ended by itself.
pub struct Installation<'c> {
    cluster: &'c Cluster,
    options: InstallationOptions,
    source: Source,
    pods: Arc<Mutex<Vec<Arc<Pod>>>>,
    count: Mutex<u32>,
    canary_check: CanaryCheck,
}

impl<'c> Installation<'c> {
    /// Installs everything but pods: definitions, namespace, accounts, rights, service, admission rules.
    ///
    /// # Panics
    /// When the API server refuses something.
    pub fn start(cluster: &'c Cluster, options: InstallationOptions) -> Self {
        // From now on, stalls of the machine are left out of what tests measure.
        portcullis_testkit::Stalls::watch();
        manifests::install_definitions(cluster);
        manifests::install(cluster, &options.name, &options.policy_server);
        let source = Source::start(cluster);
        let installation = Self {
            cluster,
            options,
            source,
            pods: Arc::default(),
            count: Mutex::default(),
            canary_check: CanaryCheck::default(),
        };
        if !installation.has_controller() {
            let issued = Issuer::new("certificates of a test").issue(installation.namespace(), LIFETIME);
            installation.put_certificate(&issued);
        }
        installation
    }

    /// The cluster.
    pub fn cluster(&self) -> &'c Cluster {
        self.cluster
    }

    /// Its namespace.
    pub fn namespace(&self) -> &str {
        &self.options.name
    }

    /// Its name, which policies have as `policyServer`.
    pub fn policy_server(&self) -> &str {
        &self.options.policy_server
    }

    /// The mode in which policies are checked when they are applied; `None` for the default.
    fn policy_checks(&self) -> Option<&str> {
        self.options.policy_checks.as_deref()
    }

    /// How long API servers wait for the answer of a check; `None` for the default.
    fn policy_checks_timeout(&self) -> Option<Duration> {
        self.options.policy_checks_timeout
    }

    /// The format of reports on objects; `None` if objects are not audited.
    fn audit(&self) -> Option<&str> {
        self.options.audit.as_deref()
    }

    /// The source of modules for its policies.
    pub fn source(&self) -> &Source {
        &self.source
    }

    /// Starts a replica: a pod object, and loader, evaluator and reporter. It may take a while until it is ready
    /// ([`Pod::wait_ready`]): without a certificate or a first manifest it never is.
    ///
    /// # Panics
    /// When the API server refuses the pod, or a program is not built.
    pub fn add_replica(&self) -> Arc<Pod> {
        self.add_replica_with(PodSetup::default())
    }

    /// [`Installation::add_replica`], with additional flags, fail points or proxies.
    ///
    /// # Panics
    /// When the API server refuses the pod, or a program is not built.
    pub fn add_replica_with(&self, setup: PodSetup) -> Arc<Pod> {
        self.add(setup.or_name(|| self.next_name("policy-server")).replica(self))
    }

    /// Starts a controller; a second call starts a second one.
    ///
    /// # Panics
    /// When the API server refuses the pod, or the program is not built.
    pub fn start_controller(&self) -> Arc<Pod> {
        self.start_controller_with(PodSetup::default())
    }

    /// [`Installation::start_controller`], with additional flags, fail points or a proxy.
    ///
    /// # Panics
    /// When the API server refuses the pod, or the program is not built.
    pub fn start_controller_with(&self, setup: PodSetup) -> Arc<Pod> {
        self.add(setup.or_name(|| self.next_name("controller")).controller(self))
    }

    fn next_name(&self, kind: &str) -> String {
        let mut count = lock(&self.count);
        *count += 1;
        format!("{kind}-{count}")
    }

    fn add(&self, pod: Pod) -> Arc<Pod> {
        let pod = Arc::new(pod);
        pod.look_after();
        lock(&self.pods).push(Arc::clone(&pod));
        pod
    }

    /// All pods that were started, including those that have ended.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        lock(&self.pods).clone()
    }

    /// The replicas that have not ended.
    pub fn replicas(&self) -> Vec<Arc<Pod>> {
        let is_one = |pod: &Arc<Pod>| pod.has(Program::Evaluator) && !pod.is_over();
        self.pods().into_iter().filter(is_one).collect()
    }

    /// Starts a controller and this many replicas, and waits until all are ready.
    ///
    /// # Panics
    /// When one of them is not ready in time.
    pub fn with(self, replicas: usize) -> Self {
        self.start_controller();
        for _ in 0..replicas {
            self.add_replica();
        }
        self.wait_ready();
        self
    }

    /// Waits until every pod is ready and the service has every replica.
    ///
    /// # Panics
    /// When one is not ready in time.
    pub fn wait_ready(&self) {
        for pod in self.pods().iter().filter(|pod| !pod.is_over()) {
            pod.wait_ready();
        }
        let replicas = self.replicas().len();
        eventually(&format!("{replicas} endpoints of the service"), || (self.endpoints() == replicas).then_some(()));
    }

    /// The number of ready replicas in the service.
    pub fn endpoints(&self) -> usize {
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices?labelSelector=kubernetes.io%2Fservice-name%3D{SERVICE}",
            self.namespace()
        );
        let slices = self.api().list(&path);
        let endpoints = slices.iter().flat_map(|slice| slice["endpoints"].as_array().into_iter().flatten());
        endpoints.filter(|endpoint| endpoint["conditions"]["ready"] == true).count()
    }

    /// A token like that of a pod of this account; see [`Cluster::token_for_pod`].
    pub fn token(&self, account: &str, pod: &Pod) -> String {
        stand_in::token(&self.api(), self.namespace(), account, pod.name(), pod.uid())
    }

    /// Makes a namespace for the objects of a test; policies of [`Installation::cluster_policy`] match only objects in such
    /// namespaces. Returns its name.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn make_namespace(&self, suffix: &str) -> String {
        self.make_namespace_with(suffix, &json!({ "portcullis-test": self.policy_server() }))
    }

    /// The same with other labels.
    fn make_namespace_with(&self, suffix: &str, labels: &Value) -> String {
        let name = format!("{}-{suffix}", self.options.name);
        let namespace = json!({
            "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": name, "labels": labels },
        });
        let path = format!("/api/v1/namespaces/{name}");
        self.put_object(&path, &namespace);
        let account = format!("{path}/serviceaccounts/default");
        eventually(&format!("the account that pods of {name} have"), || self.api().get(&account));
        name
    }

    /// A builder of a ClusterPolicy, on pods of the namespaces that [`Installation::make_namespace`] made.
    pub fn cluster_policy(&self, name: &str) -> Policy {
        Policy::cluster(name, self.policy_server())
    }

    /// A builder of a Policy, on pods of its namespace.
    pub fn policy(&self, namespace: &str, name: &str) -> Policy {
        Policy::namespaced(namespace, name, self.policy_server())
    }

    /// `kubectl apply` of a policy, after its module was added to the source.
    pub fn apply(&self, policy: &Policy) -> Output {
        self.cluster.apply(&policy.manifest(&self.source).to_string())
    }

    /// [`Installation::apply`], without starting kubectl if there is no policy of this name yet: for tests that do not look at what kubectl
    /// prints.
    ///
    /// # Panics
    /// When the API server refuses it.
    pub fn put(&self, policy: &Policy) {
        self.put_object(&policy.path(), &policy.manifest(&self.source));
    }

    /// Applies policies and waits until all are Ready at their newest generation.
    ///
    /// # Panics
    /// When one is refused, or not Ready in time; shows its status.
    pub fn apply_ready(&self, policies: &[Policy]) {
        for policy in policies {
            self.put(policy);
        }
        for policy in policies {
            self.wait_for(policy, "Ready", "True");
        }
    }

    /// The object of a policy, if there is one.
    pub fn object(&self, policy: &Policy) -> Option<Value> {
        self.api().find(&policy.path())
    }

    /// The events with this reason on a policy, as [`Installation::all_events`] finds them.
    pub fn events(&self, policy: &Policy, reason: &str) -> Vec<Value> {
        self.all_events(policy).into_iter().filter(|event| event["reason"] == reason).collect()
    }

    /// The events on a policy. Those on another policy that had its name do not count.
    pub fn all_events(&self, policy: &Policy) -> Vec<Value> {
        let Some(object) = self.object(policy) else { return Vec::new() };
        let uid = &object["metadata"]["uid"];
        // Those on objects that are in no namespace are in this one.
        let namespace = policy.namespace().unwrap_or("default");
        let events = self.api().list(&format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events")).into_iter();
        events.filter(|event| event["regarding"]["uid"] == *uid).collect()
    }

    /// Waits until a condition of a policy has this status for the newest generation, and returns the object.
    ///
    /// # Panics
    /// When the time is up; shows the object's status.
    pub fn wait_for(&self, policy: &Policy, condition: &str, status: &str) -> Value {
        policy.wait_for(&self.api(), condition, status)
    }

    /// Waits until the object of a policy fulfils a condition, and returns it.
    ///
    /// # Panics
    /// When the time is up; shows the object's status.
    pub fn wait_for_object(&self, policy: &Policy, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        policy.wait_until(&self.api(), what, is)
    }

    /// `kubectl create` of a small pod, which is never started. The fields of `extra` are merged into it.
    pub fn create_pod(&self, namespace: &str, name: &str, extra: &Value) -> Output {
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name, "namespace": namespace },
            "spec": { "containers": [{ "name": "main", "image": "example.invalid/none" }] },
        });
        crate::json::merge(&mut pod, extra);
        self.cluster.kubectl_as(&self.cluster.kubeconfig(), ["create", "--filename=-"], &pod.to_string())
    }

    /// `kubectl create` of a ConfigMap with one entry.
    pub fn create_config_map(&self, namespace: &str, name: &str) -> Output {
        self.cluster.kubectl(["create", "configmap", name, "--namespace", namespace, "--from-literal=key=value"])
    }

    /// The path of the Lease of this kind of program: `reporter` or `controller`.
    pub fn lease(&self, kind: &str) -> String {
        let (namespace, name) = (self.namespace(), self.policy_server());
        format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/portcullis-{name}-{kind}")
    }

    /// The name of the pod that holds this Lease; `None` if there is none.
    pub fn lease_holder(&self, kind: &str) -> Option<String> {
        let lease = self.api().find(&self.lease(kind))?;
        lease["spec"]["holderIdentity"].as_str().filter(|holder| !holder.is_empty()).map(str::to_owned)
    }

    /// The webhook configurations of this installation, of both kinds, without that of [`Installation::own_canary`].
    pub fn webhooks(&self) -> Vec<Value> {
        let paths = ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"];
        let all = paths.iter().flat_map(|kind| self.api().list(&self.webhook_path(kind)));
        all.filter(|webhook| !self.is_of_own_canary(webhook)).collect()
    }

    fn webhook_path(&self, kind: &str) -> String {
        let label = format!("policies.portcullis.dev%2Fpolicy-server%3D{}", self.policy_server());
        format!("/apis/admissionregistration.k8s.io/v1/{kind}?labelSelector={label}")
    }

    /// The revisions of its policies, without those of [`Installation::own_canary`].
    pub fn revisions(&self) -> Vec<Value> {
        let all = self.api().list(&format!("/apis/apps/v1/namespaces/{}/controllerrevisions", self.namespace()));
        all.into_iter().filter(|revision| !self.is_of_own_canary(revision)).collect()
    }

    /// The reports of its replicas.
    pub fn reports(&self) -> Vec<Value> {
        let path = format!("/apis/policies.portcullis.dev/v1alpha1/namespaces/{}/replicareports", self.namespace());
        self.api().list(&path)
    }

    /// The API of the cluster, as an administrator.
    pub fn api(&self) -> Api {
        self.cluster.api()
    }

    fn put_certificate(&self, files: &[(&str, String)]) {
        let data: serde_json::Map<String, Value> =
            files.iter().map(|(name, text)| ((*name).to_owned(), text.as_str().into())).collect();
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "stringData": data,
            "metadata": { "name": self.tls_secret(), "namespace": self.namespace() },
        });
        self.put_object(&format!("/api/v1/namespaces/{}/secrets/{}", self.namespace(), self.tls_secret()), &secret);
    }

    fn put_object(&self, path: &str, object: &Value) {
        self.api().put(path, object, |object| self.cluster.apply(object));
    }

    /// Whether there is a controller, which makes the certificates and the keys of webhook paths.
    fn has_controller(&self) -> bool {
        self.options.certificates != Certificates::OfTheTest
    }

    fn paths_secret(&self) -> String {
        format!("portcullis-{}-paths", self.policy_server())
    }

    fn tls_secret(&self) -> String {
        format!("portcullis-{}-tls", self.policy_server())
    }
}

impl Drop for Installation<'_> {
    fn drop(&mut self) {
        let pods = self.pods();
        for pod in &pods {
            pod.let_go();
        }
        if thread::panicking() {
            for pod in &pods {
                eprintln!("{}", pod.last_words());
            }
        }
        for pod in &pods {
            pod.kill_all();
        }
        // Other installations of the cluster still run, and webhooks without a server would delay them.
        for kind in ["validatingwebhookconfigurations", "mutatingwebhookconfigurations"] {
            let _ = self.api().delete(&self.webhook_path(kind), None);
        }
        manifests::remove_cluster_objects(&self.api(), self.namespace());
        if pods.iter().any(|pod| pod.has(Program::Evaluator)) {
            self.canary_check.assert_done();
        }
        if !thread::panicking() {
            // I2: no program ends unless the test kills it.
            let failures: Vec<String> = pods.iter().flat_map(|pod| pod.failures()).collect();
            assert!(failures.is_empty(), "programs have ended by themselves:\n{}", failures.join("\n"));
        }
    }
}
