use std::fs;
use std::os::unix::fs::symlink;

use portcullis_certificate::client::MAX_INTERMEDIATES;
use rcgen::{BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair};
use rustls::{ClientConnection, Connection, ServerConnection};
use tempfile::TempDir;

use super::*;

pub(in crate::peers) const NAME: &str = "siblings.default.portcullis.portcullis";

struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

impl Authority {
    fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// The `tls.crt`, `tls.key` and `ca.crt` of a program with this name, for these usages, that trusts this authority.
    fn files(&self, name: &str, usages: &[ExtendedKeyUsagePurpose]) -> [String; 3] {
        let mut params = CertificateParams::new(vec![name.to_owned()]).expect("a name");
        params.extended_key_usages = usages.to_vec();
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        [certificate, key.serialize_pem(), self.pem.clone()]
    }

    fn sibling(&self) -> [String; 3] {
        self.files(NAME, &BOTH)
    }
}

const BOTH: [ExtendedKeyUsagePurpose; 2] = [ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];

fn write(folder: &Path, files: &[String; 3]) {
    for (name, text) in FILES.iter().zip(files) {
        fs::write(folder.join(name), text).expect("writes");
    }
}

/// A folder with the files of a loader.
pub(in crate::peers) fn sibling_folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), &Authority::new("loaders").sibling());
    folder
}

fn keys(folder: &Path) -> PeerKeys {
    PeerKeys::new(folder.to_owned(), NAME).expect("a name")
}

fn tls(files: &[String; 3]) -> PeerTls {
    let folder = tempfile::tempdir().expect("a folder");
    write(folder.path(), files);
    keys(folder.path()).tls().expect("good files")
}

/// Whether one may ask the other, by a TLS handshake.
fn may_ask(asks: &PeerTls, asked: &PeerTls) -> bool {
    let name = ServerName::try_from(NAME).expect("a name");
    let mut client = Connection::from(ClientConnection::new(Arc::clone(&asks.client), name).expect("a connection"));
    let mut server = Connection::from(ServerConnection::new(Arc::clone(&asked.server)).expect("a connection"));
    let agreed = (0..10).all(|_| carry(&mut client, &mut server) && carry(&mut server, &mut client));
    agreed && !client.is_handshaking() && !server.is_handshaking()
}

/// Carries the waiting bytes of one side to the other. Returns false if that side refuses them.
fn carry(from: &mut Connection, to: &mut Connection) -> bool {
    let mut bytes = Vec::new();
    while from.wants_write() {
        from.write_tls(&mut bytes).expect("writes");
    }
    let mut rest = bytes.as_slice();
    while !rest.is_empty() {
        to.read_tls(&mut rest).expect("reads");
        if to.process_new_packets().is_err() {
            return false;
        }
    }
    true
}

#[test]
fn h18_only_loaders_of_the_installation_are_asked_and_answered() {
    let (siblings, webhooks) = (Authority::new("siblings"), Authority::new("webhooks"));
    let loader = tls(&siblings.sibling());
    assert!(may_ask(&tls(&siblings.sibling()), &loader));
    // It trusts the authority of the loaders, but shows another certificate.
    let trusting = |files: [String; 3]| {
        let [certificate, key, _] = files;
        tls(&[certificate, key, siblings.pem.clone()])
    };
    let strangers = [
        ("the webhook's certificate", trusting(webhooks.files("policy-server.portcullis.svc", &BOTH[..1]))),
        ("the webhook's authority, with the right name", trusting(webhooks.sibling())),
        ("another name", trusting(siblings.files("siblings.other.portcullis.portcullis", &BOTH))),
    ];
    for (what, stranger) in &strangers {
        assert!(!may_ask(stranger, &loader), "{what} passes as a client");
        assert!(!may_ask(&loader, stranger), "{what} passes as a server");
    }
    let server_only = trusting(siblings.files(NAME, &BOTH[..1]));
    assert!(!may_ask(&server_only, &loader) && may_ask(&loader, &server_only));
}

#[test]
fn h18_a_loader_with_a_chain_that_takes_long_is_not_answered() {
    let authority = Authority::new("siblings");
    let loader = tls(&authority.sibling());
    let with_more = |count: usize| {
        let [certificate, key, trusted] = authority.sibling();
        tls(&[format!("{certificate}{}", authority.pem.repeat(count)), key, trusted])
    };
    assert!(may_ask(&with_more(MAX_INTERMEDIATES), &loader));
    assert!(!may_ask(&with_more(MAX_INTERMEDIATES + 1), &loader));
}

#[test]
fn w12_both_authorities_count_while_one_takes_over_from_the_other() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let with_both = |[certificate, key, _]: [String; 3]| tls(&[certificate, key, format!("{}{}", new.pem, old.pem)]);
    let (late, early) = (with_both(old.sibling()), with_both(new.sibling()));
    assert!(may_ask(&late, &early) && may_ask(&early, &late));
    assert!(!may_ask(&tls(&old.sibling()), &tls(&new.sibling())));
}

/// A folder as the kubelet mounts it: files are links through `..data`, which is swapped.
struct Mounted {
    folder: TempDir,
    count: u32,
}

impl Mounted {
    fn put(&mut self, files: &[String; 3]) {
        self.count += 1;
        let (root, new) = (self.folder.path(), format!("..{}", self.count));
        fs::create_dir(root.join(&new)).expect("a folder");
        write(&root.join(&new), files);
        symlink(&new, root.join("..tmp")).expect("links");
        fs::rename(root.join("..tmp"), root.join("..data")).expect("swaps");
        for name in FILES {
            // These links stay the same.
            let _ = symlink(Path::new("..data").join(name), root.join(name));
        }
    }
}

#[test]
fn h17_files_come_late_are_swapped_and_bad_ones_change_nothing() {
    let (one, other) = (Authority::new("one"), Authority::new("other"));
    let mut mounted = Mounted { folder: tempfile::tempdir().expect("a folder"), count: 0 };
    let keys = keys(mounted.folder.path());
    assert!(keys.tls().is_none(), "there are none yet");
    mounted.put(&one.sibling());
    let first = keys.tls().expect("they came");
    assert!(may_ask(&first, &tls(&one.sibling())));
    assert!(Arc::ptr_eq(&first.server, &keys.tls().expect("they are there").server), "made once");
    mounted.put(&other.sibling());
    let second = keys.tls().expect("they were swapped");
    assert!(may_ask(&second, &tls(&other.sibling())) && !may_ask(&second, &tls(&one.sibling())));
    let [certificate, _, authority] = other.sibling();
    for bad in [
        ["noise".to_owned(), "noise".to_owned(), "noise".to_owned()],
        [certificate, one.sibling()[1].clone(), authority],
    ] {
        mounted.put(&bad);
        assert!(Arc::ptr_eq(&second.server, &keys.tls().expect("the old ones").server));
    }
}

#[test]
fn a_name_that_is_none_is_refused() {
    for name in ["", "a b", "10.0.0.1", "-"] {
        assert!(PeerKeys::new(PathBuf::new(), name).is_err(), "{name}");
    }
}
