//! The users, capabilities, mounts and files of each container, as the kernel of its node reports them.

use portcullis_e2e::{Container, eventually};
use serde_json::Value;

use crate::stage::{Stage, own_cluster};

/// The folder in which the token of the pod's account is mounted.
const TOKEN: &str = "/var/run/secrets/kubernetes.io/serviceaccount";

/// What a container is expected to have.
struct Expected {
    name: &'static str,
    user: &'static str,
    has_token: bool,
    /// The mounts that it can only read.
    reads: &'static [&'static str],
    /// The mounts that it can write to.
    writes: &'static [&'static str],
    /// The files in its image.
    files: &'static [&'static str],
}

const REPLICA: [Expected; 3] = [
    Expected {
        name: "loader",
        user: "65531",
        has_token: true,
        reads: &["/config", TOKEN],
        writes: &["/broker", "/volume"],
        files: &["/etc/ssl/certs/ca-certificates.crt", "/portcullis-loader"],
    },
    Expected {
        name: "evaluator",
        user: "65532",
        has_token: false,
        reads: &["/paths", "/tls", "/volume"],
        writes: &["/broker", "/private"],
        files: &["/portcullis-evaluator"],
    },
    Expected {
        name: "reporter",
        user: "65533",
        has_token: true,
        reads: &[TOKEN],
        writes: &[],
        files: &["/etc/ssl/certs/ca-certificates.crt", "/portcullis-reporter"],
    },
];

/// Why these tests have no canary.
const READS: &str = "nothing fails here: it only reads files, mounts and settings";

const CONTROLLER: Expected = Expected {
    name: "controller",
    user: "65534",
    has_token: true,
    reads: &[TOKEN],
    writes: &[],
    files: &["/etc/ssl/certs/ca-certificates.crt", "/portcullis-controller"],
};

#[test]
#[ignore = "starts a cluster"]
fn fault_x01_each_container_has_the_token_and_the_user_that_it_needs_and_nothing_else() {
    let stage = Stage::new("containers");
    stage.release().without_canary(READS);
    if own_cluster("fault_x01").is_none() {
        return;
    }
    for expected in &REPLICA {
        check(&stage.release().pods()[0], expected);
    }
    check(&stage.release().controllers()[0], &CONTROLLER);
}

fn check(pod: &Value, expected: &Expected) {
    let Expected { name, user, has_token, reads, writes, files } = expected;
    let container = eventually("a container that runs", || Container::of(pod, name));

    // The real, effective, saved and file system ids are all the same.
    assert_eq!(container.status("Uid").split_whitespace().collect::<Vec<_>>(), [*user; 4], "{name}");
    assert_eq!(container.status("Gid").split_whitespace().collect::<Vec<_>>(), ["65530"; 4], "{name}");
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(container.status(set), "0000000000000000", "{name} {set}");
    }
    assert_eq!(
        (container.status("NoNewPrivs"), container.status("Seccomp")),
        ("1".to_owned(), "2".to_owned()),
        "{name}"
    );

    let mounts = container.mounts();
    assert_eq!(mounts.iter().any(|(path, _)| path == TOKEN), *has_token, "{name}: {mounts:?}");
    assert_eq!(container.path(&format!("{TOKEN}/token")).exists(), *has_token, "{name}");
    let secret =
        container.environment().into_iter().find(|variable| variable.contains("TOKEN") || variable.contains("SECRET"));
    assert_eq!(secret, None, "{name}");
    // Mounts of the runtime are virtual. The others are volumes, and files of the pod like /etc/hosts.
    let is_virtual = |path: &str| ["/proc", "/sys", "/dev"].iter().any(|folder| path.starts_with(folder));
    let is_of_the_pod = |path: &str| ["/etc/hosts", "/etc/hostname", "/etc/resolv.conf"].contains(&path);
    let own = |is_read: bool| {
        let is_own = |path: &str| path != "/" && !is_virtual(path) && !is_of_the_pod(path);
        let found = mounts
            .iter()
            .filter(|(path, options)| is_own(path) && options.split(',').any(|one| one == "ro") == is_read);
        let mut paths: Vec<_> = found.map(|(path, _)| path.as_str()).collect();
        paths.sort_unstable();
        paths
    };
    assert_eq!((own(true), own(false)), (reads.to_vec(), writes.to_vec()), "{name}: {mounts:?}");
    assert!(mounts.iter().any(|(path, options)| path == "/" && options.starts_with("ro")), "{name}: {mounts:?}");

    // Mount points that the runtime has created are empty files and folders.
    let mut found = container.files().unwrap();
    found.retain(|path| !is_virtual(path));
    assert_eq!(found, *files, "{name}");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x02_the_evaluator_can_only_read_the_volume() {
    let stage = Stage::new("volume");
    stage.release().without_canary(READS);
    if own_cluster("fault_x02").is_none() {
        return;
    }
    for pod in stage.release().pods() {
        let options = |container: &str| {
            let mounts = Container::of(&pod, container).unwrap().mounts();
            mounts.into_iter().find(|(path, _)| path == "/volume").map(|(_, options)| options)
        };
        assert!(options("evaluator").unwrap().starts_with("ro"));
        assert!(options("loader").unwrap().starts_with("rw"));
        assert_eq!(options("reporter"), None);
    }
}

#[test]
#[ignore = "starts a cluster"]
fn fault_x08_pods_are_admitted_where_pod_security_is_restricted() {
    let stage = Stage::new("restricted");
    let release = stage.release();
    release.without_canary(READS);
    let path = format!("/api/v1/namespaces/{}", release.namespace());
    let namespace = release.api().get(&path).unwrap();
    assert_eq!(namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"], "restricted");
    // Pods that violate the standard really are refused there.
    let pod = release.create_pod(release.namespace(), "careless", &serde_json::json!({}));
    assert!(!pod.is_ok() && pod.stderr.contains("violates PodSecurity \"restricted"), "{pod:?}");
    assert!(!release.pods().is_empty() && !release.controllers().is_empty());
}
