//! Section 9: client certificates.

use portcullis_tests::{Authority, Client, Folder, Pod, Policy, Review, eventually};

const DENIES: &str = "cluster/denies";

#[test]
fn fault_h16_of_clients_with_a_certificate_those_with_a_name_are_answered_and_nobody_else() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.write("clients.pem", &Authority::shared().pem);
    let setup = Pod::on(&folder).evaluator("--client-ca", folder.path("clients.pem").display());
    let pod = setup.evaluator("--client-name", "kube-apiserver,webhooks.example").start();
    let client = |authority: &Authority, name: &str| {
        Client::with_identity(pod.admission(), &authority.identity(&[name])).try_ask(DENIES, &Review::pod())
    };
    let verdict = eventually("an answer", || client(Authority::shared(), "webhooks.example").ok()).verdict();
    assert!(!verdict.allowed, "{verdict:?}");
    let stranger = Authority::new("another");
    for (authority, name) in [
        (Authority::shared(), "kubelet.example"),
        (Authority::shared(), "a.webhooks.example"),
        (&stranger, "webhooks.example"),
    ] {
        client(authority, name).expect_err(name);
    }
    Client::tls(pod.admission()).try_ask(DENIES, &Review::pod()).expect_err("no certificate");
    // The authority can be replaced, and the names still count.
    folder.write("clients.pem", &stranger.pem);
    eventually("the other authority", || client(&stranger, "webhooks.example").ok());
    client(&stranger, "kubelet.example").expect_err("another name");
}
