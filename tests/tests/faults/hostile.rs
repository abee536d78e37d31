//! Section 4: hostile registries, redirects and proxies.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::symlink;
use std::time::Duration;

use portcullis_contract::{Digest, LoaderPolicy, Reason};
use portcullis_tests::{
    Authority, CANARY, Folder, Pod, PodSetup, Policy, Reply, Review, Source, Tls, docker_config, eventually,
    eventually_within, guest, gzip_bomb, never, stored_in_gzip, tar, zstd_bomb,
};
use serde_json::{Value, json};

const REMOTE: &str = "cluster/remote";
const UPDATED: &str = "cluster/updated";
pub(crate) const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
pub(crate) const WASM: &str = "application/vnd.wasm.content.layer.v1+wasm";

/// The manifest of an artifact with one layer of each of these types, all with the same module.
pub(crate) fn manifest(module: &[u8], layers: &[&str]) -> Value {
    let layer = |kind: &&str| json!({"mediaType": kind, "digest": Digest::of(module), "size": module.len()});
    json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": {"mediaType": "application/vnd.wasm.config.v1+json", "digest": Digest::of(b"{}"), "size": 2},
        "layers": layers.iter().map(layer).collect::<Vec<_>>(),
    })
}

/// Serves `repository:v1` with this manifest, and `blob` for the digest of `named`.
pub(crate) fn serve(source: &Source, repository: &str, manifest: &[u8], named: &[u8], blob: Reply) {
    source.answer(&format!("/v2/{repository}/manifests/v1"), [Reply::ok(manifest).header("content-type", MANIFEST)]);
    source.answer(&format!("/v2/{repository}/blobs/{}", Digest::of(named)), [blob]);
}

pub(crate) fn name(source: &Source, repository: &str) -> String {
    format!("registry://{}/{repository}:v1", source.host())
}

pub(crate) fn pod_with(folder: &Folder, source: &Source) -> PodSetup {
    Pod::on(folder).loader("--source-ca", source.ca_file(folder))
}

#[test]
fn fault_l10_bytes_of_another_digest() {
    let source = Source::https();
    let good = guest("always_accept");
    let mut bad = good.clone();
    *bad.last_mut().expect("it is not empty") ^= 1;
    serve(&source, "a", manifest(&good, &[WASM]).to_string().as_bytes(), &good, Reply::ok(bad.clone()));
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&name(&source, "a")));
    // A manifest other than the one that the policy names by digest.
    let wanted = Digest::of(b"another manifest");
    source.answer(
        &format!("/v2/b/manifests/{wanted}"),
        [Reply::ok(manifest(&good, &[WASM]).to_string()).header("content-type", MANIFEST)],
    );
    folder.put(&Policy::cluster("pinned").module(&format!("registry://{}/b@{wanted}", source.host())));
    let pod = pod_with(&folder, &source).start();
    let artifacts = pod.volume().artifacts();

    let failure = pod.assert_unserved(REMOTE, Reason::DigestMismatch);
    for digest in [Digest::of(&good), Digest::of(&bad)] {
        assert!(failure.message.contains(&digest.to_string()), "{}", failure.message);
    }
    let failure = pod.assert_unserved("cluster/pinned", Reason::DigestMismatch);
    for digest in [wanted, Digest::of(manifest(&good, &[WASM]).to_string().as_bytes())] {
        assert!(failure.message.contains(&digest.to_string()), "{}", failure.message);
    }
    assert_eq!(pod.volume().artifacts(), artifacts, "nothing was compiled");
    serve(&source, "a", manifest(&good, &[WASM]).to_string().as_bytes(), &good, Reply::ok(good.clone()));
    pod.assert_recovered(REMOTE, 1);
}

/// Layers that would have to be unpacked are refused, and bodies are never decoded: nothing expands. The compiler is a process of its own, and
/// so little memory is allowed to it that it would run into `CompileLimit` if it expanded anything.
#[test]
fn fault_l13_compressed_layers_are_never_expanded() {
    const TAR_GZIP: &str = "application/vnd.oci.image.layer.v1.tar+gzip";
    const TAR_ZSTD: &str = "application/vnd.oci.image.layer.v1.tar+zstd";
    let source = Source::https();
    // Each expands to 2 GiB. The nested one is an archive within an archive, and the outer one is not compressed.
    let (gzip, zstd) = (gzip_bomb(2 << 20), zstd_bomb(16 << 10));
    let nested = stored_in_gzip(&tar("module.wasm.gz", &gzip));
    let bombs =
        [("gzip", "gzip", TAR_GZIP, &gzip), ("zstd", "zstd", TAR_ZSTD, &zstd), ("nested", "gzip", TAR_GZIP, &nested)];
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).loader("--compile-memory", "64MiB").start();
    pod.wait_current(&format!("cluster/{CANARY}"), 1);
    let (before, artifacts) = (pod.loader().usage(), pod.volume().artifacts());
    for (name, encoding, kind, bomb) in bombs {
        let packed = || Reply::ok(bomb.clone()).header("content-encoding", encoding);
        // As a layer with its real type, as a layer with the type of a module, and below as a module at an https address.
        for (way, layer, reason) in
            [("layer", kind, Reason::ManifestUnsupported), ("wasm", WASM, Reason::ModuleInvalid)]
        {
            let repository = format!("{name}-{way}");
            serve(&source, &repository, manifest(bomb, &[layer]).to_string().as_bytes(), bomb, packed());
            folder.put(&Policy::cluster(&repository).module(&self::name(&source, &repository)));
            pod.assert_unserved(&format!("cluster/{repository}"), reason);
        }
        let path = format!("/{name}.wasm");
        source.answer(&path, [packed()]);
        folder.put(&Policy::cluster(name).module(&source.url(&path)));
        pod.assert_unserved(&format!("cluster/{name}"), Reason::ModuleInvalid);
    }
    let after = pod.loader().usage();
    assert!(after.peak < before.peak + (64 << 20), "{before} became {after}");
    assert_eq!(pod.volume().artifacts(), artifacts, "nothing was compiled");
    source.answer("/plain.wasm", [Reply::module()]);
    folder.put(&Policy::cluster("gzip").module(&source.url("/plain.wasm")));
    pod.assert_recovered("cluster/gzip", 2);
}

#[test]
fn fault_l19_manifests_of_other_things() {
    let source = Source::https();
    let module = guest("always_accept");
    let good = manifest(&module, &[WASM]);
    let mut unknown = good.clone();
    unknown["mediaType"] = "application/x".into();
    let index = json!({"schemaVersion": 2, "mediaType": INDEX, "manifests": [{"mediaType": INDEX, "size": 1, "digest": Digest::of(b"")}]});
    let forms = [
        ("not-json", "<html>".to_owned()),
        ("unknown", unknown.to_string()),
        ("no-layer", manifest(&module, &[]).to_string()),
        ("two-layers", manifest(&module, &[WASM, WASM]).to_string()),
        ("index", index.to_string()),
    ];
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("updated").denying("generation one"));
    for (repository, manifest) in &forms {
        serve(&source, repository, manifest.as_bytes(), &module, Reply::ok(module.clone()));
        folder.put(&Policy::cluster(repository).module(&name(&source, repository)));
    }
    let pod = pod_with(&folder, &source).start();
    for (repository, _) in &forms {
        pod.assert_unserved(&format!("cluster/{repository}"), Reason::ManifestUnsupported);
    }
    folder.put(&Policy::cluster("updated").module(&name(&source, "index")));
    pod.assert_kept("cluster/updated", Reason::ManifestUnsupported, 1, |verdict| verdict.message == "generation one");
}

#[test]
fn fault_l20_manifest_without_end() {
    /// The largest manifest, in bytes.
    const LARGEST: usize = 4 << 20;
    let source = Source::https();
    source.answer("/v2/a/manifests/v1", [Reply::endless()]);
    source.answer("/v2/b/manifests/v1", [Reply::ok(b" ".repeat(100 << 20)).header("content-type", MANIFEST)]);
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    let before = pod.loader().usage();
    for repository in ["a", "b"] {
        folder.put(&Policy::cluster(repository).module(&name(&source, repository)));
        pod.assert_unserved(&format!("cluster/{repository}"), Reason::ModuleTooLarge);
    }
    let after = pod.loader().usage();
    assert!(after.peak < before.peak + (32 << 20), "{before} became {after}");

    // As large as is allowed, and one byte larger.
    let module = guest("always_accept");
    for (repository, size) in [("c", LARGEST), ("d", LARGEST + 1)] {
        let mut padded = manifest(&module, &[WASM]).to_string().into_bytes();
        padded.resize(size, b' ');
        serve(&source, repository, &padded, &module, Reply::ok(module.clone()));
        folder.put(&Policy::cluster(repository).module(&name(&source, repository)));
    }
    pod.assert_recovered("cluster/c", 1);
    let failure = pod.assert_unserved("cluster/d", Reason::ModuleTooLarge);
    assert!(failure.message.contains("manifest"), "{}", failure.message);
}

/// Hosts of one namespace give manifests as large as is allowed, and slowly. Of all that came, the loader keeps a few in memory.
#[test]
fn manifests_that_come_slowly_from_many_hosts_use_up_no_memory() {
    const HOSTS: usize = 48;
    let reply = || Reply::ok(b" ".repeat(4 << 20)).header("content-type", MANIFEST).rate(256 << 10);
    let slow: Vec<_> = (0..HOSTS).map(|_| Source::https()).collect();
    let source = Source::https();
    let folder = Folder::with_canary();
    let pod = pod_with(&folder, &source).start();
    let before = pod.loader().usage();
    for (number, host) in slow.iter().enumerate() {
        host.answer("/v2/a/manifests/v1", [reply()]);
        folder.put(&Policy::namespaced("flood", &format!("p{number}")).module(&name(host, "a")));
    }
    eventually("all of them were asked", || {
        slow.iter().all(|host| !host.requests("/v2/a/manifests/v1").is_empty()).then_some(())
    });
    // Small manifests do not wait, and of large ones those of others have their turn.
    let module = guest("always_accept");
    for (repository, size) in [("small", 1 << 10), ("large", 4 << 20)] {
        let mut padded = manifest(&module, &[WASM]).to_string().into_bytes();
        padded.resize(size, b' ');
        serve(&source, repository, &padded, &module, Reply::ok(module.clone()));
        folder.put(&Policy::namespaced("other", repository).module(&name(&source, repository)));
        pod.assert_recovered(&format!("namespaced/other/{repository}"), 1);
    }
    let is_over =
        |policy: &LoaderPolicy| policy.id.as_str().starts_with("namespaced/flood/") && policy.failure.is_some();
    eventually_within(Duration::from_secs(120), "each of them has come to its end", || {
        (pod.loader_state()?.policies.iter().filter(|policy| is_over(policy)).count() == HOSTS).then_some(())
    });
    let after = pod.loader().usage();
    assert!(after.peak < before.peak + (80 << 20), "{before} became {after}");
}

#[test]
fn fault_l07_token_service_down_or_no_token() {
    let (source, tokens) = (Source::https(), Source::https());
    let challenge = format!("Bearer realm=\"{}\",service=\"tests\"", tokens.url("/token"));
    source.answer("/v2/a/manifests/v1", [Reply::status(401).header("www-authenticate", &challenge)]);
    let folder = Folder::with_canary();
    fs::create_dir(folder.path("docker")).expect("a folder");
    folder.write("docker/config.json", docker_config(&source.host(), "x"));
    folder.put(&Policy::cluster("remote").module(&name(&source, "a")));
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let path = "/token?service=tests&scope=repository%3Aa%3Apull";
    tokens.answer(path, [Reply::status(500)]);
    let pod = pod_with(&folder, &source).loader("--docker-config", folder.path("docker").display()).start();
    pod.assert_unserved(REMOTE, Reason::RegistryServerError);
    for no_token in ["<html>", "{}", "{\"token\": \"\"}", "[]"] {
        tokens.answer(path, [Reply::ok(no_token)]);
        let before = tokens.requests(path).len();
        // The second of them is sent after the loader has read the answer to the first.
        eventually("another attempt", || (tokens.requests(path).len() > before + 1).then_some(()));
        let failure = pod.assert_unserved(REMOTE, Reason::Unauthorized);
        assert!(failure.message.contains("something that is not a token"), "{no_token}: {}", failure.message);
    }
    pod.wait_current(UPDATED, 1);
    folder.put(&Policy::cluster("updated").module(&name(&source, "a")));
    pod.assert_kept(UPDATED, Reason::Unauthorized, 1, |verdict| verdict.message == "generation one");
    tokens.close();
    pod.assert_unserved(REMOTE, Reason::RegistryUnreachable);
    // As soon as the service gives out a token, the module loads without further action.
    let module = guest("always_accept");
    source.answer(&format!("/v2/a/blobs/{}", Digest::of(&module)), [Reply::ok(module.clone())]);
    let refused = Reply::status(401).header("www-authenticate", &challenge);
    let answered = Reply::ok(manifest(&module, &[WASM]).to_string()).header("content-type", MANIFEST);
    source.answer("/v2/a/manifests/v1", [refused, answered]);
    tokens.answer(path, [Reply::ok("{\"token\": \"good\"}")]);
    tokens.open();
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered(UPDATED, 2);
    assert!(source.asked().iter().any(|asked| asked.header("authorization") == Some("Bearer good")));
}

#[test]
fn fault_l17_authorities_replaced_while_running() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::module()]);
    source.answer("/n.wasm", [Reply::module()]);
    let folder = Folder::with_canary();
    // As a kubelet mounts it: the file is a link into a folder that is replaced.
    for (version, pem) in [("1", Authority::new("another").pem), ("2", Authority::shared().pem.clone())] {
        fs::create_dir(folder.path(version)).expect("a folder");
        folder.write(&format!("{version}/ca.pem"), pem);
    }
    symlink("1", folder.path("data")).expect("links");
    symlink("data/ca.pem", folder.path("ca.pem")).expect("links");
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    let setup =
        Pod::on(&folder).loader("--source-ca", folder.path("ca.pem").display()).loader("--retry-outside", "10m");
    let pod = setup.start();
    pod.assert_unserved(REMOTE, Reason::TLSFailed);
    symlink("2", folder.path("data.new")).expect("links");
    fs::rename(folder.path("data.new"), folder.path("data")).expect("renames");
    pod.assert_recovered(REMOTE, 1);
    // While the file cannot be used, its last content counts.
    folder.write("2/ca.pem", "no certificate");
    folder.put(&Policy::cluster("updated").module(&source.url("/n.wasm")));
    pod.wait_current(UPDATED, 1);
    pod.loader().wait_for_log("a word about the file", |line| {
        line["message"].as_str().is_some_and(|text| text.contains("file of authorities"))
    });
}

#[test]
fn fault_l15_redirects_to_inside() {
    let (source, target) = (Source::https(), Source::https());
    target.answer("/m.wasm", [Reply::module()]);
    let host = target.host();
    let inside = TcpListener::bind("127.0.0.1:0").expect("binds");
    inside.set_nonblocking(true).expect("it does not wait");
    let port = inside.local_addr().expect("an address").port();
    // The source's own address is allowed, and no other.
    let own = source.host().rsplit_once(':').expect("a port").0.to_owned();
    let targets = [
        ("scheme", "ftp://example.com/m.wasm".to_owned()),
        ("plain", format!("http://{host}/m.wasm")),
        ("loopback", format!("https://127.0.0.1:{port}/m.wasm")),
        ("mapped", format!("https://[::ffff:127.0.0.1]:{port}/m.wasm")),
        ("metadata", "https://169.254.169.254/latest/meta-data".to_owned()),
        ("private", "https://10.0.0.1/m.wasm".to_owned()),
        ("name", format!("https://localhost:{port}/m.wasm")),
    ];
    let folder = Folder::with_canary();
    for (name, to) in &targets {
        source.answer(&format!("/{name}.wasm"), [Reply::redirect(to)]);
        folder.put(&Policy::cluster(name).module(&source.url(&format!("/{name}.wasm"))));
    }
    let pod = pod_with(&folder, &source).loader("--allow-private", own).start();
    for (name, _) in &targets {
        pod.assert_unserved(&format!("cluster/{name}"), Reason::RedirectRefused);
    }
    assert_eq!(target.connections(), 0);
    assert!(inside.accept().is_err(), "somebody has connected");
}

#[test]
fn fault_x05_addresses_of_the_inside() {
    let target = Source::new(Tls::Trusted);
    target.answer("/m.wasm", [Reply::module()]);
    let host = target.host();
    let (ip, port) = host.rsplit_once(':').expect("a port");
    let number = ip.parse::<std::net::Ipv4Addr>().expect("an address").to_bits();
    let folder = Folder::with_canary();
    let addresses = [
        ("plain", format!("https://{host}/m.wasm")),
        ("decimal", format!("https://{number}:{port}/m.wasm")),
        ("hex", format!("https://0x{number:x}:{port}/m.wasm")),
        ("octal", format!("https://0{number:o}:{port}/m.wasm")),
        ("mapped", format!("https://[::ffff:{ip}]:{port}/m.wasm")),
        ("loopback6", format!("https://[::1]:{port}/m.wasm")),
        ("name", format!("https://localhost:{port}/m.wasm")),
        ("metadata", "https://169.254.169.254/m.wasm".to_owned()),
        ("private", "https://192.168.0.1/m.wasm".to_owned()),
        ("unspecified", format!("https://0.0.0.0:{port}/m.wasm")),
        ("artifact", format!("registry://{host}/a:v1")),
    ];
    for (name, address) in &addresses {
        folder.put(&Policy::cluster(name).module(address));
    }
    let pod = pod_with(&folder, &target).loader("--allow-private", "192.0.2.0/24").start();
    for (name, _) in &addresses {
        pod.assert_unserved(&format!("cluster/{name}"), Reason::SourceNotAllowed);
    }
    never(Duration::from_secs(1), "a connection", || (target.connections() > 0).then_some(()));
}

#[test]
fn fault_l26_proxy_down_or_wanting_a_password() {
    let proxy = Source::new(Tls::Off);
    let folder = Folder::with_canary();
    let sources = |scheme: &str| format!("proxies: {{{scheme}_proxy: 'http://{}'}}\n", proxy.host());
    folder.write("sources.yml", sources("http"));
    // The loader does not resolve names of hosts that it reaches through the proxy.
    let [address, second] = ["m", "second"].map(|name| format!("http://modules.example/{name}.wasm"));
    proxy.answer(&address, [Reply::status(407)]);
    folder.put(&Policy::cluster("remote").module(&address));
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let setup = Pod::on(&folder).loader("--sources", folder.path("sources.yml").display());
    let pod = setup.loader("--allow-http-host", "modules.example").start();
    pod.wait_current(UPDATED, 1);
    folder.put(&Policy::cluster("updated").module(&address));
    pod.assert_unserved(REMOTE, Reason::Unauthorized);
    pod.assert_kept(UPDATED, Reason::Unauthorized, 1, |verdict| verdict.message == "generation one");
    proxy.close();
    folder.put(&Policy::cluster("second").module(&second));
    pod.assert_unserved("cluster/second", Reason::RegistryUnreachable);
    pod.assert_kept(UPDATED, Reason::RegistryUnreachable, 1, |verdict| verdict.message == "generation one");
    proxy.answer(&address, [Reply::module()]);
    proxy.answer(&second, [Reply::module_named("second")]);
    proxy.open();
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered("cluster/second", 1);
    pod.assert_recovered(UPDATED, 2);
    assert!(pod.ask(UPDATED, &Review::pod()).verdict().allowed);
}
