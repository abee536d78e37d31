//! Reaching a cluster: kubeconfigs that lead nowhere, and the plugin's names.

use std::fs;
use std::io::Read as _;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::process::Command;
use std::sync::mpsc;
use std::thread;

use crate::portcullis;

/// A kubeconfig of a cluster that does not exist.
pub(crate) const NOWHERE: &str = r#"
apiVersion: v1
kind: Config
current-context: shop
contexts: [{name: shop, context: {cluster: c, user: u, namespace: team-a}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: secret-token}}]
"#;

#[test]
fn a_kubeconfig_that_cannot_be_used_is_told() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("config"), NOWHERE).expect("writes");
    let refused = |arguments: &[&str]| {
        let printed = portcullis(folder.path(), arguments);
        assert_eq!(printed.out, "", "{arguments:?}");
        (printed.code, printed.err)
    };

    let (code, err) = refused(&["get", "--kubeconfig", "missing"]);
    assert_eq!(code, Some(64));
    assert!(err.starts_with("error: --kubeconfig: ") && err.contains("missing"), "{err}");

    let (code, err) = refused(&["get", "-n", "team-a"]);
    let none = "error: there is no kubeconfig: name one with --kubeconfig or the variable KUBECONFIG";
    assert_eq!((code, err), (Some(1), format!("{none}, or a folder with --dir\n")));
    for (command, status) in [("rollback", 1), ("diff", 1), ("audit", 2)] {
        let (code, err) = refused(&[command, "labels"]);
        assert_eq!((code, err), (Some(status), format!("{none}\n")), "{command}");
    }

    let (code, err) = refused(&["get", "--kubeconfig", "config", "--context", "nosuch"]);
    assert_eq!(code, Some(64));
    assert_eq!(err, "error: --context: the kubeconfig has no context \"nosuch\"; it has shop\n");

    let (code, err) = refused(&["diff", "labels", "--context", "prod"]);
    assert_eq!((code, err.as_str()), (Some(64), "error: --context: there is no kubeconfig that has \"prod\"\n"));

    let (code, err) = refused(&["get", "--kubeconfig", "config", "--namespace", "../x"]);
    assert_eq!((code, err.as_str()), (Some(64), "error: --namespace: \"../x\" is not the name of a namespace\n"));

    let (code, err) = refused(&["get", "--kubeconfig", "config", "pod/x"]);
    assert_eq!(code, Some(1));
    assert!(err.starts_with("error: POLICY: \"pod/x\" names no policy; write NAME"), "{err}");

    let (code, err) = refused(&["rollback", "labels", "--kubeconfig", "config"]);
    assert_eq!(code, Some(1));
    assert_eq!(err, "error: failed to ask the API server at https://127.0.0.1:1: Connection refused (os error 111)\n");
}

/// Without a kubeconfig, a pod asks its own cluster by its service account.
#[test]
fn a_pod_does_not_take_its_own_cluster_for_the_one_that_is_named() {
    let folder = tempfile::tempdir().expect("a folder");
    for arguments in [&["rollback", "labels", "--context", "prod"][..], &["get", "--context", "prod"]] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        command.env_remove("KUBECONFIG").env("HOME", folder.path()).current_dir(folder.path());
        command.env("KUBERNETES_SERVICE_HOST", "127.0.0.1").env("KUBERNETES_SERVICE_PORT", "1");
        let output = command.args(arguments).output().expect("starts");
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{arguments:?}: {said}");
        assert_eq!(said, "error: --context: there is no kubeconfig that has \"prod\"\n", "{arguments:?}");
    }
}

/// `HTTPS_PROXY` and a cluster's `proxy-url` are followed, and `NO_PROXY` is about the API server.
#[test]
fn a_cluster_behind_a_proxy_is_asked_by_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let asked = |proxy_url: bool, variables: &[(&str, &str)]| {
        let proxy = TcpListener::bind("127.0.0.1:0").expect("binds");
        let address = format!("http://{}", proxy.local_addr().expect("an address"));
        let config = NOWHERE.replace("https://127.0.0.1:1", "https://api.invalid:6443");
        let field = format!("\", proxy-url: \"{address}\"}}");
        let config = if proxy_url { config.replace("\"}", &field) } else { config };
        fs::write(folder.path().join("config"), config).expect("writes");
        let mut command = Command::new(env!("CARGO_BIN_EXE_portcullis"));
        for name in ["HTTPS_PROXY", "https_proxy", "NO_PROXY", "no_proxy"] {
            command.env_remove(name);
        }
        for (name, value) in variables {
            command.env(name, if value.is_empty() { &address } else { *value });
        }
        command.current_dir(folder.path()).args(["rollback", "labels", "--kubeconfig", "config"]);
        let (sender, first) = mpsc::channel();
        // Where the proxy is not asked, nobody waits for the thread.
        thread::spawn(move || {
            let (mut client, _) = proxy.accept().expect("a connection");
            let mut bytes = [0; 64];
            let length = client.read(&mut bytes).expect("reads");
            let line = String::from_utf8_lossy(&bytes[..length]).lines().next().unwrap_or_default().to_owned();
            let _ = sender.send(line);
        });
        let output = command.output().expect("starts");
        (first.try_recv().ok(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let connect = Some("CONNECT api.invalid:6443 HTTP/1.1".to_owned());
    for (of_cluster, variables) in
        [(false, &[("HTTPS_PROXY", "")][..]), (false, &[("https_proxy", ""), ("NO_PROXY", "127.0.0.1")]), (true, &[])]
    {
        let (first, said) = asked(of_cluster, variables);
        assert_eq!(first, connect, "{variables:?}: {said}");
    }
    let (first, said) = asked(false, &[("HTTPS_PROXY", ""), ("NO_PROXY", ".invalid")]);
    assert_eq!(first, None, "{said}");
    assert!(said.starts_with("error: failed to ask the API server at https://api.invalid:6443: "), "{said}");
}

#[test]
fn under_its_other_names_it_is_a_plugin_of_kubectl() {
    let folder = tempfile::tempdir().expect("a folder");
    let link = |name: &str| {
        let path = folder.path().join(name);
        symlink(env!("CARGO_BIN_EXE_portcullis"), &path).expect("links");
        path
    };
    let help = Command::new(link("kubectl-portcullis")).args(["get", "--help"]).output().expect("runs");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(text.contains("Usage: kubectl portcullis get"), "{text}");
    let words = Command::new(link("kubectl_complete-portcullis")).args(["hist"]).output().expect("runs");
    let words = String::from_utf8_lossy(&words.stdout);
    assert!(words.starts_with("history\tList the newest generations ") && words.ends_with("\n:4\n"), "{words}");
}
