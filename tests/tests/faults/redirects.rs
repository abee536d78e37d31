//! Sections 4 and 14: sources that redirect the loader, to steal its logins or to serve modules that are not allowed.

use std::fs;

use portcullis_contract::{Digest, Reason};
use portcullis_tests::{Folder, Policy, Reply, Source, docker_config};
use serde_json::json;

use crate::hostile::{MANIFEST, WASM, manifest, pod_with};

const REMOTE: &str = "cluster/remote";
const BY_TAG: &str = "/v2/policies/a/manifests/v1";

/// A pattern for the list of allowed sources that allows only this source.
fn only(source: &Source, scheme: &str) -> String {
    format!("{scheme}://{}/policies/*", source.host())
}

#[test]
fn fault_z17_the_target_of_a_redirect_asks_for_the_login() {
    let (source, target) = (Source::https(), Source::https());
    source.answer(BY_TAG, [Reply::redirect(&target.url(BY_TAG))]);
    let folder = Folder::with_canary();
    fs::create_dir(folder.path("docker")).expect("a folder");
    folder.write("docker/config.json", docker_config(&source.host(), "for the source alone"));
    folder.put(&Policy::cluster("remote").module(&format!("registry://{}/policies/a:v1", source.host())));
    let challenges = ["Basic realm=\"all\"".to_owned(), format!("Bearer realm=\"{}\"", target.url("/token"))];
    let setup = pod_with(&folder, &source).loader("--docker-config", folder.path("docker").display());
    target.answer(BY_TAG, [Reply::status(401).header("www-authenticate", &challenges[0])]);
    let pod = setup.start();
    for challenge in &challenges {
        target.answer(BY_TAG, [Reply::status(401).header("www-authenticate", challenge)]);
        let before = target.requests(BY_TAG).len();
        portcullis_tests::eventually("another attempt", || (target.requests(BY_TAG).len() > before + 1).then_some(()));
        let failure = pod.assert_unserved(REMOTE, Reason::Unauthorized);
        let words = [target.host(), "a login is never sent on".to_owned()];
        assert!(words.iter().all(|words| failure.message.contains(words)), "{}", failure.message);
    }
    let asked = target.asked();
    assert!(asked.iter().all(|asked| asked.header("authorization").is_none() && asked.path == BY_TAG), "{asked:?}");
}

#[test]
fn fault_z17_a_redirect_leaves_the_list_of_sources() {
    let (source, target) = (Source::https(), Source::https());
    target.answer("/policies/m.wasm", [Reply::module()]);
    source.answer("/policies/m.wasm", [Reply::redirect(&target.url("/policies/m.wasm"))]);
    source.answer("/policies/near.wasm", [Reply::redirect("/policies/here.wasm")]);
    source.answer("/policies/here.wasm", [Reply::module()]);
    source.answer("/policies/far.wasm", [Reply::redirect("/others/m.wasm")]);
    source.answer("/others/m.wasm", [Reply::module()]);
    source.answer(BY_TAG, [Reply::redirect(&target.url(BY_TAG))]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&source.url("/policies/m.wasm")));
    folder.put(&Policy::cluster("near").module(&source.url("/policies/near.wasm")));
    folder.put(&Policy::cluster("far").module(&source.url("/policies/far.wasm")));
    folder.put(&Policy::cluster("tag").module(&format!("registry://{}/policies/a:v1", source.host())));
    let list = json!({ "allowed_sources": [only(&source, "https"), only(&source, "registry")] });
    folder.write("sources.yml", list.to_string());
    let pod = pod_with(&folder, &source).loader("--sources", folder.path("sources.yml").display()).start();
    for id in [REMOTE, "cluster/tag"] {
        let failure = pod.assert_unserved(id, Reason::SourceNotAllowed);
        assert!(failure.message.contains(&format!("a redirect leads to {}", target.host())), "{}", failure.message);
    }
    pod.assert_unserved("cluster/far", Reason::SourceNotAllowed);
    pod.wait_current("cluster/near", 1);
    assert_eq!((target.connections(), source.requests("/others/m.wasm").len()), (0, 0));
}

/// Registries may keep blobs on other hosts, because the digest says what they must contain.
#[test]
fn blobs_may_lie_where_no_list_names_them() {
    let (source, store) = (Source::https(), Source::https());
    let module = Reply::module_bytes("elsewhere");
    let text = manifest(&module, &[WASM]).to_string();
    let blob = format!("/v2/policies/a/blobs/{}", Digest::of(&module));
    source.answer(BY_TAG, [Reply::ok(text).header("content-type", MANIFEST)]);
    source.answer(&blob, [Reply::redirect(&store.url("/blob"))]);
    store.answer("/blob", [Reply::ok(module)]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&format!("registry://{}/policies/a:v1", source.host())));
    let pod = pod_with(&folder, &source).loader("--allow-source", only(&source, "registry")).start();
    pod.wait_current(REMOTE, 1);
}
