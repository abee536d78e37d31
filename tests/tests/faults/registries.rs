//! Section 4: modules in a real registry, with and without a login.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use portcullis_contract::Reason;
use portcullis_tests::{
    Answer, Authority, Folder, Pod, PodSetup, Policy, Program, Registry, Reply, Review, Secret, StopOnDrop,
    docker_config, eventually, guest, password, ports, write_docker_config,
};

const REMOTE: &str = "cluster/remote";
const UPDATED: &str = "cluster/updated";

/// A small module that no other test uses.
fn module(name: &str) -> Vec<u8> {
    Reply::module_bytes(name)
}

fn pod_with(folder: &Folder, registry: &Registry) -> PodSetup {
    Pod::on(folder).loader("--source-ca", registry.ca_file())
}

#[test]
fn fault_l06_wrong_password() {
    let registry = Registry::with_login();
    registry.push("policies/a:v1", &module("l06"));
    let folder = Folder::with_canary();
    let wrong = Secret::planted_in("password");
    let docker = write_docker_config(&folder, registry.host(), wrong.text());
    folder.put(&Policy::cluster("updated").denying("generation one"));
    // Without a change of the file, a retry takes minutes.
    let setup = pod_with(&folder, &registry).loader("--docker-config", docker).loader("--retry-outside", "10m");
    let pod = setup.start();
    pod.wait_current(UPDATED, 1);

    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    folder.put(&Policy::cluster("updated").module(&registry.module("policies/a:v1")));
    let failure = pod.assert_unserved(REMOTE, Reason::Unauthorized);
    assert!(failure.message.contains("refuses the login that"), "{}", failure.message);
    pod.assert_kept(UPDATED, Reason::Unauthorized, 1, |verdict| verdict.message == "generation one");
    let health = pod.probe(Program::Loader, &format!("/healthz/sources/{}", registry.host())).expect("answers");
    assert_eq!(health.status, 500, "{health:?}");
    assert!(health.body.contains(registry.host()) && health.body.contains("policy cluster/"), "{}", health.body);

    write_docker_config(&folder, registry.host(), password());
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered(UPDATED, 2);
    wrong.assert_nowhere(&pod);
    Secret::known(password()).assert_nowhere(&pod);
}

#[test]
fn fault_l25_pull_secret_absent_malformed_gone() {
    let registry = Registry::with_login();
    registry.push("policies/a:v1", &module("l25 one"));
    registry.push("policies/a:v2", &module("l25 two"));
    let folder = Folder::with_canary();
    let docker = folder.path("docker");
    fs::create_dir(&docker).expect("a folder");
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let setup = pod_with(&folder, &registry).loader("--docker-config", docker.display());
    let pod = setup.start();
    let names_the_file = |message: &str| assert!(message.contains("docker/config.json"), "{message}");
    let has_failed_with = |words: &str| {
        let policy = pod.loader_state()?.policies.into_iter().find(|policy| policy.id.as_str() == REMOTE)?;
        policy.failure.filter(|failure| failure.message.contains(words))
    };

    names_the_file(&pod.assert_unserved(REMOTE, Reason::CredentialsMissing).message);
    let marker = Secret::planted_in("malformed");
    folder.write("docker/config.json", format!("{{\"auths\": {}", marker.text()));
    eventually("the file to be called malformed", || has_failed_with("JSON"));
    names_the_file(&pod.assert_unserved(REMOTE, Reason::CredentialsMissing).message);
    folder.write("docker/config.json", docker_config("other.example", "x"));
    eventually("the file to be called one without this login", || has_failed_with("has none for it"));
    names_the_file(&pod.assert_unserved(REMOTE, Reason::CredentialsMissing).message);
    folder.write("docker/config.json", docker_config(registry.host(), password()));
    pod.assert_recovered(REMOTE, 1);

    fs::remove_file(docker.join("config.json")).expect("removes");
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v2")));
    let failure = pod.assert_kept(REMOTE, Reason::CredentialsMissing, 1, |verdict| verdict.allowed);
    names_the_file(&failure.message);
    folder.write("docker/config.json", docker_config(registry.host(), password()));
    pod.assert_recovered(REMOTE, 2);
    marker.assert_nowhere(&pod);
}

#[test]
fn fault_l27_a_digest_on_the_volume_needs_no_network() {
    let registry = Registry::tls();
    let (manifest, _) = registry.push("policies/a:v1", &module("l27"));
    let pinned = registry.module(&format!("policies/a@{manifest}"));
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&pinned));
    let pod = pod_with(&folder, &registry).start();
    pod.assert_recovered(REMOTE, 1);
    registry.stop();
    folder.put(&Policy::cluster("second").module(&pinned));
    pod.assert_recovered("cluster/second", 1);
    // The same holds for a loader that has just started.
    pod.loader().restart_with(None);
    folder.put(&Policy::cluster("third").module(&pinned));
    pod.assert_recovered("cluster/third", 1);
}

#[test]
fn fault_l24_two_hundred_policies_of_a_source_that_is_away() {
    let registry = Registry::tls();
    for number in 0..20 {
        registry.push(&format!("policies/m{number}:v1"), &module(&format!("l24 {number}")));
    }
    registry.stop();
    let before = registry.blobs_given();
    let folder = Folder::with_canary();
    for number in 0..200 {
        let name = registry.module(&format!("policies/m{}:v1", number % 20));
        folder.put(&Policy::cluster(&format!("p{number}")).module(&name));
    }
    let pod = pod_with(&folder, &registry).start();
    pod.assert_unserved("cluster/p199", Reason::RegistryUnreachable);
    registry.start_again();
    let all = || pod.evaluator_state().filter(|state| state.current.len() == 201);
    let state = pod.assert_recovers("all policies to serve", all);
    assert!(state.deviations.is_empty(), "{:?}", state.deviations);
    // The registry may write its log after the answer.
    eventually("the registry to log each module", || (registry.blobs_given() - before >= 20).then_some(()));
    assert_eq!(registry.blobs_given() - before, 20, "each module was fetched once");
}

#[test]
fn fault_v22_volume_empty_and_source_away() {
    const START_GATE: Duration = Duration::from_secs(15);
    let registry = Registry::tls();
    registry.push("policies/a:v1", &module("v22"));
    let policy = Policy::cluster("remote").module(&registry.module("policies/a:v1"));
    let folders = [Folder::with_canary(), Folder::empty()];
    folders.iter().for_each(|folder| folder.put(&policy));
    let other = pod_with(&folders[0], &registry).start();
    other.assert_recovered(REMOTE, 1);
    registry.stop();

    let setup = pod_with(&folders[1], &registry).without_canary("the pod has nothing to serve at first");
    let since = Instant::now();
    let pod = setup.evaluator("--start-gate", format!("{}s", START_GATE.as_secs())).begin();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        // The other replica goes on meanwhile.
        let right = |answer: Result<Answer, String>| assert!(answer.expect("answers").verdict().allowed);
        let (client, is_done) = (other.client(), || done.load(Ordering::SeqCst));
        let asked = scope.spawn(move || client.ask_until(1, REMOTE, &Review::pod(), right, is_done));
        let _stop = StopOnDrop(&done);
        eventually("the start gate to end", || {
            let answer = pod.probe(Program::Evaluator, "/readyz?verbose").ok()?;
            assert!(answer.status == 200 || answer.body.contains("[-]start-gate"), "{answer:?}");
            (answer.status == 200).then_some(())
        });
        assert!(since.elapsed() >= START_GATE, "a pod with nothing to serve is ready after {:?}", since.elapsed());
        pod.assert_unserved(REMOTE, Reason::RegistryUnreachable);
        done.store(true, Ordering::SeqCst);
        assert!(asked.join().expect("every answer is right") > 0);
    });
    registry.start_again();
    pod.assert_recovered(REMOTE, 1);
}

/// While the registry is unreachable, loaders give modules to each other, and to no other client.
#[test]
fn fault_l01_registry_away_and_another_loader_has_it() {
    let registry = Registry::tls();
    let (manifest, _) = registry.push("policies/a:v1", &module("siblings"));
    let pinned = registry.module(&format!("policies/a@{manifest}"));
    let (loaders, strangers) = (Authority::new("loaders"), Authority::new("strangers"));
    let pod = |authority: &Authority, more: &dyn Fn(PodSetup) -> PodSetup| {
        let folder = Folder::with_canary();
        folder.put(&Policy::cluster("remote").module(&pinned));
        let keys = folder.path("siblings");
        fs::create_dir(&keys).expect("a folder");
        authority.identity(&["portcullis-sibling"]).write_to(&keys);
        fs::write(keys.join("ca.crt"), &authority.pem).expect("writes");
        let setup = pod_with(&folder, &registry).loader("--siblings-tls-dir", keys.display());
        let pod = more(setup).begin();
        // The caller must keep the folder for as long as the pod.
        (folder, pod)
    };
    let address = ports();
    let (_kept, first) = pod(&loaders, &|setup| setup.loader("--siblings-address", address));
    first.assert_recovered(REMOTE, 1);
    registry.stop();
    let (_kept, second) = pod(&loaders, &|setup| setup.loader("--siblings", address));
    second.assert_recovered(REMOTE, 1);
    // Keys of another authority give no access.
    let (_kept, third) = pod(&strangers, &|setup| setup.loader("--siblings", address));
    third.assert_unserved(REMOTE, Reason::RegistryUnreachable);
}

/// A policy keeps the module that its tag named when it was loaded.
#[test]
fn fault_l11_a_tag_that_moves_changes_no_policy() {
    let registry = Registry::plain();
    registry.push("policies/a:v1", &guest("always_accept"));
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let setup = pod_with(&folder, &registry).loader("--allow-http-host", registry.host());
    let pod = setup.start();
    pod.assert_recovered(REMOTE, 1);
    let digest = pod.wait_current(REMOTE, 1).digest;

    registry.push("policies/a:v1", &module("l11"));
    // Modules and artifacts are gone; the record of the digest remains.
    for module in fs::read_dir(folder.volume().join("modules")).expect("lists").flatten() {
        fs::remove_file(module.path()).expect("removes");
    }
    for artifact in fs::read_dir(folder.volume().join("artifacts")).expect("lists").flatten() {
        fs::remove_file(artifact.path()).expect("removes");
    }
    pod.loader().restart_with(None);
    eventually("the module to be fetched again", || {
        folder.volume().join("modules").join(format!("{}.wasm", digest.hex())).exists().then_some(())
    });
    assert_eq!(pod.wait_current(REMOTE, 1).digest, digest);
    assert!(pod.ask(REMOTE, &Review::pod()).verdict().allowed);
}
