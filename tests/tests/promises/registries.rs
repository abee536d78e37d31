//! A module on its way from a developer's machine to admission: pushed, named by a policy, pinned, and fetched once.

use std::fs;
use std::path::Path;
use std::time::Instant;

use portcullis_contract::Digest;
use portcullis_tests::{
    Folder, LIMIT, Pod, PodSetup, Policy, Program, Registry, Reply, Review, docker_config, eventually,
    eventually_within, heavy, password,
};

use crate::tool::{examples, run, written};

const REMOTE: &str = "cluster/remote";

fn pod_with(folder: &Folder, registry: &Registry) -> PodSetup {
    let setup = Pod::on(folder).loader("--source-ca", registry.ca_file());
    setup.loader("--docker-config", registry.docker_config())
}

/// Removes the content of a folder.
fn empty(folder: &Path) {
    for item in fs::read_dir(folder).expect("lists").flatten() {
        match item.path().is_dir() {
            true => fs::remove_dir_all(item.path()).expect("removes"),
            false => fs::remove_file(item.path()).expect("removes"),
        }
    }
}

/// The digest of a policy's module in `status.resolved`, once it is there.
fn resolved(pod: &Pod, id: &str) -> String {
    eventually("the status to tell the digest", || {
        Some(pod.status(id)?["status"]["resolved"]["digest"].as_str()?.to_owned())
    })
}

#[test]
fn promise_a_pushed_module_is_active_and_stays_what_it_was_when_its_tag_moves() {
    let registry = Registry::with_login();
    let module = examples().join("modules/no-privileged.wasm");
    let name = registry.module("policies/no-privileged:v1");
    let access = ["--docker-config", &registry.docker_config(), "--source-ca", &registry.ca_file()].map(str::to_owned);
    let push = ["push", &module.to_string_lossy(), &name].map(str::to_owned);
    let pushed = run(push.into_iter().chain(access));
    assert!(pushed.status.success(), "{}", written(&pushed));

    let folder = Folder::empty();
    folder.put(&Policy::cluster("remote").module(&name));
    let digest = Digest::of(&fs::read(&module).expect("reads"));
    {
        let pod = pod_with(&folder, &registry).start();
        pod.assert_recovered(REMOTE, 1);
        assert!(pod.ask(REMOTE, &Review::pod()).verdict().allowed);
        assert_eq!(resolved(&pod, REMOTE), digest.to_string());
    }
    registry.push("policies/no-privileged:v1", &Reply::module_bytes("what the tag is now"));
    // A new pod has to fetch the module: only the record of its digest is left on the old pod's volume.
    for name in ["volume/modules", "volume/artifacts", "private"] {
        empty(&folder.path(name));
    }
    // The registry may write its log after the answer.
    eventually("the registry to log the first download", || (registry.blobs_given() > 0).then_some(()));
    let (blobs, manifests) = (registry.blobs_given(), registry.manifests_given());
    let pod = pod_with(&folder, &registry).start();
    pod.assert_recovered(REMOTE, 1);
    assert_eq!(pod.wait_current(REMOTE, 1).digest, digest);
    assert_eq!(resolved(&pod, REMOTE), digest.to_string());
    eventually("the registry to log the module", || (registry.blobs_given() > blobs).then_some(()));
    assert_eq!(registry.blobs_given() - blobs, 1, "it was fetched, by its digest");
    assert_eq!(registry.manifests_given(), manifests, "nobody asked what the tag is now");
}

#[test]
fn promise_two_hundred_policies_over_twenty_modules_fetch_twenty_blobs() {
    let _alone = heavy();
    let registry = Registry::with_login();
    for number in 0..20 {
        let module = Reply::module_bytes(&format!("module {number}"));
        // Two tags have the same bytes.
        registry.push(&format!("policies/m{number}:v1"), &module);
        registry.push(&format!("policies/m{number}:stable"), &module);
    }
    let folder = Folder::empty();
    for number in 0..200 {
        let tag = if number % 40 < 20 { "v1" } else { "stable" };
        let name = registry.module(&format!("policies/m{}:{tag}", number % 20));
        folder.put(&Policy::cluster(&format!("p{number}")).module(&name));
    }
    let (blobs, start) = (registry.blobs_given(), Instant::now());
    let pod = pod_with(&folder, &registry).begin();
    let state = eventually_within(LIMIT * 2, "all policies to serve", || {
        pod.evaluator_state().filter(|state| state.current.len() == 200)
    });
    eprintln!("200 policies over 20 modules serve after {:?}", start.elapsed());
    assert!(state.deviations.is_empty(), "{:?}", state.deviations);
    eventually("the registry to log each module", || (registry.blobs_given() - blobs >= 20).then_some(()));
    assert_eq!(registry.blobs_given() - blobs, 20, "each module was fetched once");
    let compiled = pod.metrics(Program::Loader);
    let compiled = compiled.lines().find(|line| line.starts_with("portcullis_compilations_total{result=\"ok\"}"));
    assert!(compiled.is_some_and(|line| line.ends_with(" 20")), "each module was compiled once: {compiled:?}");
}

#[test]
fn promise_a_volume_that_outlives_its_pod_needs_no_registry() {
    let registry = Registry::with_login();
    registry.push("policies/a:v1", &Reply::module_bytes("kept"));
    let folder = Folder::empty();
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    {
        let pod = pod_with(&folder, &registry).start();
        pod.assert_recovered(REMOTE, 1);
    }
    registry.stop();
    let pod = pod_with(&folder, &registry).start();
    pod.assert_recovered(REMOTE, 1);
    assert!(pod.ask(REMOTE, &Review::pod()).verdict().allowed);
}

/// `eval` uses the login that `docker login` has written, in Docker's own folder.
#[test]
fn promise_a_module_of_a_registry_with_login_is_judged_with() {
    let registry = Registry::with_login();
    registry.push("policies/a:v1", &fs::read(examples().join("modules/no-privileged.wasm")).expect("reads"));
    let folder = Folder::empty();
    fs::create_dir(folder.path(".docker")).expect("a folder");
    folder.write(".docker/config.json", docker_config(registry.host(), password()));
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let manifest = folder.policies().join("cluster-remote.yaml");
    let eval = |request: &str| {
        let request = examples().join("requests").join(request);
        let mut command = crate::tool::command([
            "eval".as_ref(),
            manifest.as_os_str(),
            request.as_os_str(),
            "--source-ca".as_ref(),
            registry.ca_file().as_ref(),
        ]);
        command.env("HOME", folder.path("")).env_remove("XDG_CACHE_HOME").env_remove("DOCKER_CONFIG");
        command.output().expect("it starts")
    };
    let (good, bad) = (eval("pod-ok.json"), eval("pod-privileged.json"));
    assert_eq!(good.status.code(), Some(0), "{}", written(&good));
    assert_eq!(bad.status.code(), Some(1), "{}", written(&bad));
}
