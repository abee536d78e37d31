//! The commands in `docs/operations.md` for an emergency have the effect that the page describes.

use std::process::Command;

use portcullis_e2e::{Cache, Cluster, Installation, InstallationOptions, Kubernetes, Options, Program, eventually};

use crate::{assert_denied, try_pod};

/// The blocks of commands in the page's section with this heading.
fn blocks(heading: &str) -> Vec<&'static str> {
    const PAGE: &str = include_str!("../../../docs/operations.md");
    let (_, part) = PAGE.split_once(&format!("\n### {heading}\n")).unwrap();
    let (part, _) = part.split_once("\n##").unwrap();
    part.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap()).collect()
}

/// Runs commands of the page in a shell, with the names of this installation and policy in place of those on the page.
fn run(installation: &Installation<'_>, commands: &str, policy: &str) {
    let cache = Cache::from_env().unwrap();
    let kubectl = Kubernetes::built(&cache).unwrap().program("kubectl");
    let path = std::env::var("PATH").unwrap_or_default();
    let server = installation.policy_server();
    let commands = commands
        .replace("policy-server=default", &format!("policy-server={server}"))
        .replace("portcullis-default-reporter", &format!("portcullis-{server}-reporter"))
        .replace("--namespace portcullis ", &format!("--namespace {} ", installation.namespace()))
        .replace("no-privileged", policy);
    let output = Command::new("sh")
        .args(["-e", "-c", &commands])
        .env("PATH", format!("{}:{path}", kubectl.parent().unwrap().display()))
        .env("KUBECONFIG", installation.cluster().kubeconfig())
        .output()
        .unwrap();
    assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
}

fn admitted(installation: &Installation<'_>, shop: &str) {
    eventually("a pod to be admitted", || (try_pod(installation, shop).0 == 201).then_some(()));
}

/// The test has a cluster of its own, because the last commands are about all policies of a cluster.
#[test]
#[ignore = "starts a cluster"]
fn an_emergency_ends_as_the_page_says() {
    let cluster = Cluster::start(&Options::default()).unwrap();
    let installation = Installation::start(&cluster, InstallationOptions::named("gate"));
    let (controller, replica) = (installation.start_controller(), installation.add_replica());
    installation.wait_ready();
    let shop = installation.make_namespace("shop");
    let policy = installation.cluster_policy("denies").denying("not today");
    let is_denied = || try_pod(&installation, &shop).1.contains("not today").then_some(());
    let name = policy.reference();
    let (_, name) = name.split_once('/').unwrap();

    // Switches off one policy while everything works.
    let [suspend, delete] = blocks("One policy")[..] else { panic!("two blocks") };
    installation.apply_ready(std::slice::from_ref(&policy));
    assert_denied(&installation.create_pod(&shop, "one", &serde_json::json!({})), "not today");
    run(&installation, suspend, name);
    admitted(&installation, &shop);
    installation.apply_ready(&[policy.clone().field("suspend", false)]);
    eventually("a denial", is_denied);

    // Switches off one policy while no replica answers. Requests are rejected, and mode monitor would not help.
    replica.stop(Program::Evaluator);
    eventually("a call that fails", || (try_pod(&installation, &shop).0 == 500).then_some(()));
    run(&installation, delete, name);
    admitted(&installation, &shop);
    replica.start(Program::Evaluator);
    installation.wait_ready();

    // Switches everything off. The test stops the process instead of the first two commands, which are about a Deployment.
    let off = blocks("Everything")[0];
    let (before, remove) = off.split_at(off.find("kubectl delete").unwrap());
    assert!(before.contains("scale deployment/portcullis-controller --replicas=0"), "{before}");
    eventually("the policy to go", || installation.object(&policy).is_none().then_some(()));
    installation.apply_ready(std::slice::from_ref(&policy));
    controller.stop(Program::Controller);
    run(&installation, remove, name);
    admitted(&installation, &shop);
    assert!(installation.webhooks().is_empty());
    controller.start(Program::Controller);
    eventually("a denial", is_denied);

    // Switches everything off for good: policies can be deleted although their controller is gone.
    controller.stop(Program::Controller);
    run(&installation, remove, name);
    let namespaced = installation.policy(&shop, "namespaced");
    installation.apply(&namespaced).expect("the policy");
    let hold = r#"{"metadata":{"finalizers":["policies.portcullis.dev/webhooks"]}}"#;
    cluster
        .kubectl(["patch", &namespaced.reference(), "--namespace", &shop, "--type=merge", "--patch", hold])
        .expect("a finalizer");
    for (policy, space) in [(&policy, "default"), (&namespaced, shop.as_str())] {
        cluster.kubectl(["delete", &policy.reference(), "--namespace", space, "--wait=false"]).expect("the deletion");
        assert!(installation.object(policy).is_some(), "its finalizer holds it");
    }
    run(&installation, blocks("For good")[0], name);
    for policy in [&policy, &namespaced] {
        eventually("the policy to go", || installation.object(policy).is_none().then_some(()));
    }
}
