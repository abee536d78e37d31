//! Whole manifests of Kubewarden, and what became of them.

use super::*;
use crate::files::tests::{NOT_READ, add_what_is_not_read};

fn migrated(text: &str) -> Migrated {
    let documents = portcullis_yaml::read_documents(text).expect("YAML");
    Migrated::of(documents.into_iter().map(|document| ("theirs.yaml".to_owned(), document)).collect())
}

#[test]
fn an_output_without_content_is_no_success_and_several_documents_are_told_apart() {
    let server = |name: &str| {
        format!("apiVersion: policies.kubewarden.io/v1\nkind: PolicyServer\nmetadata: {{name: {name}}}\n---\n")
    };
    let policy = "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {name: a}\nspec:\n  module: registry://a.example/b:v1\n  \
                  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]\n";
    let (servers, both) = (server("x") + &server("y"), server("x") + policy);
    let other = |text: &str, values| migrated(text).other_output(values);
    assert_eq!(other(&servers, false).as_deref(), Some("it has 2 PolicyServers: add --values"));
    assert_eq!(other(policy, true).as_deref(), Some("it has 1 policy and no PolicyServer: leave out --values"));
    for (text, values) in [(servers.as_str(), true), (policy, false), (&both, true), (&both, false)] {
        assert_eq!(other(text, values), None, "{values}: {text}");
    }
    let own = "for an installation of its own";
    assert_eq!(
        migrated(&servers).beside(true),
        [
            format!("document 1 of 2: the values of PolicyServer/x, {own}"),
            format!("document 2 of 2: the values of PolicyServer/y, {own}"),
        ]
    );
    assert_eq!(migrated(&both).beside(false), ["it also has 1 PolicyServer: --values prints the Helm values"]);
    assert_eq!(migrated(&both).beside(true), ["it also has 1 policy, printed without --values"]);
    assert_eq!(migrated(policy).beside(false), Vec::<String>::new());
}

#[test]
fn a_policy_of_a_cluster_with_what_became_of_its_fields() {
    let migrated = migrated(
        "
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata: {name: psp, uid: u, labels: {team: 'yes'}, annotations: {io.kubewarden.policy.severity: low}}
spec:
  policyServer: default
  module: registry://ghcr.io/kubewarden/policies/pod-privileged:v1.0.3
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  mutating: false
  mode: monitor
  backgroundAudit: true
  settings: null
  namespaceSelector: {matchLabels: {a: b}}
  allowInsideAdmissionControllerNamespace: true
status: {policyStatus: active}
",
    );
    assert_eq!(migrated.left, []);
    let policy = &migrated.policies[0];
    assert_eq!((&policy["kind"], &policy["spec"]["mode"]), (&json!("ClusterPolicy"), &json!("monitor")));
    assert_eq!(policy["metadata"]["labels"], json!({"team": "yes"}));
    assert_eq!((policy["metadata"].get("uid"), policy.get("status")), (None, None));
    assert_eq!(policy["spec"]["namespaceSelector"], json!({"matchLabels": {"a": "b"}}));
    assert_eq!((policy["spec"].get("settings"), policy["spec"].get("backgroundAudit")), (None, None));
    let account = migrated.account();
    for line in [
        "ClusterAdmissionPolicy/psp: spec.module kept\n",
        "ClusterAdmissionPolicy/psp: spec.backgroundAudit dropped: ",
        "ClusterAdmissionPolicy/psp: spec.allowInsideAdmissionControllerNamespace dropped: ",
        "ClusterAdmissionPolicy/psp: host capabilities dropped: ",
        "ClusterAdmissionPolicy/psp: note on requests: no ClusterPolicy is asked about objects in kube-system, ",
    ] {
        assert!(account.contains(line), "{account}");
    }
}

#[test]
fn what_kubectl_reads_otherwise_is_no_success() {
    let folder = tempfile::tempdir().expect("a folder");
    let policy = |fields: &str| {
        format!(
            "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {{name: a}}\nspec:\n  \
             module: registry://a.example/b:v1\n  \
             rules: [{{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}]\n  {fields}\n"
        )
    };
    let file = folder.path().join("theirs.yaml");
    let read = |text: &str| {
        std::fs::write(&file, text).expect("writes");
        Migrated::read(&file).expect("reads")
    };
    let note = |scalar: &str, meant: &str, instead: &str| {
        format!(
            "{}: note on line 7: kubectl reads {scalar} as {meant}, and here it is the text: write {instead}, or quote it if it is a text\n",
            file.display()
        )
    };
    let migrated = read(&policy("settings: {enabled: yes, mode: 0644, 'on': 'off'}"));
    assert_eq!((migrated.policies.len(), migrated.left.len(), migrated.status()), (1, 0, 1));
    let account = migrated.account();
    let told = note("`yes`", "true", "`true`") + &note("a plain scalar", "a number", "it in decimal, without `_`");
    assert!(account.ends_with(&told), "{account}");
    let field = serde_json::to_value(migrated.fields.last()).expect("JSON");
    assert_eq!((&field["field"], &field["became"]), (&json!("line 7"), &json!("readOtherwise")));

    let migrated = read(&policy("mutating: no"));
    assert_eq!((migrated.left.len(), migrated.status()), (1, 1));
    assert!(migrated.account().contains(&note("`no`", "false", "`false`")), "the note stands beside the refusal");

    let quoted = policy("settings: {enabled: 'yes', mode: \"0644\"}");
    assert_eq!(read(&quoted).status(), 0);
    let account = read(&format!("kind: ConfigMap\ndata: {{a: on}}\n---\n{quoted}")).account();
    assert!(!account.contains("kubectl reads"), "{account}");
}

#[test]
fn marks_of_owners_stay_with_the_old_policy() {
    let migrated = migrated(
        "
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicy
metadata:
  name: psp
  labels:
    team: a
    app.kubernetes.io/managed-by: Helm
    app.kubernetes.io/instance: kubewarden
    app.kubernetes.io/name: psp
    kustomize.toolkit.fluxcd.io/name: policies
    helm.toolkit.fluxcd.io/namespace: flux-system
    kustomize.toolkit.fluxcd.io/prune: disabled
  annotations:
    kubectl.kubernetes.io/last-applied-configuration: '{}'
    meta.helm.sh/release-name: kubewarden
    meta.helm.sh/release-namespace: kubewarden
    argocd.argoproj.io/tracking-id: 'kubewarden:policies.kubewarden.io/ClusterAdmissionPolicy:/psp'
spec:
  module: registry://ghcr.io/kubewarden/policies/pod-privileged:v1.0.3
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
",
    );
    let kept = json!({
        "name": "psp",
        "labels": {"team": "a", "app.kubernetes.io/name": "psp", "kustomize.toolkit.fluxcd.io/prune": "disabled"},
    });
    assert_eq!((&migrated.policies[0]["metadata"], migrated.status()), (&kept, 0));
    let dropped = migrated.fields.iter().filter(|one| one.field.starts_with("metadata."));
    let dropped: Vec<_> = dropped.map(|one| (one.field.as_str(), matches!(one.outcome, Outcome::Dropped(_)))).collect();
    assert_eq!(
        dropped,
        [
            ("metadata.labels.app.kubernetes.io/managed-by", true),
            ("metadata.labels.app.kubernetes.io/instance", true),
            ("metadata.labels.kustomize.toolkit.fluxcd.io/name", true),
            ("metadata.labels.helm.toolkit.fluxcd.io/namespace", true),
            ("metadata.annotations.meta.helm.sh/release-name", true),
            ("metadata.annotations.meta.helm.sh/release-namespace", true),
            ("metadata.annotations.argocd.argoproj.io/tracking-id", true),
        ]
    );
}

#[test]
fn a_mark_of_the_user_stays() {
    let text = "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\n\
                metadata: {name: a, labels: {app.kubernetes.io/managed-by: me}}";
    let fields = migrated(text).fields;
    assert!(!fields.iter().any(|one| one.field.starts_with("metadata.")), "{fields:?}");
}

#[test]
fn a_group_is_a_policy_with_members() {
    let migrated = migrated(
        "
apiVersion: policies.kubewarden.io/v1
kind: ClusterAdmissionPolicyGroup
metadata: {name: g}
spec:
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  policies:
    signed: {module: 'registry://ghcr.io/kubewarden/policies/verify-image-signatures:v0.2.8', settings: {signatures: []}}
    latest: {module: 'registry://ghcr.io/kubewarden/policies/trusted-repos:v0.1.12', settings: null}
  expression: signed() || !latest()
  message: the image is not trusted
",
    );
    assert_eq!(migrated.left, []);
    let policy = &migrated.policies[0];
    assert_eq!(
        (&policy["kind"], &policy["spec"]["expression"]),
        (&json!("ClusterPolicy"), &json!("signed() || !latest()"))
    );
    assert_eq!(policy["spec"]["policies"]["signed"]["settings"], json!({"signatures": []}));
    assert_eq!(policy["spec"]["policies"]["latest"].get("settings"), None);
}

#[test]
fn notes_stand_beside_what_became_of_a_field() {
    let migrated = migrated(
        "
apiVersion: policies.kubewarden.io/v1
kind: AdmissionPolicy
metadata: {name: own, namespace: shop}
spec:
  module: registry://ghcr.io/kubewarden/policies/pod-privileged:v1.0.3
  rules: [{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}]
  mutating: false
  failurePolicy: Ignore
",
    );
    assert_eq!(migrated.policies[0]["spec"]["failurePolicy"], json!("Ignore"));
    let account = migrated.account();
    for line in [
        "AdmissionPolicy/shop/own: spec.failurePolicy kept\n",
        "AdmissionPolicy/shop/own: note on spec.failurePolicy: Kubewarden denies ",
        "AdmissionPolicy/shop/own: host capabilities dropped: ",
    ] {
        assert!(account.contains(line), "{account}");
    }
    assert!(!account.contains("note on requests"), "{account}");
    let field = serde_json::to_value(migrated.fields.last()).expect("JSON");
    assert_eq!((&field["field"], &field["became"]), (&json!("spec.failurePolicy"), &json!("noted")));
}

#[test]
fn what_is_not_valid_is_left_out_and_named() {
    let migrated = migrated(
        "
apiVersion: v1
kind: List
items:
- {apiVersion: policies.kubewarden.io/v1, kind: AdmissionPolicyGroup, metadata: {name: g, namespace: n}, spec: {}}
- {apiVersion: policies.kubewarden.io/v1, kind: AdmissionPolicy, metadata: {name: a, namespace: n}, spec: {module: x}}
- {apiVersion: v1, kind: Namespace, metadata: {name: n}}
- {kind: ConfigMap}
- {a: b}
",
    );
    assert_eq!(migrated.policies, Vec::<Value>::new());
    let objects: Vec<&str> = migrated.left.iter().map(|left| left.object.as_str()).collect();
    assert_eq!(
        objects,
        ["AdmissionPolicyGroup/n/g", "AdmissionPolicy/n/a", "Namespace/n", "ConfigMap", "an object without a kind"]
    );
    assert!(migrated.left[0].why.contains("rules"), "{:?}", migrated.left);
    assert!(migrated.left[1].why.contains("rules"), "{:?}", migrated.left);
}

#[test]
fn a_policy_server_is_values() {
    let migrated = migrated(
        "
apiVersion: policies.kubewarden.io/v1
kind: PolicyServer
metadata: {name: reserved}
spec:
  image: ghcr.io/kubewarden/policy-server:v1.36.0
  replicas: 2
  maxUnavailable: 1
  limits: {memory: 2Gi}
  requests: {cpu: 500m}
  imagePullSecret: logins
  insecureSources: [registry.internal:5000]
  sourceAuthorities: {'https://registry.internal': [PEM]}
  verificationConfig: required
  env: [{name: KUBEWARDEN_LOG_LEVEL, value: debug}, {name: RUST_BACKTRACE, value: '1'}]
",
    );
    assert_eq!(
        migrated.values,
        [json!({
            "policyServer": "reserved",
            "server": {"replicas": 2},
            "disruptionBudget": {"maxUnavailable": 1},
            "logs": {"level": "debug"},
            "evaluator": {"resources": {"limits": {"memory": "2Gi"}, "requests": {"cpu": "500m"}}},
            "modules": {
                "pullSecret": "logins",
                "sources": {
                    "insecure_sources": ["registry.internal:5000"],
                    "source_authorities": {"https://registry.internal": [{"type": "Data", "data": "PEM"}]},
                },
            },
        })]
    );
    let account = migrated.account();
    for line in [
        "PolicyServer/reserved: spec.replicas is now server.replicas\n",
        "PolicyServer/reserved: spec.image dropped: ",
        "PolicyServer/reserved: spec.verificationConfig dropped: put the content of ConfigMap required",
        "PolicyServer/reserved: spec.env.KUBEWARDEN_LOG_LEVEL is now logs.level\n",
        "PolicyServer/reserved: spec.env.RUST_BACKTRACE dropped: ",
        "PolicyServer/reserved: note on spec.sourceAuthorities: ",
        "PolicyServer/reserved: note on spec.sigstoreTrustConfig: ",
    ] {
        assert!(account.contains(line), "{account}");
    }
}

#[test]
fn a_policy_and_a_group_of_one_name_are_not_one_policy() {
    let policy = |kind: &str, place: &str, content: &str| {
        format!(
            "apiVersion: policies.kubewarden.io/v1\nkind: {kind}\nmetadata: {{{place}}}\nspec:\n  {content}\n  \
             rules: [{{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}]\n---\n"
        )
    };
    let alone = "module: registry://a.example/b:v1";
    let group = "policies: {a: {module: 'registry://a.example/b:v1'}}\n  expression: a()\n  message: no";
    let migrated = migrated(
        &[
            policy("ClusterAdmissionPolicy", "name: pod-security", alone),
            policy("ClusterAdmissionPolicyGroup", "name: pod-security", group),
            policy("AdmissionPolicy", "name: pod-security, namespace: a", alone),
            policy("AdmissionPolicy", "name: pod-security, namespace: b", alone),
            policy("AdmissionPolicyGroup", "name: pod-security, namespace: b", group),
        ]
        .concat(),
    );
    assert_eq!((migrated.policies.len(), migrated.policies[0]["spec"].get("policies")), (3, None));
    let double = |id: &str| format!("another object has this kind, namespace and name (it is {id} too); rename one");
    let left = |object: &str, id: &str| Left {
        file: Some("theirs.yaml".to_owned()),
        object: object.to_owned(),
        why: double(id),
        is_foreign: false,
    };
    assert_eq!(
        migrated.left,
        [
            left("ClusterAdmissionPolicyGroup/pod-security", "cluster/pod-security"),
            left("AdmissionPolicyGroup/b/pod-security", "namespaced/b/pod-security"),
        ]
    );
}

#[test]
fn other_files_of_a_folder_are_left_alone() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
        std::fs::write(path, text).expect("writes");
    };
    let policy = |name: &str| {
        format!(
            "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {{name: {name}}}\nspec:\n  \
             module: registry://a.example/b:v1\n  \
             rules: [{{apiGroups: [''], apiVersions: [v1], resources: [pods], operations: [CREATE]}}]\n"
        )
    };
    put("a.yaml", &policy("a"));
    put("deeper/b.yaml", &policy("b"));
    put("template.yaml", "{{ if .Values.x }}: ]");
    // Those of kustomize name the group in a patch.
    let patch = format!("patches: [{{target: {{group: {KUBEWARDEN}}}, patch: ''}}]\nresources: [a.yaml]\n");
    put("kustomization.yaml", &patch);
    put(
        "deeper/kustomization.yaml",
        &format!("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\n{patch}"),
    );
    add_what_is_not_read(folder.path());
    // One whose bytes cannot be read may have others.
    let migrated = Migrated::read(folder.path()).expect("reads");
    let left = serde_json::to_value(&migrated).expect("JSON")["left"].take();
    for (number, name) in NOT_READ.iter().enumerate() {
        let text = |field: &str| left[number][field].as_str().unwrap_or_default();
        assert!(text("object").ends_with(name) && text("why").starts_with("failed to "), "{left}");
        assert!(text("why").ends_with("; whether it has objects of Kubewarden is not known"), "{left}");
    }
    assert_eq!((migrated.left.len(), migrated.status()), (NOT_READ.len(), 1));

    NOT_READ.iter().for_each(|name| std::fs::remove_file(folder.path().join(name)).expect("removes"));
    let migrated = Migrated::read(folder.path()).expect("reads");
    let names: Vec<_> = migrated.policies.iter().map(|policy| &policy["metadata"]["name"]).collect();
    assert_eq!((names, &migrated.left, migrated.status()), (vec![&json!("a"), &json!("b")], &Vec::new(), 0));

    // One that may be a policy of Kubewarden is not passed over in silence.
    put("theirs.yaml", &format!("{{{{ if .x }}}}: ]\n# {KUBEWARDEN}"));
    let theirs = folder.path().join("theirs.yaml");
    let read = super::documents(folder.path()).expect("reads");
    assert_eq!((read.documents.len(), read.left.len()), (2, 1));
    assert!(read.left[0].object.ends_with("theirs.yaml"), "{:?}", read.left);
    assert!(read.left[0].why.ends_with("; a template must be rendered first"), "{:?}", read.left);
    super::documents(&theirs).err().expect("it is named");
}

#[test]
fn what_is_left_out_names_its_file_and_foreign_objects_alone_are_nothing_to_translate() {
    let folder = tempfile::tempdir().expect("a folder");
    let put = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).expect("writes");
    let shown = folder.path().join("roles.yaml").display().to_string();
    let role = format!("kind: ClusterRole\nmetadata: {{name: a}}\nrules: [{{apiGroups: [{KUBEWARDEN}]}}]\n");
    put("roles.yaml", &role);
    for path in [folder.path().to_owned(), folder.path().join("roles.yaml")] {
        let error = Migrated::read(&path).expect_err("nothing to translate").to_string();
        assert_eq!(error, format!("no manifests of Kubewarden in {}", path.display()));
    }
    put(
        "policy.yaml",
        "apiVersion: policies.kubewarden.io/v1\nkind: ClusterAdmissionPolicy\nmetadata: {name: a}\nspec: {}\n",
    );
    let migrated = Migrated::read(folder.path()).expect("reads");
    let account = migrated.account();
    let foreign = "ClusterRole/a: left out: it does not belong to policies.kubewarden.io/v1; apply it unchanged\n";
    assert!(account.ends_with(&format!("{shown}: {foreign}")), "{account}");
    let left = serde_json::to_value(&migrated.left).expect("JSON");
    assert_eq!((&left[1]["file"], left[1].get("is_foreign")), (&json!(shown), None));
    // One that is named is not passed over.
    put("values.yaml", "a: b\n");
    let error = Migrated::read(&folder.path().join("values.yaml")).expect_err("nothing to translate");
    assert!(error.to_string().starts_with("no manifests of Kubewarden in "), "{error}");
}

#[test]
fn a_policy_of_a_namespace_has_no_scope_and_no_resources_of_the_cluster_as_with_kubewarden() {
    let policy = |kind: &str, rules: &str| {
        migrated(&format!(
            "apiVersion: policies.kubewarden.io/v1\nkind: {kind}\nmetadata: {{name: a, namespace: shop}}\n\
             spec: {{module: 'registry://a.example/b:v1', rules: {rules}}}\n"
        ))
    };
    let rule = |groups: &str, resources: &str, more: &str| {
        format!("{{apiGroups: [{groups}], apiVersions: [v1], operations: [CREATE], resources: [{resources}]{more}}}")
    };
    let dropped = |migrated: &Migrated| -> Vec<String> {
        let rules = migrated.fields.iter().filter(|one| one.field.starts_with("spec.rules["));
        rules.map(|one| format!("{}: {:?}", one.field, one.outcome)).collect()
    };
    for scope in ["'*'", "Cluster"] {
        let rules = format!("[{}]", rule("''", "pods", &format!(", scope: {scope}")));
        let ours = policy("AdmissionPolicy", &rules);
        assert_eq!((&ours.left, ours.status()), (&Vec::new(), 0));
        let wanted =
            json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]);
        assert_eq!(ours.policies[0]["spec"]["rules"], wanted);
        let why = "spec.rules[0].scope: Dropped(\"Kubewarden sets it to Namespaced ";
        assert!(dropped(&ours)[0].starts_with(why), "{:?}", dropped(&ours));
        let of_cluster = policy("ClusterAdmissionPolicy", &rules);
        assert!(of_cluster.policies[0]["spec"]["rules"][0]["scope"].is_string() && dropped(&of_cluster).is_empty());
    }
    let several = [
        rule("'', apps", "pods, namespaces, deployments, nodes/status", ""),
        rule("rbac.authorization.k8s.io", "clusterroles", ""),
        rule("''", "secrets", ", scope: Namespaced"),
    ];
    let ours = policy("AdmissionPolicy", &format!("[{}]", several.join(", ")));
    assert_eq!(ours.left, []);
    let rules = &ours.policies[0]["spec"]["rules"];
    let resources: Vec<_> = rules.as_array().into_iter().flatten().map(|rule| &rule["resources"]).collect();
    assert_eq!(resources, [&json!(["pods", "deployments"]), &json!(["secrets"])]);
    assert_eq!(rules[1]["scope"], "Namespaced");
    let fields: Vec<_> = dropped(&ours).iter().filter_map(|one| one.split(": ").next().map(str::to_owned)).collect();
    assert_eq!(fields, ["spec.rules[0].resources", "spec.rules[0].resources", "spec.rules[1]"]);
    // What cannot be dropped is refused, and never a resource of somebody else.
    for one in [rule("''", "nodes", ""), rule("'', example.com", "nodes, pods", "")] {
        let ours = policy("AdmissionPolicy", &format!("[{one}]"));
        assert!(ours.left[0].why.contains("names a cluster-scoped resource"), "{:?}", ours.left);
        assert_eq!(dropped(&ours), Vec::<String>::new());
    }
}

/// The list of resources here is that of the schema.
#[test]
fn each_resource_of_the_cluster_that_a_policy_would_be_refused_for_is_dropped() {
    for (group, resource) in [
        ("", "namespaces"),
        ("", "nodes"),
        ("", "persistentvolumes"),
        ("rbac.authorization.k8s.io", "clusterroles"),
        ("rbac.authorization.k8s.io", "clusterrolebindings"),
        ("apiextensions.k8s.io", "customresourcedefinitions"),
        ("storage.k8s.io", "storageclasses"),
    ] {
        let policy = |resources: &str| {
            migrated(&format!(
                "apiVersion: policies.kubewarden.io/v1\nkind: AdmissionPolicy\nmetadata: {{name: a, namespace: shop}}\n\
                 spec: {{module: 'registry://a.example/b:v1', rules: [{{apiGroups: ['{group}'], apiVersions: [v1], \
                 operations: [CREATE], resources: [{resources}]}}]}}\n"
            ))
        };
        let alone = policy(resource);
        assert!(alone.left[0].why.contains("names a cluster-scoped resource"), "{resource}: {:?}", alone.left);
        assert_eq!(policy(&format!("others, {resource}")).left, [], "{resource}");
    }
}
