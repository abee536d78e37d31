//! The pods of an installation.

use portcullis_e2e::{Installation, InstallationOptions, Program, eventually};

use crate::cluster;

#[test]
#[ignore = "starts a cluster"]
fn a_replica_is_a_pod_with_three_programs_and_a_certificate() {
    let installation = Installation::start(cluster(), InstallationOptions::named("pods").certified_by_the_test());
    let replica = installation.add_replica();
    eventually("the mounted certificate", || replica.folder().join("tls/tls.crt").is_file().then_some(()));
    replica.program(Program::Evaluator).address("admission");
    let get = ["get", "pod", replica.name(), "--namespace=pods", "--output=json"];
    let pod = cluster().kubectl(get).json("the pod");
    assert_eq!(pod["status"]["podIP"], replica.address().to_string());

    replica.kill(Program::Evaluator);
    eventually("a restart", || (replica.restarts(Program::Evaluator) > 0).then_some(()));

    replica.remove();
    assert!(!cluster().kubectl(get).is_ok());
    assert!(!replica.program(Program::Loader).is_alive());
}
