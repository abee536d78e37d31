use portcullis_matching::about;

use super::*;

fn found(id: &str, spec: &Value, request: &Value, namespace_labels: &[(&str, &str)]) -> Match {
    let mut whole = json!({"module": "a.wasm", "rules": [
        {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods", "namespaces"], "operations": ["CREATE"]},
    ]});
    whole.as_object_mut().expect("a mapping").extend(spec.as_object().expect("a mapping").clone());
    let spec: PolicySpec = serde_json::from_value(whole).expect("a spec");
    let labels = namespace_labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    decided(id, &spec, request, NamespaceLabels::All(&labels))
}

fn decided(id: &str, spec: &PolicySpec, request: &Value, labels: NamespaceLabels<'_>) -> Match {
    let text = |field: &str| request["resource"][field].as_str().unwrap_or_default().to_owned();
    let asked = Asked {
        group: text("group"),
        version: text("version"),
        resource: text("resource"),
        subresource: String::new(),
        operation: request["operation"].as_str().unwrap_or_default().to_owned(),
        namespace: request["namespace"].as_str().unwrap_or_default().to_owned(),
    };
    matching(&id.parse().expect("an id"), spec, &asked, request, labels)
}

fn pod(operation: &str) -> Value {
    json!({
        "uid": "1", "operation": operation, "namespace": "shop", "name": "web",
        "resource": {"group": "", "version": "v1", "resource": "pods"},
        "userInfo": {"username": "ada", "groups": []},
        "object": {"metadata": {"name": "web", "labels": {"app": "web"}}, "spec": {"hostNetwork": true}},
    })
}

/// The request to create an object, as it is made from a file.
fn from_file(group: &str, kind: &str, resource: &str, object: &Value) -> Value {
    let asked = Asked {
        group: group.to_owned(),
        version: "v1".to_owned(),
        resource: resource.to_owned(),
        subresource: String::new(),
        operation: "CREATE".to_owned(),
        namespace: if resource == "namespaces" { "" } else { "shop" }.to_owned(),
    };
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let review = about("portcullis-eval", &asked, kind, name, &object.to_string());
    serde_json::from_slice::<Value>(&review).expect("JSON")["request"].take()
}

#[test]
fn each_part_of_a_policy_can_leave_a_request_out() {
    let of = |id: &str, spec: Value, labels: &[(&str, &str)]| found(id, &spec, &pod("CREATE"), labels);
    let app = |value: &str| json!({"objectSelector": {"matchLabels": {"app": value}}});
    let team = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}});
    let named = json!({"namespaceSelector": {"matchLabels": {NAME_LABEL: "shop"}}});
    let condition = |text: &str| json!({"matchConditions": [{"name": "c", "expression": text}]});
    for (id, spec, labels) in [
        ("cluster/a", json!({}), &[][..]),
        ("namespaced/shop/a", json!({}), &[]),
        ("cluster/a", app("web"), &[]),
        ("cluster/a", team.clone(), &[("team", "a")]),
        ("cluster/a", named, &[]),
        ("cluster/a", condition("object.spec.hostNetwork && request.userInfo.username == 'ada'"), &[]),
    ] {
        assert_eq!(of(id, spec.clone(), labels), Match::Yes, "{id} {spec}");
    }
    for (id, spec, word) in [
        ("namespaced/other/a", json!({}), "its own namespace \"other\" only"),
        ("cluster/a", json!({"rules": []}), "no rule matches CREATE of v1/pods"),
        ("cluster/a", app("db"), "objectSelector"),
        ("cluster/a", team, "namespaceSelector"),
        ("cluster/a", condition("request.userInfo.username != 'ada'"), "match condition"),
    ] {
        let Match::No(why) = of(id, spec.clone(), &[]) else { panic!("{id} {spec}") };
        assert!(why.contains(word), "{word:?} in {why}");
    }
    assert!(matches!(found("cluster/a", &json!({}), &pod("DELETE"), &[]), Match::No(_)));
    let only_there = condition("authorizer.group('').resource('pods').check('get').allowed()");
    assert_eq!(of("cluster/a", only_there, &[]), Match::Unknown("match condition \"c\"".to_owned()));

    // An API server adds labels to what was made from a file.
    let named = |name: &str| json!({"objectSelector": {"matchLabels": {NAME_LABEL: name}}});
    let namespace = from_file("", "Namespace", "namespaces", &json!({"metadata": {"name": "shop"}}));
    assert_eq!(found("cluster/a", &named("shop"), &namespace, &[]), Match::Yes);
    assert!(matches!(found("cluster/a", &named("other"), &namespace, &[]), Match::No(_)));
    let generated = from_file("", "Namespace", "namespaces", &json!({"metadata": {"generateName": "shop-"}}));
    assert!(matches!(found("cluster/a", &named("shop-1"), &generated, &[]), Match::Unknown(_)));
    let job_when = |object: Value, condition: &str| {
        let rule = json!({"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["jobs"], "operations": ["*"]});
        let conditions = json!([{"name": "c", "expression": condition}]);
        let selector = json!({"matchLabels": {"app": "web"}});
        let spec = json!({"rules": [rule], "objectSelector": selector, "matchConditions": conditions});
        found("cluster/a", &spec, &from_file("batch", "Job", "jobs", &object), &[])
    };
    let template = json!({"template": {"metadata": {"labels": {"app": "web"}}}});
    let copies = json!({"metadata": {"name": "web"}, "spec": template});
    let of_job = |condition: &str| job_when(copies.clone(), condition);
    for condition in ["true", "object.metadata.annotations.a == 'b'", "object.metadata.ownerReferences == null"] {
        let copied = of_job(condition);
        assert!(matches!(&copied, Match::Unknown(what) if what.contains("adds labels")), "{copied:?}");
    }
    assert_eq!(of_job("request.operation == 'DELETE'"), Match::No("a match condition is false".to_owned()));
    let own = json!({"metadata": {"name": "web", "labels": {"app": "db"}}, "spec": template});
    for (object, why) in [(own, "it has its own"), (json!({"metadata": {"name": "web"}}), "it has no template")] {
        let found = job_when(object, "true");
        assert!(matches!(&found, Match::No(what) if what.contains("objectSelector")), "{why}: {found:?}");
    }
}

#[test]
fn a_namespace_is_selected_by_its_own_labels_and_other_cluster_scoped_objects_always_are() {
    let spec = json!({"namespaceSelector": {"matchLabels": {"team": "a"}}, "rules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
    ]});
    let request = |resource: &str, team: &str| {
        json!({
            "operation": "CREATE", "name": "x", "resource": {"group": "", "version": "v1", "resource": resource},
            "object": {"metadata": {"name": "x", "labels": {"team": team}}},
        })
    };
    assert_eq!(found("cluster/a", &spec, &request("namespaces", "a"), &[]), Match::Yes);
    assert!(matches!(found("cluster/a", &spec, &request("namespaces", "b"), &[]), Match::No(_)));
    assert_eq!(found("cluster/a", &spec, &request("nodes", "b"), &[]), Match::Yes);

    // A deletion brings the stored one only.
    let mut deletion = request("namespaces", "b");
    deletion["operation"] = json!("DELETE");
    deletion["oldObject"] = json!({"metadata": {"name": "x", "labels": {"team": "a"}}});
    deletion["object"] = Value::Null;
    assert_eq!(found("cluster/a", &spec, &deletion, &[]), Match::Yes);
}

#[test]
fn what_no_policy_is_asked_about_is_left_out() {
    let everything = json!({"rules": [
        {"apiGroups": ["*"], "apiVersions": ["*"], "resources": ["*"], "operations": ["*"]},
    ]});
    let request = |group: &str, resource: &str, namespace: &str, name: &str| {
        json!({
            "operation": "CREATE", "name": name, "namespace": namespace,
            "resource": {"group": group, "version": "v1", "resource": resource},
            "userInfo": {"groups": ["system:nodes"]}, "object": {"metadata": {"name": name}},
        })
    };
    for (id, asked, word) in [
        ("cluster/a", request("", "pods", "kube-system", "x"), "in kube-system"),
        ("cluster/a", request("", "pods", "kube-node-lease", "x"), "in kube-node-lease"),
        ("cluster/a", request("", "namespaces", "", "kube-system"), "in kube-system"),
        ("cluster/a", request("authorization.k8s.io", "subjectaccessreviews", "", ""), "authorization.k8s.io"),
        ("cluster/a", request("policies.portcullis.dev", "clusterpolicies", "", "x"), "policies.portcullis.dev"),
        (
            "cluster/a",
            request("apiextensions.k8s.io", "customresourcedefinitions", "", "x.policies.portcullis.dev"),
            "own resources",
        ),
        ("cluster/a", request("", "nodes", "", "x"), "kubelets"),
        ("namespaced/kube-node-lease/a", request("coordination.k8s.io", "leases", "kube-node-lease", "x"), "Leases"),
    ] {
        let Match::No(why) = found(id, &everything, &asked, &[]) else { panic!("{id} {asked}") };
        assert!(why.contains(word), "{word:?} in {why}");
    }
    let mut namespace = request("", "namespaces", "shop", "shop");
    for given in ["shop", ""] {
        namespace["namespace"] = json!(given);
        let own = found("namespaced/shop/a", &everything, &namespace, &[]);
        assert!(matches!(&own, Match::No(why) if why.ends_with("about no Namespace itself")), "{own:?}");
    }
    let own = found("namespaced/kube-system/a", &everything, &request("", "pods", "kube-system", "x"), &[]);
    assert_eq!(own, Match::Yes, "a Policy there is asked");
    let installation = found("cluster/a", &everything, &request("", "pods", INSTALLATION, "x"), &[]);
    assert!(matches!(installation, Match::Unknown(_)), "{installation:?}");
}

#[test]
fn the_same_resource_in_another_version_or_group_may_be_asked_about() {
    let rules = json!([
        {"apiGroups": ["apps"], "apiVersions": ["v1"], "resources": ["deployments", "*/scale"], "operations": ["CREATE"]},
        {"apiGroups": ["batch"], "apiVersions": ["v1"], "resources": ["*"], "operations": ["CREATE"]},
    ]);
    let request = |group: &str, version: &str, resource: &str, operation: &str| {
        json!({
            "operation": operation, "namespace": "shop", "name": "x",
            "resource": {"group": group, "version": version, "resource": resource},
            "object": {"metadata": {"name": "x"}},
        })
    };
    for (asked, may_be) in [
        (request("apps", "v1beta1", "deployments", "CREATE"), true),
        (request("extensions", "v1beta1", "deployments", "CREATE"), false),
        (request("batch", "v2", "jobs", "CREATE"), true),
        (request("apps", "v1beta1", "deployments", "DELETE"), false),
        (request("", "v1", "pods", "CREATE"), false),
        (request("networking.k8s.io", "v1", "deployments", "CREATE"), false),
    ] {
        let of = |policy: &str| found("cluster/a", &json!({"rules": rules, "matchPolicy": policy}), &asked, &[]);
        let equivalent = of("Equivalent");
        assert_eq!(matches!(equivalent, Match::Unknown(_)), may_be, "{asked}: {equivalent:?}");
        assert!(matches!(of("Exact"), Match::No(_)), "{asked}");
        let default = found("cluster/a", &json!({"rules": rules}), &asked, &[]);
        assert_eq!(default, equivalent, "{asked}");
        // A condition may be true about the other version.
        let condition = json!([{"name": "c", "expression": "has(object.spec)"}]);
        let conditional = found("cluster/a", &json!({"rules": rules, "matchConditions": condition}), &asked, &[]);
        assert_eq!(conditional, equivalent, "{asked}");
    }
    // What leaves it out for certain counts more.
    let selecting = json!({"rules": rules, "objectSelector": {"matchLabels": {"app": "web"}}});
    let asked = request("apps", "v1beta1", "deployments", "CREATE");
    assert!(matches!(found("cluster/a", &selecting, &asked, &[]), Match::No(why) if why.contains("objectSelector")));
}

#[test]
fn a_condition_that_fails_denies_or_skips_as_the_failure_policy_says() {
    let of = |text: &str, policy: &str| {
        let condition = json!([{"name": "x", "expression": text}]);
        let mut asked = pod("CREATE");
        asked["object"]["metadata"] = json!({"name": "web"});
        found("cluster/a", &json!({"matchConditions": condition, "failurePolicy": policy}), &asked, &[])
    };
    let (bare, guarded) = ("object.metadata.labels.app == 'web'", "has(object.metadata.labels)");
    let what = "the condition `x` fails, as there is no `labels`";
    let denied = format!("{what}: with failurePolicy Fail an API server denies the request");
    assert_eq!(of(bare, "Fail"), Match::Denied(denied));
    assert_eq!(of(bare, "Ignore"), Match::No(format!("{what}, and failurePolicy is Ignore")));
    for policy in ["Fail", "Ignore"] {
        let found = of(&format!("{guarded} && {bare}"), policy);
        assert_eq!(found, Match::No("a match condition is false".to_owned()), "{policy}");
    }
}

#[test]
fn a_namespace_whose_labels_are_not_known_is_judged_by_its_name() {
    let of = |selector: Value| {
        let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["*"]}]);
        let spec = json!({"module": "a.wasm", "rules": rules, "namespaceSelector": selector});
        let spec: PolicySpec = serde_json::from_value(spec).expect("a spec");
        decided("cluster/a", &spec, &pod("CREATE"), NamespaceLabels::NotKnown)
    };
    let name = |operator: &str| json!({"key": NAME_LABEL, "operator": operator, "values": ["shop"]});
    assert_eq!(of(json!({})), Match::Yes);
    assert_eq!(of(json!({"matchExpressions": [name("In")]})), Match::Yes);
    assert!(matches!(of(json!({"matchExpressions": [name("NotIn")]})), Match::No(_)));
    assert!(matches!(of(json!({"matchLabels": {"team": "a"}})), Match::Unknown(what) if what.contains("shop")));
    let both = json!({"matchLabels": {"team": "a"}, "matchExpressions": [name("NotIn")]});
    assert!(matches!(of(both), Match::No(_)), "its name leaves it out, whatever its team");
}
