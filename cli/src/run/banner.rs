//! The text that is shown when the pod is ready: its address, and a command to try it. Pure, apart from listing the folder and finding this
//! program on PATH.

use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use portcullis_contract::{EvaluatorState, PolicyId};

use super::settings::Settings;
use crate::certificate::AUTHORITY_FILE;
use crate::layout::Layout;
use crate::program::own_command;

/// The request for the command if the folder has none.
const REQUEST: &str = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","kind":{"group":"","version":"v1","kind":"Pod"},"resource":{"group":"","version":"v1","resource":"pods"},"name":"try","namespace":"default","operation":"CREATE","userInfo":{"username":"me"},"object":{"apiVersion":"v1","kind":"Pod","metadata":{"name":"try","namespace":"default"},"spec":{"containers":[{"name":"main","image":"busybox","securityContext":{"privileged":true}}]}}}}"#;

/// The lines of the text.
pub(super) fn lines(
    settings: &Settings,
    layout: &Layout,
    admission: SocketAddr,
    served: &[PolicyId],
    took: Duration,
) -> Vec<String> {
    let dir = settings.dir.display();
    let scheme = if settings.plain_http { "http" } else { "https" };
    let base = format!("{scheme}://{}", reachable(admission));
    let took = match took.as_millis() {
        milliseconds @ 0..1000 => format!("{milliseconds} ms"),
        _ => format!("{}.{} s", took.as_secs(), took.subsec_millis() / 100),
    };
    let mut lines = vec![format!("Ready after {took} on {base}")];
    let (request, policy) = best(&requests(&settings.dir), served);
    if let Some(policy) = policy {
        let authority = layout.tls.join(AUTHORITY_FILE);
        let trust =
            if settings.plain_http { String::new() } else { format!(" --cacert {}", quote(&shown(&authority))) };
        let data = request.map_or_else(|| REQUEST.to_owned(), |path| format!("@{}", shown(&path)));
        lines.push("Try it:".to_owned());
        lines.push(format!(
            "  curl -sS{trust} -H 'Content-Type: application/json' --data-binary {} {}",
            quote(&data),
            quote(&format!("{base}/validate/{policy}"))
        ));
    } else {
        let describe = format!("{} describe --dir {}", command(), folder(settings));
        lines.push(next_step(&settings.dir, settings.policies.as_deref(), &describe));
    }
    lines.push(format!("Status: {} describe --dir {} · logs: {}", command(), folder(settings), layout.logs.display()));
    lines.push(format!("Edit a policy in {dir} and watch. Ctrl-C stops everything."));
    lines
}

/// The policies that answer, by their newest generation or an older one.
pub(super) fn serving(state: EvaluatorState) -> Vec<PolicyId> {
    let older = state.deviations.into_iter().filter(|policy| policy.serving > 0).map(|policy| policy.id);
    state.current.into_keys().chain(older).collect()
}

/// How the user calls this program, as a word of a shell.
pub(super) fn command() -> String {
    quote(&own_command().display().to_string())
}

/// The folder of policies, as a word of a shell.
pub(super) fn folder(settings: &Settings) -> String {
    quote(&shown(&settings.dir))
}

/// What to do if no policy serves.
fn next_step(dir: &Path, policies: Option<&Path>, describe: &str) -> String {
    let step = match policies {
        Some(file) => format!("fix {}", file.display()),
        None if has_manifests(dir) => format!("`{describe}` says why"),
        None => format!("put a manifest into {}", dir.display()),
    };
    format!("No policy serves yet: {step}")
}

/// Whether the folder has files that the loader reads.
fn has_manifests(dir: &Path) -> bool {
    let is_hidden = |path: &Path| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
    let mut paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    paths.any(|path| crate::is_manifest(&path) && !is_hidden(&path) && !path.is_dir())
}

/// The address at which a client on this machine reaches the pod.
fn reachable(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => SocketAddr::from((Ipv4Addr::LOCALHOST, address.port())),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => SocketAddr::from((Ipv6Addr::LOCALHOST, address.port())),
        _ => address,
    }
}

/// The requests that the folder has, by name.
fn requests(dir: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir.join("requests")).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut requests: Vec<PathBuf> = entries.filter(|path| path.extension().is_some_and(|e| e == "json")).collect();
    requests.sort();
    requests
}

/// The request and the policy whose names have most words in common, as such a pair most likely shows a denial. Of equal pairs, the one with
/// the shortest name of the request.
fn best(requests: &[PathBuf], served: &[PolicyId]) -> (Option<PathBuf>, Option<PolicyId>) {
    let words = |text: &str| -> Vec<String> {
        text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| word.len() > 2).map(str::to_owned).collect()
    };
    let mut pairs: Vec<(usize, &PathBuf, &PolicyId)> = Vec::new();
    for request in requests {
        let stem = request.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        for policy in served {
            let common = words(policy.name()).iter().filter(|word| words(&stem).contains(word)).count();
            pairs.push((common, request, policy));
        }
    }
    pairs.sort_by_key(|(common, request, policy)| {
        (usize::MAX - common, request.as_os_str().len(), (*request).clone(), (*policy).clone())
    });
    match pairs.first() {
        Some((_, request, policy)) => (Some((*request).clone()), Some((*policy).clone())),
        None => (None, served.first().cloned()),
    }
}

fn shown(path: &Path) -> String {
    let path = path.strip_prefix(".").ok().filter(|rest| !rest.as_os_str().is_empty()).unwrap_or(path);
    path.display().to_string()
}

/// The text, quoted as one word of a shell.
fn quote(text: &str) -> String {
    let is_plain =
        |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '.' | '-' | '_' | ':' | '@' | '+' | ',' | '=');
    if !text.is_empty() && text.chars().all(is_plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(ids: &[&str]) -> Vec<PolicyId> {
        ids.iter().map(|id| id.parse().expect("an id")).collect()
    }

    #[test]
    fn the_pair_that_most_likely_shows_a_denial_is_chosen() {
        let requests: Vec<PathBuf> =
            ["deployment-privileged.json", "pod-ok.json", "pod-privileged.json"].map(PathBuf::from).to_vec();
        let served = ids(&["cluster/default-resources", "cluster/no-privileged"]);
        let (request, policy) = best(&requests, &served);
        assert_eq!(request, Some("pod-privileged.json".into()));
        assert_eq!(policy.as_ref().map(PolicyId::as_str), Some("cluster/no-privileged"));
        assert_eq!(best(&[], &served).1.as_ref(), served.first());
        assert_eq!(best(&requests, &[]), (None, None));
    }

    #[test]
    fn a_policy_that_answers_by_an_older_generation_serves() {
        let deviation = |id: &str, serving: i64| {
            serde_json::json!({
                "id": id, "uid": "u", "generation": 2, "serving": serving, "state": "Pending", "since": "2026-01-01T00:00:00Z"
            })
        };
        let deviations = [deviation("cluster/older", 1), deviation("cluster/none", 0)].map(serde_json::from_value);
        let deviations = deviations.map(|deviation| deviation.expect("a deviation")).to_vec();
        let state = EvaluatorState { deviations, ..EvaluatorState::default() };
        assert_eq!(serving(state), ids(&["cluster/older"]));
    }

    #[test]
    fn without_a_policy_the_next_step_is_told() {
        let folder = tempfile::tempdir().expect("a folder");
        let (dir, path) = (folder.path(), folder.path().display());
        fs::create_dir(dir.join("requests.json")).expect("makes");
        fs::write(dir.join(".hidden.yaml"), "").expect("writes");
        let step = |policies| next_step(dir, policies, "portcullis describe --dir kw");
        assert_eq!(step(None), format!("No policy serves yet: put a manifest into {path}"));
        fs::write(dir.join("a.yaml"), "").expect("writes");
        assert_eq!(step(None), "No policy serves yet: `portcullis describe --dir kw` says why");
        assert_eq!(step(Some(Path::new("kw/policies.yml"))), "No policy serves yet: fix kw/policies.yml");
    }

    #[test]
    fn a_pasted_word_is_one_word() {
        assert_eq!(quote("examples/requests/pod-ok.json"), "examples/requests/pod-ok.json");
        assert_eq!(quote("my policies/it's"), r"'my policies/it'\''s'");
    }

    #[test]
    fn an_address_for_all_interfaces_is_reached_on_the_loopback() {
        assert_eq!(reachable(SocketAddr::from(([0, 0, 0, 0], 1))).to_string(), "127.0.0.1:1");
    }

    #[test]
    fn the_request_that_is_there_always_is_json() {
        assert!(serde_json::from_str::<serde_json::Value>(REQUEST).is_ok());
    }
}
