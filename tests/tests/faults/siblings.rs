//! Section 4: loaders give modules to each other, and to no other client, while a registry is unreachable. Modules on the volume are subject
//! to the same rules.

use std::fs;
use std::net::SocketAddr;

use portcullis_contract::{Manifest, Reason};
use portcullis_tests::{Authority, Folder, Pod, PodSetup, Policy, Registry, Source, eventually, guest, ports};
use rcgen::KeyPair;

use crate::resolving::NameServer;
use crate::signatures::{by, publish, sign};

const REMOTE: &str = "cluster/remote";

/// Writes the certificate of a loader into the folder that its settings name.
fn write_keys(folder: &Folder, authority: &Authority) {
    // Writes it under another name first: files may come one by one, but the loader would log that some are missing.
    let (hidden, keys) = (folder.path(".siblings"), folder.path("siblings"));
    fs::create_dir(&hidden).expect("a folder");
    authority.identity(&["portcullis-sibling"]).write_to(&hidden);
    fs::write(hidden.join("ca.crt"), &authority.pem).expect("writes");
    fs::rename(hidden, keys).expect("renames");
}

fn pod_on(folder: &Folder, ca_file: String) -> PodSetup {
    let keys = folder.path("siblings");
    Pod::on(folder).loader("--source-ca", ca_file).loader("--siblings-tls-dir", keys.display())
}

#[test]
fn fault_l01_loaders_find_each_other_by_name_once_they_have_certificates() {
    let registry = Registry::tls();
    let (manifest, _) = registry.push("policies/a:v1", &guest("always_accept"));
    let pinned = registry.module(&format!("policies/a@{manifest}"));
    let loaders = Authority::new("loaders");
    let address = ports();
    let SocketAddr::V4(v4) = address else { panic!("{address} is no IPv4 address") };
    let names = NameServer::new(v4.ip().octets());
    names.answer_one_of(1);

    let folders = [Folder::with_canary(), Folder::with_canary()];
    for folder in &folders {
        folder.put(&Policy::cluster("remote").module(&pinned));
    }
    let [first, second] = &folders;
    // A pod may start before it has a certificate.
    let asked = pod_on(first, registry.ca_file()).loader("--siblings-address", address).begin();
    asked.assert_recovered(REMOTE, 1);
    registry.stop();
    let asks = pod_on(second, registry.ca_file())
        .loader("--siblings", format!("siblings.test:{}", address.port()))
        .loader("--name-server", names.address)
        .begin();
    asks.assert_unserved(REMOTE, Reason::RegistryUnreachable);
    write_keys(first, &loaders);
    write_keys(second, &loaders);
    asks.assert_recovered(REMOTE, 1);
}

#[test]
fn fault_l22_signatures_come_from_another_loader_and_are_checked_here() {
    let source = Source::https();
    let (ours, theirs) = (KeyPair::generate().expect("a key"), KeyPair::generate().expect("a key"));
    let digest = publish(&source, "good");
    sign(&source, "good", &digest, &digest, &ours);
    let policy = |name: &str, key: &KeyPair| {
        let module = format!("registry://{}/good@{digest}", source.host());
        Policy::cluster(name).module(&module).spec("signatures", by(key))
    };
    let loaders = Authority::new("loaders");
    let address = ports();
    let folders = [Folder::with_canary(), Folder::with_canary()];
    for folder in &folders {
        write_keys(folder, &loaders);
        folder.put(&policy("remote", &ours));
    }
    let [first, second] = &folders;
    let asked = pod_on(first, source.ca_file(first)).loader("--siblings-address", address).begin();
    asked.assert_recovered(REMOTE, 1);
    source.close();
    second.put(&policy("theirs", &theirs));
    let asks = pod_on(second, source.ca_file(second)).loader("--siblings", address).begin();
    asks.assert_recovered(REMOTE, 1);
    asks.assert_unserved("cluster/theirs", Reason::SignatureUnavailable);

    // From here on no source answers. The signatures that were kept beside the module are used for a new policy too.
    drop(asked);
    asks.loader().restart_with(None);
    second.put(&policy("another", &ours));
    asks.assert_recovered("cluster/another", 1);
    asks.assert_recovered(REMOTE, 1);
    asks.assert_unserved("cluster/theirs", Reason::SignatureUnavailable);
}

/// A module on the volume can be used without a network, but is still subject to the rules of the installation.
#[test]
fn fault_l21_l23_rules_count_also_for_a_module_on_the_volume() {
    let source = Source::https();
    let ours = KeyPair::generate().expect("a key");
    let folder = Folder::empty();
    let digests = ["signed", "absent"].map(|name| publish(&source, name));
    sign(&source, "signed", &digests[0], &digests[0], &ours);
    for (name, digest) in ["signed", "absent"].iter().zip(&digests) {
        folder.put(&Policy::cluster(name).module(&format!("registry://{}/{name}@{digest}", source.host())));
    }
    let mut list = by(&ours);
    list["apiVersion"] = "v1".into();
    folder.write("verification.yml", list.to_string());
    let verification = folder.path("verification.yml").display().to_string();
    let only = format!("registry://{}/signed*", source.host());

    let pod = || pod_on(&folder, source.ca_file(&folder)).without_canary("its module is a file, which nobody can sign");
    let before = pod().begin();
    before.assert_recovered("cluster/signed", 1);
    before.assert_recovered("cluster/absent", 1);
    drop(before);
    for (flag, value, reason) in [
        ("--verification", &verification, Reason::SignatureInvalid),
        ("--allow-source", &only, Reason::SourceNotAllowed),
    ] {
        let after = pod().loader(flag, value).begin();
        // A running evaluator keeps what it serves, but one that starts does not get what the rules refuse.
        eventually("the module that the rules refuse to be taken out", || {
            let bytes = fs::read(folder.volume().join("manifest.json")).ok()?;
            let policies = Manifest::decode(&bytes).ok()?.policies;
            let absent = policies.into_iter().find(|policy| policy.id.as_str() == "cluster/absent")?;
            (absent.candidates.is_empty() && absent.failures.first()?.reason == reason).then_some(())
        });
        after.evaluator().restart_with(None);
        after.wait_admission();
        after.assert_unserved("cluster/absent", reason);
        after.assert_recovered("cluster/signed", 1);
    }
}
