//! Upgrades from an earlier release, rollbacks to it, and pods with programs of both releases.

use portcullis_e2e::{Api, Cache, EarlierRelease, Helm, Policy, Release, Site, condition, skip};
use serde_json::{Value, json};

use crate::stage::{assert_all, assert_denied, is_about, own_cluster, turn};

const SERVER: &str = "statefulset/portcullis-policy-server";
const REPLICAS: usize = 2;

/// The steps of the mixture: a container, and whether it gets the program of this release or that of the earlier one again. Each step
/// changes one container of pods that run the earlier release at first. Together they are all mixtures: each program beside two of the
/// other release.
const STEPS: [(&str, bool); 6] = [
    ("loader", true),
    ("evaluator", true),
    ("loader", false),
    ("reporter", true),
    ("evaluator", false),
    ("loader", true),
];

/// Objects that must survive all changes.
struct Kept<'r> {
    release: &'r Release<'r>,
    shop: String,
    /// A policy that is edited after each change.
    policy: Policy,
    /// The newest generation of that policy.
    generation: i64,
    /// A policy of a namespace.
    namespaced: Policy,
    /// A policy whose newest generation is broken.
    broken: Policy,
    /// The volumes of the claims, and the uids of the policies.
    facts: Vec<String>,
}

impl<'r> Kept<'r> {
    fn make(release: &'r Release<'r>) -> Self {
        let shop = release.make_namespace("shop");
        let policy = release.cluster_policy("kept").denying(&words(1));
        let broken = release.cluster_policy("broken").on(&["configmaps"]).denying("no configmaps");
        let namespaced = release.policy(&shop, "namespaced").on(&["services"]).denying("no services");
        release.apply_ready(&[policy.clone(), namespaced.clone(), broken.clone()]);
        release.apply(&broken.clone().module_of("no module")).expect("a bad edit");
        let mut kept = Self { release, shop, policy, generation: 1, namespaced, broken, facts: Vec::new() };
        kept.facts = kept.facts();
        kept
    }

    fn facts(&self) -> Vec<String> {
        let claims = "--output=jsonpath={.items[*].spec.volumeName}";
        let claims = self.release.kubectl(["get", "persistentvolumeclaims", claims]);
        let mut facts = vec![claims.expect("the claims").to_owned()];
        for policy in [&self.policy, &self.namespaced, &self.broken] {
            facts.push(self.release.api().get(&policy.path()).expect("the policy")["metadata"]["uid"].to_string());
        }
        facts
    }

    /// Waits until the statuses are about the pods of now and report the same for all of them as before, and asserts that everything
    /// else is unchanged.
    fn assert_there(&self) {
        self.release.wait_for_replicas(REPLICAS);
        let (api, pods) = (self.release.api(), self.release.pods());
        let is = |object: &Value, reason: &str, generation: i64, count: &str| {
            condition(object, "Ready").is_some_and(|ready| ready["reason"] == reason)
                && object["metadata"]["generation"] == generation
                && object["status"]["observedGeneration"] == generation
                && object["status"]["replicaCounts"][count] == REPLICAS
                && is_about(object, &pods)
        };
        for (policy, generation) in [(&self.policy, self.generation), (&self.namespaced, 1)] {
            policy.wait_until(&api, "Active", |object| is(object, "Active", generation, "current"));
        }
        self.broken.wait_until(&api, "ServingPrevious", |object| is(object, "ServingPrevious", 2, "previous"));
        assert_denied(&self.release.create_pod(&self.shop, "one", &json!({})), &words(self.generation));
        assert_eq!(api.denies_configmap(&self.shop, "no configmaps"), Some(true));
        let service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": { "generateName": "one-" },
            "spec": { "ports": [{ "port": 80 }] },
        });
        let refused = api.create(&format!("/api/v1/namespaces/{}/services", self.shop), &service).expect("an answer");
        let message = refused.body["message"].as_str().unwrap_or_default();
        assert!(!refused.is_ok() && message.contains("no services"), "{refused:?}");
        assert_eq!(self.facts(), self.facts);
        assert_eq!(restarts(&self.release.pods()), 0, "no program has ended by itself");
    }

    /// Runs `change` under load, and asserts that no call fails. Then edits a policy, so that the programs have to do something:
    /// controller, loader and reporter must bring the edit to all pods and into the status.
    fn under_load(&mut self, change: impl FnOnce()) {
        let load = self.release.load(&self.shop, 20);
        change();
        self.release.wait_for_replicas(REPLICAS);
        assert_all(&load.end(), 403);
        self.assert_there();
        self.generation += 1;
        self.policy = self.policy.clone().denying(&words(self.generation));
        self.release.apply(&self.policy).expect("an edit");
        self.assert_there();
    }
}

/// The denial of the policy that is edited, at this generation.
fn words(generation: i64) -> String {
    format!("not here, says generation {generation}.")
}

/// The versions of each definition with their schemas, as the API server has them.
fn schemas(api: &Api) -> Vec<Value> {
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    let versions = |plural| {
        let path = format!("{definitions}/{plural}.policies.portcullis.dev");
        api.find(&path).expect("the definition")["spec"]["versions"].take()
    };
    ["policies", "clusterpolicies", "replicareports"].map(versions).into()
}

/// How often the containers of these pods were restarted.
fn restarts(pods: &[Value]) -> i64 {
    let containers = pods.iter().filter_map(|pod| pod["status"]["containerStatuses"].as_array()).flatten();
    containers.filter_map(|container| container["restartCount"].as_i64()).sum()
}

#[test]
#[ignore = "starts a cluster"]
fn fault_k01_k07_an_earlier_release_before_after_and_beside_this_one_keeps_objects_and_volumes_and_fails_no_call() {
    let _turn = turn();
    let Some(earlier) = EarlierRelease::built(&Cache::from_env().unwrap()) else {
        skip("the earlier release was not built; `cargo xtask earlier-release` builds it from git's history");
        return;
    };
    if own_cluster("fault_k01, and fault_k07 with an earlier release,").is_none() {
        return;
    }
    // The test needs a cluster of its own, because it starts with the definitions of the earlier release.
    let site = Site::with_api_servers(1);
    let cluster = site.own_cluster().expect("it is our own");
    earlier.archives().iter().for_each(|archive| cluster.import_image(archive));
    let release = Release::new(&site, "aged");
    cluster.make_volumes(release.namespace(), REPLICAS);
    let now = json!({
        "server": { "replicas": REPLICAS }, "controller": { "replicas": 1 },
        "volume": { "persistence": { "enabled": true, "storageClassName": release.namespace() } },
    });
    let mut before = now.clone();
    before["image"] = json!({ "tag": earlier.tag() });
    release.install_chart(&earlier.chart().display().to_string(), &before).expect("the earlier release");
    let mut kept = Kept::make(&release);
    kept.assert_there();
    let old = schemas(&release.api());

    kept.under_load(|| {
        release.upgrade(&Helm::chart().display().to_string(), &now).expect("the upgrade");
    });
    for (old, new) in old.iter().zip(schemas(&release.api())) {
        assert_ne!(*old, new, "the definitions differ between the releases, and the upgrade replaces them");
    }
    kept.under_load(|| {
        let name = release.namespace();
        let back = ["rollback", name, "1", "--namespace", name, "--wait", "--timeout", "4m"];
        site.helm(back, "").expect("the way back");
    });
    assert_eq!(schemas(&release.api()), old, "the way back restores the definitions");

    for (container, is_new) in STEPS {
        let tag = if is_new { env!("CARGO_PKG_VERSION") } else { earlier.tag() };
        let image = format!("{container}=localhost/portcullis/{container}:{tag}");
        kept.under_load(|| {
            release.kubectl(["set", "image", SERVER, &image]).expect("another image");
            release.kubectl(["rollout", "status", SERVER, "--timeout=240s"]).expect("the end of the rollout");
        });
    }
    release.uninstall().expect("the end of the installation");
}
