//! Settings that a program of the chart would refuse: Helm refuses them first, since a pod that restarts for ever names no cause.

use serde_json::{Value, json};

use portcullis_contract::Capability;

use crate::{refusal, render};

#[test]
fn what_a_program_would_refuse_helm_refuses_with_the_value_and_the_cause() {
    let sources = |sources: Value| json!({ "modules": { "sources": sources } });
    for (values, named) in [
        (
            json!({ "modules": { "allowedSources": ["ghcr.io/kubewarden/*"] } }),
            &["/modules/allowedSources/0", "ghcr.io/kubewarden/*", "registry|https?"][..],
        ),
        (json!({ "modules": { "allowedSources": ["https://example.com*"] } }), &["/modules/allowedSources/0"]),
        (
            json!({ "modules": { "allowedPrivate": ["10.0.0.1", "registry.internal:5000"] } }),
            &["modules.allowedPrivate lists \"registry.internal:5000\"", "leave out scheme, port and path"],
        ),
        (
            json!({ "modules": { "allowedPrivate": ["10.0.0.0/33"] } }),
            &["modules.allowedPrivate lists \"10.0.0.0/33\""],
        ),
        (json!({ "modules": { "allowedPrivate": ["fd00::/129"] } }), &["modules.allowedPrivate lists \"fd00::/129\""]),
        (json!({ "enabled": false }), &["enabled is false", "do not install it"]),
        (sources(json!({ "insecureSources": ["registry.dev"] })), &["/modules/sources", "'insecureSources'"]),
        (
            sources(json!({ "proxies": { "httpsProxy": "http://proxy:3128" } })),
            &["/modules/sources/proxies", "'httpsProxy'"],
        ),
        (sources(json!({ "allowed_sources": ["ghcr.io/*"] })), &["/modules/sources/allowed_sources/0"]),
        (
            json!({ "modules": { "verification": { "signatures": { "allOf": [] } } } }),
            &["/modules/verification", "'signatures'"],
        ),
        (
            json!({ "modules": { "verification": { "apiVersion": "v1" } } }),
            &["modules.verification names no signer", "leave modules.verification empty"],
        ),
        (json!({ "capabilities": { "namespaced": ["nonsense"] } }), &["/capabilities/namespaced/0", "'oci/*'"]),
        (json!({ "capabilities": { "namespaced": ["oci"] } }), &["/capabilities/namespaced/0"]),
        (
            json!({ "webhooks": { "labels": { "admissions.enforcer/disabled/x": "true" } } }),
            &["/webhooks/labels", "admissions.enforcer/disabled/x"],
        ),
        (json!({ "webhooks": { "labels": { "Example.com/team": "a" } } }), &["/webhooks/labels", "Example.com/team"]),
        (json!({ "webhooks": { "labels": { "team,other": "a" } } }), &["/webhooks/labels", "team,other"]),
        (json!({ "labels": { "the team": "a" } }), &["/labels", "the team"]),
        (json!({ "labels": { "team": "no spaces" } }), &["/labels/team", "no spaces"]),
        (json!({ "server": { "nodeSelector": { "pool=": "a" } } }), &["/server/nodeSelector", "pool="]),
        (json!({ "server": { "podAnnotations": { "a/b/c": "" } } }), &["/server/podAnnotations", "a/b/c"]),
        (json!({ "webhooks": { "pathKeyAge": "10m" } }), &["webhooks.pathKeyAge is 10m", "replacing a key takes 10m"]),
        (json!({ "certificates": { "caLifetime": "18m" } }), &["certificates.caLifetime is 18m", "for instance 365d"]),
        (
            json!({ "certificates": { "caLifetime": "25m" }, "siblings": { "enabled": true } }),
            &["certificates.caLifetime is 25m"],
        ),
        (json!({ "certificates": { "servingLifetime": "9s" } }), &["certificates.servingLifetime is 9s", "want 10s"]),
        (json!({ "audit": { "interval": "0s" } }), &["audit.interval is 0s", "want 1s at least"]),
        (json!({ "audit": { "interval": "999ms" } }), &["audit.interval is 999ms"]),
        (json!({ "evaluator": { "policyTimeout": "0ms" } }), &["evaluator.policyTimeout is 0ms"]),
        (json!({ "evaluator": { "memoryLimit": "1MiB" } }), &["evaluator.memoryLimit is 1MiB", "want 2MiB"]),
        (
            json!({ "evaluator": { "memoryLimit": "5GiB", "resources": { "limits": null } } }),
            &["evaluator.memoryLimit is 5GiB", "to 4GiB"],
        ),
        (
            json!({ "evaluator": { "drainDelay": "25s" } }),
            &["server.terminationGracePeriodSeconds is 45", "25s of evaluator.drainDelay", "want 46 at least"],
        ),
        (
            json!({ "evaluator": { "drainDelay": "1m30s" }, "server": { "terminationGracePeriodSeconds": 110 } }),
            &["server.terminationGracePeriodSeconds is 110", "want 111 at least"],
        ),
    ] {
        let words = refusal(&values);
        for part in named {
            assert!(words.contains(part), "{part}: {values}: {words}");
        }
    }
}

#[test]
fn what_the_programs_accept_is_not_refused() {
    let private = [
        "10.0.0.0/8",
        "0.0.0.0/0",
        "10.0.0.1",
        "registry.internal",
        "my_host",
        "::1",
        "[::1]",
        "fd00::/8",
        "2001:db8::1/128",
    ];
    let signer = json!({ "kind": "pubKey", "key": "k" });
    for values in [
        json!({ "modules": { "allowedSources": ["registry://ghcr.io/kubewarden/*", "https://example.com/policies/one.wasm"] } }),
        json!({ "modules": { "allowedPrivate": private } }),
        json!({ "modules": { "sources": {
            "insecure_sources": ["registry.dev:5000"], "allowed_sources": ["registry://registry.example.com/*"],
            "source_authorities": { "registry.example.com": [{ "type": "Path", "path": "/etc/ca.pem" }] },
            "proxies": { "http_proxy": "http://proxy:3128", "https_proxy": "http://proxy:3128", "no_proxy": "registry.internal" },
        } } }),
        json!({ "modules": { "verification": { "anyOf": { "minimumMatches": 1, "signatures": [signer] } } } }),
        // As `kwctl scaffold verification-config` writes it.
        json!({ "modules": { "verification": {
            "apiVersion": "v1", "anyOf": null,
            "allOf": [{ "kind": "githubAction", "owner": "kubewarden", "repo": null, "annotations": null }],
        } } }),
        json!({ "modules": { "sources": { "proxies": { "https_proxy": "http://proxy:3128", "http_proxy": null, "no_proxy": null } } } }),
        json!({ "webhooks": { "labels": { "admissions.enforcer/disabled": "true", "Team": "a_b.c-D", "empty": "" } } }),
        json!({
            "labels": { "example.com/Team_1": "" }, "server": { "podAnnotations": { "Example.com/note": "any {text}" } },
        }),
        json!({ "logs": { "level": "INFO" } }),
        json!({ "logs": { "level": "Info,portcullis_loader=DEBUG" } }),
        json!({ "webhooks": { "pathKeyAge": "10m1s" }, "certificates": { "caLifetime": "18m1s", "servingLifetime": "10s" } }),
        // Shorter lifetimes are allowed where the controller is given other pauses.
        json!({
            "controller": { "extraArgs": ["--ca-pause=1s", "--tls-pause=1s"] },
            "webhooks": { "pathKeyAge": "1m" }, "certificates": { "caLifetime": "1m" },
        }),
        json!({ "audit": { "interval": "1s" }, "evaluator": { "memoryLimit": "2MiB", "policyTimeout": "1ms" } }),
        json!({ "evaluator": { "drainDelay": "9999ms" }, "server": { "terminationGracePeriodSeconds": 30 } }),
    ] {
        assert!(!render(&values).is_empty());
    }
}

/// The values with these resources of a program.
fn resources(program: &str, requests: &Value, limits: &Value) -> Value {
    json!({ program: { "resources": { "requests": requests, "limits": limits } } })
}

#[test]
fn a_request_above_its_limit_is_refused_before_the_api_server_refuses_the_pods() {
    for (program, requests, limits, request, limit) in [
        // Those that are not given are the chart's defaults.
        ("evaluator", json!({ "memory": "2Gi" }), json!({}), "memory is 2Gi", "memory, 1Gi"),
        ("evaluator", json!({}), json!({ "cpu": "100m" }), "cpu is 200m", "cpu, 100m"),
        ("loader", json!({ "memory": "1025Mi" }), json!({}), "memory is 1025Mi", "memory, 1Gi"),
        ("reporter", json!({}), json!({ "memory": "16Mi" }), "memory is 32Mi", "memory, 16Mi"),
        ("controller", json!({ "cpu": 1 }), json!({ "cpu": "0.5" }), "cpu is 1", "cpu, 0.5"),
        (
            "loader",
            json!({ "ephemeral-storage": "2e9" }),
            json!({ "ephemeral-storage": "1G" }),
            "ephemeral-storage is 2e9",
            "ephemeral-storage, 1G",
        ),
    ] {
        let words = refusal(&resources(program, &requests, &limits));
        for part in [format!("{program}.resources.requests.{request}"), format!("{program}.resources.limits.{limit},")]
        {
            assert!(words.contains(&part), "{part}: {words}");
        }
    }
    for program in ["loader", "evaluator", "reporter", "controller"] {
        for (requests, limits) in [
            (json!({ "cpu": "100m", "memory": "1Gi" }), json!({ "cpu": 0.1, "memory": 1_073_741_824 })),
            (json!({ "memory": "2Gi" }), json!({ "memory": null })),
            (json!({ "memory": null, "cpu": null }), json!({ "memory": "1Gi", "cpu": "1m" })),
            (json!({ "memory": "2Gi", "cpu": "8" }), json!({ "memory": "1Pi" })),
        ] {
            assert!(!render(&resources(program, &requests, &limits)).is_empty());
        }
    }
}

#[test]
fn quantities_are_read_as_kubernetes_reads_them() {
    // Each is less than the evaluator needs, however it is written.
    for little in ["5e8", "5E+8", "800000000000m", "800000000000000000n", "0.0000005P", ".5Gi", "800000k", "0.8G"] {
        let words = refusal(&resources("evaluator", &json!({ "memory": "1k" }), &json!({ "memory": little })));
        let named = format!("evaluator.resources.limits.memory is {little}, which has no room");
        assert!(words.contains(&named), "{little}: {words}");
    }
    for enough in ["1e9", "1E", "1Ei", "1Pi", "900000000000000u", "+1Gi", "1.Gi", "1T"] {
        assert!(!render(&resources("evaluator", &json!({}), &json!({ "memory": enough }))).is_empty());
    }
    for unknown in ["1GB", "1K", "1gi", "-1Gi", "1e", "1m3", "1 Gi", "a lot", ""] {
        for side in ["requests", "limits"] {
            let words = refusal(&json!({ "reporter": { "resources": { side: { "memory": unknown } } } }));
            let named = format!("reporter.resources.{side}.memory is {unknown:?}, which is not a quantity");
            assert!(words.contains(&named), "{unknown}: {words}");
        }
    }
}

#[test]
fn every_capability_can_be_granted_to_namespaces() {
    let paths = Capability::ALL.iter().map(|capability| capability.path());
    let prefixes = |path: &'static str| path.match_indices('/').map(|(end, _)| format!("{}/*", &path[..end]));
    let patterns: Vec<_> =
        paths.flat_map(|path| prefixes(path).chain([path.to_owned()])).chain(["*".to_owned()]).collect();
    assert_eq!(Capability::check_patterns(&patterns), Ok(()));
    render(&json!({ "capabilities": { "namespaced": patterns } }));
}
