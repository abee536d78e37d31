//! Section 4: logins at real registries: tokens, helpers, and public repositories without a login.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;

use portcullis_contract::Reason;
use portcullis_tests::{
    Folder, Pod, PodSetup, Policy, Program, Registry, Reply, Secret, Source, docker_config, password, token_service,
    write_docker_config,
};
use serde_json::{Value, json};

use crate::hostile::{self, MANIFEST, WASM, manifest};

const REMOTE: &str = "cluster/remote";

/// A small module that no other test uses.
fn module(name: &str) -> Vec<u8> {
    Reply::module_bytes(name)
}

fn pod_with(folder: &Folder, registry: &Registry) -> PodSetup {
    fs::create_dir_all(folder.path("docker")).expect("a folder");
    let setup = Pod::on(folder).loader("--source-ca", registry.ca_file());
    // Without a change of the file, a retry takes minutes.
    setup.loader("--docker-config", folder.path("docker").display()).loader("--retry-outside", "10m")
}

fn write_entry(folder: &Folder, host: &str, entry: Value) {
    folder.write("docker/config.json", json!({"auths": {host: entry}}).to_string());
}

#[test]
fn fault_l06_identity_token_refused_and_replaced() {
    let tokens = token_service();
    let registry = Registry::with_tokens(&tokens);
    registry.push("policies/a:v1", &module("identity token"));
    let folder = Folder::with_canary();
    let wrong = Secret::planted_in("wrong-identity-token");
    write_entry(&folder, registry.host(), json!({"identitytoken": wrong.text()}));
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let pod = pod_with(&folder, &registry).start();

    pod.assert_unserved(REMOTE, Reason::Unauthorized);
    write_entry(&folder, registry.host(), json!({"identitytoken": tokens.identity().text()}));
    pod.assert_recovered(REMOTE, 1);
    let posts = tokens.asked().into_iter().filter(|asked| asked.method == "POST");
    let scopes: Vec<String> = posts.map(|asked| asked.body).collect();
    assert!(
        scopes.iter().all(|body| body.contains("repository%3Apolicies%2Fa%3Apull&")),
        "no more is asked: {scopes:?}"
    );
    wrong.assert_nowhere(&pod);
    tokens.identity().assert_nowhere(&pod);
}

/// The registry knows the user, who has no right to the repository.
#[test]
fn fault_l06_login_without_the_right_to_the_repository() {
    let source = Source::https();
    let module = module("without the right");
    let right: Value = serde_json::from_str(&docker_config(&source.host(), "right")).expect("JSON");
    let right = format!("Basic {}", right["auths"][source.host()]["auth"].as_str().expect("a login"));
    let described = manifest(&module, &[WASM]).to_string();
    source.otherwise(move |asked| match asked.header("authorization") {
        None => Reply::status(401).header("www-authenticate", "Basic realm=\"tests\""),
        Some(login) if login != right => Reply::status(403),
        Some(_) if asked.path.contains("/manifests/") => Reply::ok(described.as_str()).header("content-type", MANIFEST),
        Some(_) => Reply::ok(module.clone()),
    });
    let folder = Folder::with_canary();
    let wrong = Secret::planted_in("password-without-rights");
    let docker = write_docker_config(&folder, &source.host(), wrong.text());
    folder.put(&Policy::cluster("updated").denying("generation one"));
    // Without a change of the file, a retry takes minutes.
    let setup = hostile::pod_with(&folder, &source).loader("--docker-config", docker).loader("--retry-outside", "10m");
    let pod = setup.start();
    pod.wait_current("cluster/updated", 1);

    let address = format!("registry://{}/policies/a:v1", source.host());
    folder.put(&Policy::cluster("remote").module(&address));
    folder.put(&Policy::cluster("updated").module(&address));
    let failure = pod.assert_unserved(REMOTE, Reason::Unauthorized);
    assert!(failure.message.contains("does not let this login have policies/a (status 403)"), "{}", failure.message);
    pod.assert_kept("cluster/updated", Reason::Unauthorized, 1, |verdict| verdict.message == "generation one");
    write_docker_config(&folder, &source.host(), "right");
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered("cluster/updated", 2);
    wrong.assert_nowhere(&pod);
}

#[test]
fn fault_l25_tokens_for_the_public_and_for_a_login_that_comes_later() {
    let tokens = token_service();
    let registry = Registry::with_tokens(&tokens);
    registry.push("public/a:v1", &module("public"));
    registry.push("policies/a:v1", &module("for those with a login"));
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("public").module(&registry.module("public/a:v1")));
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let pod = pod_with(&folder, &registry).start();

    // A public repository needs no file of logins.
    pod.assert_recovered("cluster/public", 1);
    let failure = pod.assert_unserved(REMOTE, Reason::CredentialsMissing);
    assert!(failure.message.contains("docker/config.json"), "{}", failure.message);
    folder.write("docker/config.json", docker_config(registry.host(), password()));
    pod.assert_recovered(REMOTE, 1);
}

#[test]
fn fault_l25_credential_helper_without_a_login_and_with_one() {
    let registry = Registry::with_login();
    registry.push("policies/a:v1", &module("helper"));
    let folder = Folder::with_canary();
    fs::create_dir(folder.path("bin")).expect("a folder");
    let helper = folder.path("bin/docker-credential-tests");
    let write = |answer: &str| {
        let script = format!(
            "#!/bin/sh\nenv > {}\nread -r server\n[ \"$1 $server\" = 'get {}' ] || exit 3\n{answer}\n",
            folder.path("environment").display(),
            registry.host()
        );
        folder.write("bin/next", script);
        fs::set_permissions(folder.path("bin/next"), fs::Permissions::from_mode(0o755)).expect("sets");
        fs::rename(folder.path("bin/next"), &helper).expect("renames");
    };
    let file = |comment: &str| json!({"credHelpers": {registry.host(): "tests"}, "comment": comment}).to_string();
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let path = format!("{}:/usr/bin:/bin", folder.path("bin").display());
    let setup = pod_with(&folder, &registry).env(Program::Loader, "PATH", &path);
    folder.write("docker/config.json", file("none yet"));
    let pod = setup.env(Program::Loader, "PORTCULLIS_KEEP_NEWEST", "8").start();

    let failure = pod.assert_unserved(REMOTE, Reason::CredentialsMissing);
    assert!(failure.message.contains("docker-credential-tests"), "{}", failure.message);
    let marker = Secret::planted_in("helper");
    write(&format!("echo {}; exit 1", marker.text()));
    folder.write("docker/config.json", file("one that has no login"));
    let names_it = |message: &str| message.contains("has no login");
    portcullis_tests::eventually("the helper to be asked", || {
        let policy = pod.loader_state()?.policies.into_iter().find(|policy| policy.id.as_str() == REMOTE)?;
        policy.failure.filter(|failure| names_it(&failure.message))
    });
    write(&format!("echo '{}'", json!({"Username": "portcullis", "Secret": password()})));
    folder.write("docker/config.json", file("one that has it"));
    pod.assert_recovered(REMOTE, 1);
    let environment = fs::read_to_string(folder.path("environment")).expect("the helper ran");
    assert!(environment.contains("PATH=") && !environment.contains("PORTCULLIS_"), "{environment}");
    marker.assert_nowhere(&pod);
}
