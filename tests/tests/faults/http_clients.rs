//! Section 9: client certificates.

use portcullis_tests::{Authority, Client, Folder, Pod, Policy, Review, eventually};

const DENIES: &str = "cluster/denies";

#[test]
fn fault_h18_of_clients_with_a_certificate_those_with_a_name_are_answered_and_nobody_else() {
    let folder = Folder::empty();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    folder.write("clients.pem", &Authority::shared().pem);
    let setup = Pod::on(&folder).without_canary("it has no certificate for clients");
    let setup = setup.evaluator("--client-ca", folder.path("clients.pem").display());
    // A name may have a comma in it.
    let names = ["Example, Inc. kube-apiserver", "webhooks.example"];
    let pod = names.iter().fold(setup, |setup, name| setup.evaluator("--client-name", name)).start();
    let client = |authority: &Authority, name: &str| {
        Client::with_identity(pod.admission(), &authority.identity(&[name])).try_ask(DENIES, &Review::pod())
    };
    let verdict = eventually("an answer", || client(Authority::shared(), "webhooks.example").ok()).verdict();
    assert!(!verdict.allowed, "{verdict:?}");
    let evaluations = "portcullis_policy_evaluations_total{policy=\"cluster/denies\",verdict=\"denied\"}";
    assert_eq!(pod.metric(evaluations) as u64, 1);
    let stranger = Authority::new("another");
    for (authority, name) in [
        (Authority::shared(), "kubelet.example"),
        (Authority::shared(), "Example"),
        (Authority::shared(), "a.webhooks.example"),
        (&stranger, "webhooks.example"),
    ] {
        client(authority, name).expect_err(name);
    }
    Client::tls(pod.admission()).try_ask(DENIES, &Review::pod()).expect_err("no certificate");
    // Anybody can send certificates, so a chain that takes long is not verified, although its first certificate is valid.
    let mut long = Authority::shared().identity(&["webhooks.example"]);
    long.certificate += &"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n".repeat(9000);
    Client::with_identity(pod.admission(), &long).try_ask(DENIES, &Review::pod()).expect_err("a long chain");
    assert_eq!(pod.metric(evaluations) as u64, 1, "nothing is evaluated for them");
    // The authority can be replaced, and names are still checked.
    folder.write("clients.pem", &stranger.pem);
    eventually("the other authority", || client(&stranger, "webhooks.example").ok());
    client(&stranger, "kubelet.example").expect_err("another name");
}
