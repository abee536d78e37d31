//! Compares what a module's metadata declares with what its policy grants, before the first request. Pure.
//!
//! A difference never stops a policy: the metadata is only a claim by the module's author, and a policy may work without what it asks for.

use portcullis_contract::{Capability, ContextAwareResource, Mismatch, MismatchReason, PolicyId, is_granted};

use crate::content::Body;
use crate::declared::Declared;
use crate::volume::ArtifactRecord;

/// What the installation provides to policies.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Provided {
    /// Whether there is a broker, which answers host calls that need the network.
    pub(crate) broker: bool,
    /// Whether the broker has an API server to ask, or a recording.
    pub(crate) cluster: bool,
    /// Patterns of the capabilities that Policies, which belong to a namespace, may have.
    pub(crate) namespaced: Vec<String>,
}

/// Most names in one message.
const MAX_NAMES: usize = 4;

/// The differences between module and policy, at most one of each kind.
pub(crate) fn mismatches(id: &PolicyId, body: &Body, artifact: &ArtifactRecord, provided: &Provided) -> Vec<Mismatch> {
    let uncalled = body.uncalled.then(|| {
        let text =
            "spec.expression never calls it, so it is never asked: call it there, or remove it from spec.policies";
        Mismatch::new(MismatchReason::MemberNotCalled, text)
    });
    uncalled.into_iter().chain(with_metadata(id, body, artifact, provided)).collect()
}

/// The differences between the module's metadata and the policy.
fn with_metadata(id: &PolicyId, body: &Body, artifact: &ArtifactRecord, provided: &Provided) -> Vec<Mismatch> {
    let Some(declared) = &artifact.declared else {
        let text = "an earlier release compiled the module and did not keep its metadata; it is compared when the module is compiled again";
        return vec![Mismatch::new(MismatchReason::NoMetadata, text)];
    };
    if !declared.has_section {
        let text = "the module has no metadata section: it is taken for a waPC guest, and what it asks for is not known; \
                    `kwctl annotate` adds the section";
        return vec![Mismatch::new(MismatchReason::NoMetadata, text)];
    }
    let wanted = capabilities(declared, artifact.execution_mode.is_rego());
    let (granted, missing): (Vec<&str>, Vec<&str>) =
        wanted.into_iter().partition(|path| allows(&body.host_capabilities, path));
    let unavailable = granted.into_iter().find_map(|path| Some((path, unavailable(path, id, provided)?)));
    let found = [
        unavailable.map(|(path, why)| Mismatch::new(MismatchReason::CapabilityUnavailable, format!("{path}: {why}"))),
        (!missing.is_empty()).then(|| {
            let text = format!(
                "the module declares {}, and the policy does not grant it: calls of it fail; add it to spec.hostCapabilities",
                names(&missing)
            );
            Mismatch::new(MismatchReason::CapabilityNotGranted, text)
        }),
        kinds(id, body, declared),
        mutating(body, declared),
        rules(body, declared),
        (declared.raw && !body.resources.is_empty()).then(|| {
            let text = "the module is for raw requests (policyType: raw), and spec.rules send it admission requests";
            Mismatch::new(MismatchReason::RawPolicy, text)
        }),
    ];
    found.into_iter().flatten().collect()
}

/// The capabilities that the module declares, as paths and patterns. Those that need no grant are left out.
fn capabilities(declared: &Declared, is_rego: bool) -> Vec<&str> {
    let is_free = |path: &str| path == Capability::Log.path();
    let mut wanted: Vec<&str> =
        declared.host_capabilities.iter().map(String::as_str).filter(|path| !is_free(path)).collect();
    // Older metadata has no names of capabilities, only the kinds. Rego policies read them without a capability.
    if wanted.is_empty() && !declared.context_aware_resources.is_empty() && !is_rego {
        wanted.push("kubernetes/*");
    }
    wanted
}

/// The capabilities that a declared path or pattern stands for.
fn meant(declared: &str) -> impl Iterator<Item = Capability> {
    let pattern = [declared.to_owned()];
    Capability::ALL.iter().copied().filter(move |capability| is_granted(&pattern, capability.path()))
}

/// Whether a declared path or pattern is granted. For a pattern, a grant for any of its capabilities is enough: it is not known which of them
/// the module calls.
fn allows(grants: &[String], declared: &str) -> bool {
    is_granted(grants, declared) || meant(declared).any(|capability| is_granted(grants, capability.path()))
}

/// Why a capability that is granted is not available; `None` if it is.
fn unavailable(path: &str, id: &PolicyId, provided: &Provided) -> Option<&'static str> {
    let meant: Vec<Capability> = meant(path).collect();
    let needs_broker = meant.iter().all(|capability| capability.needs_broker());
    if meant.is_empty() {
        Some("this release of Portcullis does not provide it")
    } else if id.namespace().is_some() && !allows(&provided.namespaced, path) {
        Some(
            "the installation does not allow it to policies of a namespace; its operator can, by the chart's \
             capabilities.namespaced (--namespaced-capability), or use a ClusterPolicy",
        )
    } else if !provided.broker && needs_broker {
        Some("the installation has no broker; start loader and evaluator with --broker-socket")
    } else if !provided.cluster && meant.iter().all(|capability| capability.is_of_cluster()) {
        Some("there is no API server to ask; give the loader one by --kubeconfig")
    } else {
        None
    }
}

fn kinds(id: &PolicyId, body: &Body, declared: &Declared) -> Option<Mismatch> {
    let missing: Vec<String> = declared
        .context_aware_resources
        .iter()
        .filter(|kind| !body.context_aware_resources.contains(kind))
        .map(|ContextAwareResource { api_version, kind }| format!("{api_version}/{kind}"))
        .collect();
    let missing: Vec<&str> = missing.iter().map(String::as_str).collect();
    let next = match id.namespace() {
        None => "add it to spec.contextAwareResources",
        Some(_) => "a policy of a namespace cannot have it; use a ClusterPolicy",
    };
    let text =
        format!("the module declares that it reads {}, which the policy does not grant: {next}", names(&missing));
    (!missing.is_empty()).then(|| Mismatch::new(MismatchReason::KindNotGranted, text))
}

fn mutating(body: &Body, declared: &Declared) -> Option<Mismatch> {
    let text = match (declared.mutating?, body.mutating) {
        (true, false) => {
            "the module changes requests, and spec.mutating is false: a request that it changes is rejected; set spec.mutating"
        }
        (false, true) => "spec.mutating is true, and the module declares that it changes nothing: remove spec.mutating",
        _ => return None,
    };
    Some(Mismatch::new(MismatchReason::MutatingDiffers, text))
}

/// The difference about rules: resources of the policy's rules that the module's rules clearly do not cover.
fn rules(body: &Body, declared: &Declared) -> Option<Mismatch> {
    let is_covered = |one: &str| declared.resources.iter().any(|other| overlap(one, other));
    let others: Vec<&str> = body.resources.iter().map(String::as_str).filter(|one| !is_covered(one)).collect();
    let others: Vec<&str> = others.iter().map(|one| one.strip_prefix('/').unwrap_or(one)).collect();
    let is_known = !declared.resources.is_empty();
    (is_known && !others.is_empty()).then(|| {
        let text = format!(
            "spec.rules name {}, which is in none of the module's own rules: it may not expect it",
            names(&others)
        );
        Mismatch::new(MismatchReason::RulesDiffer, text)
    })
}

/// Whether two resources may overlap. A wildcard overlaps with everything, with and without subresource.
fn overlap(one: &str, other: &str) -> bool {
    let parts = |text: &'_ str| {
        let mut parts = text.splitn(3, '/').map(str::to_owned);
        [parts.next(), parts.next(), parts.next()]
    };
    let (one, other) = (parts(one), parts(other));
    let star = Some("*");
    let any = |a: &Option<String>, b: &Option<String>| a == b || a.as_deref() == star || b.as_deref() == star;
    let all = |parts: &[Option<String>; 3]| parts[1].as_deref() == star && parts[2].is_none();
    any(&one[0], &other[0]) && any(&one[1], &other[1]) && (any(&one[2], &other[2]) || all(&one) || all(&other))
}

/// The first names, and how many more there are.
fn names(all: &[&str]) -> String {
    let shown = all.iter().take(MAX_NAMES).copied().collect::<Vec<_>>().join(", ");
    match all.len().saturating_sub(MAX_NAMES) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

#[cfg(test)]
mod tests {
    use portcullis_contract::{Artifact, Digest, ExecutionMode};
    use serde_json::json;

    use super::*;

    const EVERYTHING: fn() -> Provided = || Provided { broker: true, cluster: true, namespaced: vec!["*".to_owned()] };

    fn kind(kind: &str) -> ContextAwareResource {
        ContextAwareResource { api_version: "v1".to_owned(), kind: kind.to_owned() }
    }

    fn texts(all: &[&str]) -> Vec<String> {
        all.iter().map(|text| (*text).to_owned()).collect()
    }

    fn body() -> Body {
        let body = json!({"module": "m", "settings": {}, "mutating": false, "resources": ["/pods"]});
        serde_json::from_str(&body.to_string()).expect("a body")
    }

    fn declared() -> Declared {
        Declared { has_section: true, mutating: Some(false), resources: texts(&["/pods"]), ..Declared::default() }
    }

    fn compared(id: &str, body: &Body, declared: Option<Declared>, provided: &Provided) -> Vec<Mismatch> {
        let artifact = ArtifactRecord {
            artifact: Artifact { file: "a".to_owned(), sha256: Digest::of(b"a"), size: 1 },
            execution_mode: ExecutionMode::KubewardenWapc,
            declared,
        };
        mismatches(&id.parse().expect("an id"), body, &artifact, provided)
    }

    fn reasons(body: &Body, declared: Declared) -> Vec<MismatchReason> {
        compared("cluster/a", body, Some(declared), &EVERYTHING()).into_iter().map(|found| found.reason).collect()
    }

    #[test]
    fn what_agrees_has_no_difference() {
        assert_eq!(reasons(&body(), declared()), []);
        let log = Declared { host_capabilities: texts(&["tracing/log"]), ..declared() };
        assert_eq!(reasons(&body(), log), [], "it needs no grant");
        let says_nothing = Declared { has_section: true, ..Declared::default() };
        assert_eq!(reasons(&Body { mutating: true, ..body() }, says_nothing), []);
    }

    #[test]
    fn each_difference_has_its_kind() {
        use MismatchReason::{
            CapabilityNotGranted, KindNotGranted, MemberNotCalled, MutatingDiffers, NoMetadata, RawPolicy, RulesDiffer,
        };
        let oci = || Declared { host_capabilities: texts(&["oci/v1/verify", "oci/v2/verify"]), ..declared() };
        let reads = || Declared { context_aware_resources: vec![kind("Pod")], ..declared() };
        let granting = |patterns: &[&str], kinds: &[&str]| Body {
            host_capabilities: texts(patterns),
            context_aware_resources: kinds.iter().map(|name| kind(name)).collect(),
            ..body()
        };
        let table: Vec<(Body, Declared, &[MismatchReason])> = vec![
            (body(), oci(), &[CapabilityNotGranted]),
            (granting(&["oci/v1/verify"], &[]), oci(), &[CapabilityNotGranted]),
            (granting(&["oci/*"], &[]), oci(), &[]),
            (body(), reads(), &[CapabilityNotGranted, KindNotGranted]),
            (granting(&["kubernetes/*"], &[]), reads(), &[KindNotGranted]),
            (granting(&["kubernetes/*"], &["Pod"]), reads(), &[]),
            (granting(&["kubernetes/get_resource"], &["Pod"]), reads(), &[]),
            (body(), Declared { mutating: Some(true), ..declared() }, &[MutatingDiffers]),
            (Body { mutating: true, ..body() }, declared(), &[MutatingDiffers]),
            (body(), Declared { resources: texts(&["apps/deployments"]), ..declared() }, &[RulesDiffer]),
            (body(), Declared { raw: true, ..declared() }, &[RawPolicy]),
            (Body { resources: Vec::new(), ..body() }, Declared { raw: true, ..declared() }, &[]),
            (body(), Declared::default(), &[NoMetadata]),
            (Body { uncalled: true, ..body() }, Declared::default(), &[MemberNotCalled, NoMetadata]),
        ];
        for (body, declared, expected) in table {
            assert_eq!(reasons(&body, declared.clone()), expected, "{declared:?}");
        }
        let of_earlier_release = compared("cluster/a", &body(), None, &EVERYTHING());
        assert_eq!(of_earlier_release[0].reason, NoMetadata);
    }

    #[test]
    fn what_is_granted_and_cannot_be_had_is_told_with_what_helps() {
        let wants = |path: &str| {
            let body = Body { host_capabilities: texts(&["*"]), ..body() };
            (body, Declared { host_capabilities: texts(&[path]), ..declared() })
        };
        let nothing = Provided::default();
        for (id, path, provided, words) in [
            ("cluster/a", "net/v1/dns_lookup_host", &nothing, Some("--broker-socket")),
            ("cluster/a", "crypto/v1/is_certificate_trusted", &nothing, None),
            ("cluster/a", "kubernetes/can_i", &Provided { cluster: false, ..EVERYTHING() }, Some("--kubeconfig")),
            ("cluster/a", "oci/*", &Provided { cluster: false, ..EVERYTHING() }, None),
            ("cluster/a", "teleport/v1/beam", &EVERYTHING(), Some("does not provide it")),
            (
                "namespaced/n/a",
                "oci/v1/verify",
                &Provided { namespaced: vec![], ..EVERYTHING() },
                Some("capabilities.namespaced"),
            ),
            ("namespaced/n/a", "oci/v1/verify", &EVERYTHING(), None),
            ("namespaced/n/a", "crypto/v1/is_certificate_trusted", &nothing, Some("capabilities.namespaced")),
            (
                "namespaced/n/a",
                "cache/*",
                &Provided { namespaced: vec![], ..EVERYTHING() },
                Some("capabilities.namespaced"),
            ),
            ("namespaced/n/a", "cache/*", &Provided { namespaced: texts(&["cache/get"]), ..EVERYTHING() }, None),
        ] {
            let (body, declared) = wants(path);
            let found = compared(id, &body, Some(declared), provided);
            assert_eq!(found.len(), usize::from(words.is_some()), "{id} {path}: {found:?}");
            if let Some(words) = words {
                assert_eq!(found[0].reason, MismatchReason::CapabilityUnavailable);
                assert!(found[0].message.starts_with(path) && found[0].message.contains(words), "{found:?}");
            }
        }
    }

    #[test]
    fn only_resources_that_are_clearly_others_count() {
        for (one, other, expected) in [
            ("/pods", "/pods", true),
            ("/pods", "apps/pods", false),
            ("/pods", "*/*", true),
            ("/pods/exec", "/pods", false),
            ("/pods/exec", "/pods/*", true),
            ("/pods/exec", "/*", true),
            ("/pods/exec", "/*/*", true),
            ("/pods/exec", "/*/exec", true),
            ("/pods/exec", "/*/scale", false),
            ("*/*", "apps/deployments", true),
            ("apps/*", "batch/jobs", false),
        ] {
            assert_eq!((overlap(one, other), overlap(other, one)), (expected, expected), "{one} {other}");
        }
    }

    #[test]
    fn many_names_are_counted() {
        let many: Vec<String> = (0..30).map(|n| format!("oci/v1/{n}{}", "x".repeat(100))).collect();
        let found =
            compared("cluster/a", &body(), Some(Declared { host_capabilities: many, ..declared() }), &EVERYTHING());
        assert!(found.len() == 1 && found[0].message.len() <= Mismatch::MAX_MESSAGE, "{found:?}");
        assert_eq!(names(&["a", "b", "c", "d", "e", "f"]), "a, b, c, d and 2 more");
    }
}
