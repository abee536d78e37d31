//! The request to evaluate: an AdmissionReview, made from what the user has (a review, a request or an object). Pure.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use portcullis_matching::{Asked, about};
use portcullis_yaml::ReadOtherwise;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use crate::document::documents;

/// The kinds of Kubernetes whose objects are in no namespace, by their API groups.
const CLUSTER_KINDS: [(&str, &[&str]); 18] = [
    ("", &["ComponentStatus", "Namespace", "Node", "PersistentVolume"]),
    (
        "admissionregistration.k8s.io",
        &[
            "MutatingAdmissionPolicy",
            "MutatingAdmissionPolicyBinding",
            "MutatingWebhookConfiguration",
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ValidatingWebhookConfiguration",
        ],
    ),
    ("apiextensions.k8s.io", &["CustomResourceDefinition"]),
    ("apiregistration.k8s.io", &["APIService"]),
    ("authentication.k8s.io", &["SelfSubjectReview", "TokenReview"]),
    ("authorization.k8s.io", &["SelfSubjectAccessReview", "SelfSubjectRulesReview", "SubjectAccessReview"]),
    ("certificates.k8s.io", &["CertificateSigningRequest", "ClusterTrustBundle"]),
    ("extensions", &["PodSecurityPolicy"]),
    ("flowcontrol.apiserver.k8s.io", &["FlowSchema", "PriorityLevelConfiguration"]),
    ("internal.apiserver.k8s.io", &["StorageVersion"]),
    ("networking.k8s.io", &["IPAddress", "IngressClass", "ServiceCIDR"]),
    ("node.k8s.io", &["RuntimeClass"]),
    ("policy", &["PodSecurityPolicy"]),
    ("rbac.authorization.k8s.io", &["ClusterRole", "ClusterRoleBinding"]),
    ("resource.k8s.io", &["DeviceClass", "DeviceTaintRule", "ResourceClass", "ResourceSlice"]),
    ("scheduling.k8s.io", &["PriorityClass"]),
    ("storage.k8s.io", &["CSIDriver", "CSINode", "StorageClass", "VolumeAttachment", "VolumeAttributesClass"]),
    ("storagemigration.k8s.io", &["StorageVersionMigration"]),
];

/// The namespace of objects that name none.
const DEFAULT: &str = "default";

/// An AdmissionReview, or a raw request.
#[derive(Debug)]
pub(crate) struct Review {
    /// Its JSON.
    pub(crate) bytes: Vec<u8>,
    /// Whether it is a raw request.
    pub(super) is_raw: bool,
    /// How it was made, if the user did not give an AdmissionReview.
    pub(super) notes: Vec<String>,
    /// The scalars in it that kubectl gives to an API server as something else than is read here.
    pub(crate) otherwise: Vec<ReadOtherwise>,
    /// The parts of the request that rules look at, if it has them.
    pub(crate) asked: Option<Asked>,
}

impl Review {
    /// From any JSON or YAML, for a policy of raw requests.
    pub(super) fn raw(text: &[u8]) -> anyhow::Result<Self> {
        // No kubectl reads such a request.
        let (_, raw, _) = any(text)?;
        let bytes = format!(r#"{{"request":{}}}"#, raw.get()).into();
        Ok(Self { bytes, is_raw: true, notes: Vec::new(), otherwise: Vec::new(), asked: None })
    }

    /// From an AdmissionReview, a request or an object, in JSON or YAML. JSON is passed on unchanged.
    pub(crate) fn from(text: &[u8]) -> anyhow::Result<Self> {
        let (value, raw, otherwise) = any(text)?;
        Ok(Self { otherwise, ..Self::of(&value, raw.get())? })
    }

    /// From a value, whose JSON is `raw`.
    fn of(value: &Value, raw: &str) -> anyhow::Result<Self> {
        ensure!(value.is_object(), "want an AdmissionReview, its request, or a Kubernetes object");
        let new =
            |bytes, notes, request| Self { bytes, is_raw: false, notes, otherwise: Vec::new(), asked: asked(request) };
        if value["kind"] == "AdmissionReview" {
            ensure!(value["request"].is_object(), "it is an AdmissionReview without a request (perhaps a response?)");
            return Ok(new(raw.into(), Vec::new(), &value["request"]));
        }
        if value["operation"].is_string() && !value["apiVersion"].is_string() {
            let text = format!(r#"{{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{raw}}}"#);
            let notes = vec!["it is a bare request; it was put into an AdmissionReview".to_owned()];
            return Ok(new(text.into(), notes, value));
        }
        object(value, raw)
    }
}

/// The value of a text, its JSON, as it is written or made from YAML, and what kubectl reads otherwise in YAML.
fn any(text: &[u8]) -> anyhow::Result<(Value, Box<RawValue>, Vec<ReadOtherwise>)> {
    ensure!(!text.trim_ascii().is_empty(), "it is empty");
    let json_error = match serde_json::from_slice::<Box<RawValue>>(text) {
        Ok(raw) => return Ok((serde_json::from_str(raw.get())?, raw, Vec::new())),
        Err(error) => error,
    };
    let wrong = || format!("it is neither JSON ({json_error}) nor YAML");
    // It is read as YAML whatever its name says.
    let mut documents = documents(Path::new(""), text).with_context(wrong)?;
    ensure!(documents.len() <= 1, "it has several documents; evaluate one at a time");
    let document = documents.pop().filter(|document| document.value.is_object() || document.value.is_array());
    let document = document.with_context(|| format!("it is neither JSON ({json_error}) nor a YAML mapping"))?;
    let raw = to_raw_value(&document.value)?;
    Ok((document.value, raw, document.otherwise))
}

/// A request to create an object.
fn object(value: &Value, raw: &str) -> anyhow::Result<Review> {
    let (Some(api_version), Some(kind)) = (value["apiVersion"].as_str(), value["kind"].as_str()) else {
        bail!(
            "want an AdmissionReview (kind: AdmissionReview), its request (with `operation`), or a Kubernetes object (with \
             apiVersion and kind)"
        );
    };
    if let (Some(of), Some(items)) = (kind.strip_suffix("List"), value["items"].as_array()) {
        let of = if of.is_empty() { "objects" } else { of };
        bail!("it is a list of {} {of}; evaluate one at a time", items.len());
    }
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let written = value["metadata"]["namespace"].as_str().filter(|namespace| !namespace.is_empty());
    let is_of_cluster = CLUSTER_KINDS.iter().any(|(of, kinds)| *of == group && kinds.contains(&kind));
    let (namespace, filled) = match written {
        Some(namespace) => (Some(namespace), None),
        None if is_of_cluster => (None, None),
        None => (Some(DEFAULT), Some(in_namespace(raw, DEFAULT).context("metadata")?)),
    };
    let resource = plural(kind);
    let name = value["metadata"]["name"].as_str().unwrap_or_default();
    let asked = Asked {
        group: group.to_owned(),
        version: version.to_owned(),
        resource: resource.clone(),
        subresource: String::new(),
        operation: "CREATE".to_owned(),
        namespace: namespace.unwrap_or_default().to_owned(),
    };
    let bytes = about("portcullis-eval", &asked, kind, name, filled.as_deref().unwrap_or(raw));
    let place = namespace.map(|namespace| format!(" in namespace {namespace}")).unwrap_or_default();
    let notes = vec![format!("it is a {kind}; it was evaluated as a request to create it ({resource}{place})")];
    Ok(Review { bytes, is_raw: false, notes, otherwise: Vec::new(), asked: Some(asked) })
}

/// An object with its namespace, which API servers fill in before they ask. Each field stays as it is written, but for their order, which
/// means nothing.
fn in_namespace(raw: &str, namespace: &str) -> serde_json::Result<String> {
    type Fields = BTreeMap<String, Box<RawValue>>;
    let mut object: Fields = serde_json::from_str(raw)?;
    let metadata = object.get("metadata").map(|metadata| serde_json::from_str::<Option<Fields>>(metadata.get()));
    let mut metadata = metadata.transpose()?.flatten().unwrap_or_default();
    metadata.insert("namespace".to_owned(), to_raw_value(namespace)?);
    object.insert("metadata".to_owned(), to_raw_value(&metadata)?);
    serde_json::to_string(&object)
}

fn asked(request: &Value) -> Option<Asked> {
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let resource = &request["resource"];
    Some(Asked {
        group: text(&resource["group"]).unwrap_or_default(),
        version: text(&resource["version"])?,
        resource: text(&resource["resource"])?,
        subresource: text(&request["subResource"]).unwrap_or_default(),
        operation: text(&request["operation"])?,
        namespace: text(&request["namespace"]).unwrap_or_default(),
    })
}

/// The resource of a kind, guessed by the rule that Kubernetes uses: `pods`, `ingresses`, `networkpolicies`.
fn plural(kind: &str) -> String {
    let lower = kind.to_lowercase();
    match lower.strip_suffix('y') {
        _ if lower == "endpoints" => lower,
        _ if lower.ends_with('s') || lower.ends_with('x') || lower.ends_with("ch") => format!("{lower}es"),
        Some(stem) if !stem.ends_with(['a', 'e', 'i', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{lower}s"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn review(text: &str) -> Result<(Value, Review), String> {
        let review = Review::from(text.as_bytes()).map_err(|error| format!("{error:#}"))?;
        Ok((serde_json::from_slice(&review.bytes).expect("JSON"), review))
    }

    #[test]
    fn a_review_passes_as_it_is() {
        let text = r#"{ "kind":"AdmissionReview", "request":{"uid":"1","n":1.000000000000000000001} }"#;
        let (_, made) = review(text).expect("a review");
        assert_eq!((made.bytes.as_slice(), made.notes.len()), (text.trim().as_bytes(), 0));
    }

    #[test]
    fn a_request_is_put_into_a_review() {
        let (value, made) = review(r#"{"uid":"1","operation":"DELETE","kind":{"kind":"Pod"}}"#).expect("a review");
        assert_eq!(value["request"]["operation"], "DELETE");
        assert_eq!(made.notes.len(), 1);
    }

    #[test]
    fn an_object_is_evaluated_as_if_it_were_created() {
        let yaml = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: shop, namespace: team}\n";
        let (value, made) = review(yaml).expect("a review");
        let request = &value["request"];
        assert_eq!(request["resource"], json!({"group": "apps", "version": "v1", "resource": "deployments"}));
        assert_eq!((&request["namespace"], &request["operation"]), (&json!("team"), &json!("CREATE")));
        assert_eq!(request["object"]["metadata"]["name"], "shop");
        assert_eq!(
            made.notes,
            ["it is a Deployment; it was evaluated as a request to create it (deployments in namespace team)"]
        );
        let json = r#"{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"n"},"n":12345678901234567890123}"#;
        let (value, made) = review(json).expect("a review");
        assert_eq!((&value["request"]["namespace"], &value["request"]["name"]), (&json!("n"), &json!("n")));
        assert_eq!(value["request"]["object"]["metadata"], json!({"name": "n"}));
        assert!(String::from_utf8_lossy(&made.bytes).contains("12345678901234567890123"));
    }

    #[test]
    fn an_object_without_a_namespace_gets_that_of_the_request() {
        for metadata in
            [r#""metadata":{"name":"a"},"#, r#""metadata":{"name":"a","namespace":null},"#, "", r#""metadata":null,"#]
        {
            let json = format!(r#"{{"apiVersion":"v1","kind":"Pod",{metadata}"n":12345678901234567890123}}"#);
            let (value, made) = review(&json).expect("a review");
            let request = &value["request"];
            assert_eq!(
                (&request["namespace"], &request["object"]["metadata"]["namespace"]),
                (&json!("default"), &json!("default"))
            );
            assert_eq!(request.get("name"), request["object"]["metadata"].get("name"), "{json}");
            assert!(String::from_utf8_lossy(&made.bytes).contains(r#""n":12345678901234567890123"#), "{json}");
        }
        let (value, _) = review("{apiVersion: v1, kind: Pod, metadata: {generateName: a-}}").expect("a review");
        assert_eq!(value["request"].get("name"), None, "its name is generated later");
    }

    #[test]
    fn kinds_of_kubernetes_without_namespaces_are_known_by_their_group() {
        let namespace = |version: &str, kind: &str| {
            let object = json!({"apiVersion": version, "kind": kind, "metadata": {"name": "a"}});
            let (value, made) = review(&object.to_string()).expect("a review");
            assert_eq!(
                made.asked.expect("parts").namespace,
                value["request"]["namespace"].as_str().unwrap_or_default()
            );
            value["request"]["namespace"].as_str().map(str::to_owned)
        };
        for (version, kind) in [
            ("v1", "Node"),
            ("apiregistration.k8s.io/v1", "APIService"),
            ("certificates.k8s.io/v1", "CertificateSigningRequest"),
            ("storage.k8s.io/v1", "CSIDriver"),
            ("resource.k8s.io/v1beta1", "DeviceClass"),
            ("networking.k8s.io/v1", "ServiceCIDR"),
            ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicyBinding"),
        ] {
            assert_eq!(namespace(version, kind), None, "{kind}");
        }
        for (version, kind) in [("example.com/v1", "Node"), ("storage.k8s.io/v1", "CSIStorageCapacity"), ("v1", "Pod")]
        {
            assert_eq!(namespace(version, kind).as_deref(), Some("default"), "{kind}");
        }
    }

    #[test]
    fn what_cannot_be_evaluated_is_told() {
        assert_eq!(review(" \n").expect_err("refused"), "it is empty");
        assert!(review("[1]").expect_err("refused").starts_with("want an AdmissionReview"));
        assert!(review("{\"a\": [}").expect_err("refused").starts_with("it is neither JSON ("));
        assert!(review("a: 1").expect_err("refused").starts_with("want an AdmissionReview"));
        assert!(review("{\"kind\":\"AdmissionReview\"}").expect_err("refused").contains("without a request"));
        let list = r#"{"apiVersion":"v1","kind":"List","items":[{},{}]}"#;
        assert_eq!(review(list).expect_err("refused"), "it is a list of 2 objects; evaluate one at a time");
        assert!(review("a: 1\n---\nb: 2").expect_err("refused").contains("several documents"));
    }

    #[test]
    fn scalars_that_kubectl_reads_differently_are_noted() {
        let told = |text: &str| {
            let (_, made) = review(text).expect("a review");
            made.otherwise.into_iter().map(|one| (one.line, one.word, one.meant)).collect::<Vec<_>>()
        };
        let pod = "apiVersion: v1\nkind: Pod\nspec:\n  hostNetwork: yes\n  runAsUser: 0644\n";
        let found = [(4, Some("yes".to_owned()), "true"), (5, None, "a number")];
        assert_eq!(told(pod), found);
        assert_eq!(told("kind: AdmissionReview\nrequest: {operation: CREATE, object: {a: on}}\n")[0].0, 2);
        assert_eq!(told(r#"{"apiVersion": "v1", "kind": "Pod", "spec": {"hostNetwork": "yes"}}"#), []);
        assert_eq!(Review::raw(b"user: on\n").expect("a request").otherwise, []);
    }

    #[test]
    fn a_raw_request_is_any_json_as_it_is_written() {
        for text in [r#"{"user": "tonio", "n": 1.0}"#, "[1]", "17", r#""text""#] {
            let review = Review::raw(text.as_bytes()).expect("a request");
            assert_eq!(String::from_utf8_lossy(&review.bytes), format!(r#"{{"request":{text}}}"#));
        }
        assert_eq!(Review::raw(b"user: tonio\n").expect("a request").bytes, br#"{"request":{"user":"tonio"}}"#);
        assert!(Review::raw(b"{").is_err() && Review::raw(b"").is_err());
    }

    #[test]
    fn plurals() {
        let kinds = ["Pod", "NetworkPolicy", "Ingress", "StorageClass", "Endpoints", "Gateway"].map(plural);
        assert_eq!(kinds, ["pods", "networkpolicies", "ingresses", "storageclasses", "endpoints", "gateways"]);
    }
}
