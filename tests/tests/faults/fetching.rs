//! Section 4: fetching modules over https and from files.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, PodSetup, Policy, Reply, Review, Secret, Source, Tls, eventually, guest, never};

const REMOTE: &str = "cluster/remote";
const UPDATED: &str = "cluster/updated";

/// A pod whose loader trusts the source's authority, with a policy that serves generation 1 and will be updated.
fn pod_with(folder: &Folder, source: &Source) -> PodSetup {
    folder.put(&Policy::cluster("updated").denying("generation one"));
    Pod::on(folder).loader("--source-ca", source.ca_file(folder))
}

/// Asserts that a new policy fails and does not serve, and that an update fails while the old generation goes on serving.
fn assert_both_fail(pod: &Pod, folder: &Folder, source: &Source, reason: Reason) {
    folder.put(&Policy::cluster("remote").module(&source.url("/new.wasm")));
    folder.put(&Policy::cluster("updated").module(&source.url("/update.wasm")));
    pod.assert_unserved(REMOTE, reason);
    pod.assert_kept(UPDATED, reason, 1, |verdict| verdict.message == "generation one");
}

fn assert_both_recover(pod: &Pod) {
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered(UPDATED, 2);
    for id in [REMOTE, UPDATED] {
        assert!(pod.ask(id, &Review::pod()).verdict().allowed);
    }
}

#[test]
fn fault_l01_source_refuses_connections() {
    let source = Source::https();
    source.answer("/new.wasm", [Reply::module_named("new")]);
    source.answer("/update.wasm", [Reply::module_named("update")]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    pod.wait_current(UPDATED, 1);

    source.close();
    assert_both_fail(&pod, &folder, &source, Reason::RegistryUnreachable);
    source.open();
    assert_both_recover(&pod);
}

#[test]
fn fault_l04_source_answers_5xx() {
    let source = Source::https();
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    pod.wait_current(UPDATED, 1);

    // Endless failures at first, so that there is time to check what a user sees.
    for path in ["/new.wasm", "/update.wasm"] {
        source.answer(path, [Reply::status(500)]);
    }
    assert_both_fail(&pod, &folder, &source, Reason::RegistryServerError);
    for path in ["/new.wasm", "/update.wasm"] {
        source.answer(path, [Reply::module_named(path)]);
    }
    assert_both_recover(&pod);

    for status in [502, 503, 504] {
        let (name, path) = (format!("s{status}"), format!("/{status}.wasm"));
        let failures = [(); 3].map(|()| Reply::status(status));
        source.answer(&path, failures.into_iter().chain([Reply::module_named(&name)]));
        folder.put(&Policy::cluster(&name).module(&source.url(&path)));
        pod.assert_recovered(&format!("cluster/{name}"), 1);
        // I6: three failures and the success, and no more requests after that.
        assert_eq!(source.requests(&path).len(), 4, "{status}");
    }
}

#[test]
fn fault_l09_truncated_blob() {
    let source = Source::https();
    let module = guest("always_accept");
    for path in ["/new.wasm", "/update.wasm"] {
        source.answer(path, [Reply::ok(module.clone()).cut_after(module.len() * 6 / 10)]);
    }
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    pod.wait_current(UPDATED, 1);
    let before = pod.volume().artifacts();

    assert_both_fail(&pod, &folder, &source, Reason::BlobTruncated);
    assert_eq!(pod.volume().artifacts(), before, "nothing was published");
    // An attempt may be under way at this moment; between two attempts there is no file.
    eventually("no temporary file to be left", || pod.volume().temporary_files().is_empty().then_some(()));

    for path in ["/new.wasm", "/update.wasm"] {
        source.answer(path, [Reply::ok(module.clone())]);
    }
    assert_both_recover(&pod);
}

#[test]
fn fault_l12_body_without_end() {
    const LIMIT: u64 = 16 << 20;
    let source = Source::https();
    for path in ["/new.wasm", "/update.wasm"] {
        source.answer(path, [Reply::endless()]);
    }
    let folder = Folder::with_canary();
    // The body must fail because of its size, however slowly it comes.
    let setup = pod_with(&folder, &source).loader("--fetch-timeout", "10m");
    let pod = setup.loader("--max-module-size", "16MiB").start();
    pod.wait_current(UPDATED, 1);
    let before = pod.loader().usage();

    assert_both_fail(&pod, &folder, &source, Reason::ModuleTooLarge);
    let after = pod.loader().usage();
    // Two bodies at the same time, each less than twice the limit.
    assert!(after.peak < before.peak + 2 * 2 * LIMIT, "{before} became {after}");
    eventually("no temporary file to be left", || pod.volume().temporary_files().is_empty().then_some(()));
    never(Duration::from_secs(2), "a second attempt of what is final", || {
        (source.requests("/new.wasm").len() > 1).then_some(())
    });
}

#[test]
fn fault_l16_bad_certificates() {
    let sources = [
        (Tls::Expired, ["expired", "no longer valid"]),
        (Tls::OtherHost, ["not valid for", "another host"]),
        (Tls::UnknownAuthority, ["unknown", "not trusted"]),
        (Tls::OldVersion, ["version", "TLS 1.2"]),
    ]
    .map(|(tls, words)| (tls, words, Source::new(tls)));
    let good = Source::https();
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &good).start();
    pod.wait_current(UPDATED, 1);

    for (tls, words, source) in &sources {
        let name = format!("{tls:?}").to_lowercase();
        folder.put(&Policy::cluster(&name).module(&source.url("/m.wasm")));
        let failure = pod.assert_unserved(&format!("cluster/{name}"), Reason::TLSFailed);
        assert!(words.iter().any(|word| failure.message.contains(word)), "{tls:?}: {}", failure.message);
        assert!(source.requests("/m.wasm").is_empty(), "nothing is requested from an untrusted server");
    }
    folder.put(&Policy::cluster("updated").module(&sources[0].2.url("/m.wasm")));
    pod.assert_kept(UPDATED, Reason::TLSFailed, 1, |verdict| verdict.message == "generation one");
    // Only a change helps: a source with a good certificate.
    good.answer("/m.wasm", [Reply::module()]);
    folder.put(&Policy::cluster("updated").module(&good.url("/m.wasm")));
    pod.assert_recovered(UPDATED, 3);
}

#[test]
fn fault_l23_scheme_host_or_path_not_allowed() {
    let plain = Source::new(Tls::Off);
    plain.answer("/m.wasm", [Reply::module()]);
    let folder = Folder::with_canary();
    // These modules are good, but outside of the folders that policies may use.
    folder.write("outside/module.wasm", guest("always_accept"));
    symlink(folder.path("outside/module.wasm"), folder.policies().join("modules/link.wasm")).expect("links");
    symlink(folder.path("outside"), folder.policies().join("linked")).expect("links");
    let pod = pod_with(&folder, &plain).start();
    pod.wait_current(UPDATED, 1);

    let password = Secret::planted_in("address");
    let outside = folder.path("outside/module.wasm");
    let refused = [
        ("plain-http", plain.url("/m.wasm")),
        ("other-scheme", format!("ftp://{}/m.wasm", plain.host())),
        ("credentials", format!("http://user:{}@{}/m.wasm", password.text(), plain.host())),
        ("dots", "../outside/module.wasm".to_owned()),
        ("dots-inside", "modules/../../outside/module.wasm".to_owned()),
        ("absolute", format!("file://{}", outside.display())),
        ("dots-in-url", format!("file://{}/../outside/module.wasm", folder.policies().display())),
        ("encoded-dots", format!("file://{}/%2e%2e/outside/module.wasm", folder.policies().display())),
        ("link", "modules/link.wasm".to_owned()),
        ("link-in-path", "linked/module.wasm".to_owned()),
        ("system", "file:///etc/passwd".to_owned()),
    ];
    for (name, address) in &refused {
        folder.put(&Policy::cluster(name).module(address));
    }
    for (name, _) in &refused {
        pod.assert_unserved(&format!("cluster/{name}"), Reason::SourceNotAllowed);
    }
    folder.put(&Policy::cluster("updated").module("../outside/module.wasm"));
    pod.assert_kept(UPDATED, Reason::SourceNotAllowed, 1, |verdict| verdict.message == "generation one");
    assert_eq!(plain.connections(), 0);
    password.assert_nowhere(&pod);

    // A module within the folder loads, also by a file: address.
    fs::copy(&outside, folder.policies().join("modules/inside.wasm")).expect("copies");
    folder.put(
        &Policy::cluster("updated").module(&format!("file://{}/modules/inside.wasm", folder.policies().display())),
    );
    pod.assert_recovered(UPDATED, 3);
}

#[test]
fn fault_l23_what_the_installation_allows_is_allowed() {
    let plain = Source::new(Tls::Off);
    plain.answer("/m.wasm", [Reply::module()]);
    let folder = Folder::with_canary();
    folder.write("outside/module.wasm", guest("always_accept"));
    folder.put(&Policy::cluster("plain").module(&plain.url("/m.wasm")));
    folder.put(&Policy::cluster("outside").module(&format!("file://{}", folder.path("outside/module.wasm").display())));
    let pod = Pod::on(&folder)
        .loader("--allow-http-host", plain.host())
        .loader("--module-root", folder.path("outside").display())
        .start();
    pod.assert_recovered("cluster/plain", 1);
    pod.assert_recovered("cluster/outside", 1);
}
