//! Section 4: `sources.yml` with real servers: insecure hosts, authorities of hosts, proxies, and allowed sources.

use std::time::{Duration, SystemTime};

use portcullis_contract::Reason;
use portcullis_tests::{
    Authority, Folder, ForwardProxy, Pod, PodSetup, Policy, Program, Registry, Reply, Secret, Source, Tls,
};
use serde_json::{Value, json};

const REMOTE: &str = "cluster/remote";

fn write_sources(folder: &Folder, sources: Value) {
    folder.write("sources.yml", sources.to_string());
}

/// A pod with the folder's `sources.yml`. Unless that file changes, it retries only after minutes.
fn pod_with(folder: &Folder) -> PodSetup {
    let setup = Pod::on(folder).loader("--sources", folder.path("sources.yml").display());
    setup.loader("--retry-outside", "10m")
}

#[test]
fn fault_l16_sources_that_nobody_checks() {
    let (unknown, plain) = (Source::new(Tls::UnknownAuthority), Registry::plain());
    unknown.answer("/m.wasm", [Reply::module_named("of an unknown authority")]);
    plain.push("policies/a:v1", &Reply::module_bytes("over plain HTTP"));
    let folder = Folder::with_canary();
    write_sources(&folder, json!({}));
    folder.put(&Policy::cluster("remote").module(&unknown.url("/m.wasm")));
    folder.put(&Policy::cluster("plain").module(&plain.module("policies/a:v1")));
    let pod = pod_with(&folder).start();

    pod.assert_unserved(REMOTE, Reason::TLSFailed);
    let failure = pod.assert_unserved("cluster/plain", Reason::TLSFailed);
    assert!(failure.message.contains("--allow-http-host"), "{}", failure.message);
    write_sources(&folder, json!({"insecure_sources": [unknown.host(), plain.host()]}));
    pod.assert_recovered(REMOTE, 1);
    pod.assert_recovered("cluster/plain", 1);
}

/// A loader starts with a file that it cannot use, and opens nothing meanwhile.
#[test]
fn sources_that_are_broken_at_the_start_count_once_they_are_right() {
    let source = Source::https();
    source.answer("/m.wasm", [Reply::module_named("from a source")]);
    let folder = Folder::with_canary();
    folder.write("sources.yml", "insecure_sources: [");
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    let pod = pod_with(&folder).loader("--source-ca", source.ca_file(&folder)).start();

    let failure = pod.assert_unserved(REMOTE, Reason::SourceNotAllowed);
    assert!(failure.message.contains("sources.yml") && failure.message.contains("--sources"), "{}", failure.message);
    write_sources(&folder, json!({}));
    pod.assert_recovered(REMOTE, 1);
}

/// The file itself is right, and one that it names comes later.
#[test]
fn sources_that_name_a_missing_file_at_the_start_count_once_it_is_there() {
    let registry = Registry::tls();
    registry.push("policies/a:v1", &Reply::module_bytes("of an authority that comes later"));
    let folder = Folder::with_canary();
    let authority = json!({"type": "Path", "path": folder.path("later.pem")});
    write_sources(&folder, json!({"source_authorities": {registry.host(): [authority]}}));
    // A file of the future does not get old, so that nothing but the other file changes.
    let file = std::fs::File::options().write(true).open(folder.path("sources.yml")).expect("opens");
    file.set_modified(SystemTime::now() + Duration::from_secs(86_400)).expect("sets its time");
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let pod = pod_with(&folder).start();

    let failure = pod.assert_unserved(REMOTE, Reason::SourceNotAllowed);
    assert!(failure.message.contains("later.pem"), "{}", failure.message);
    folder.write("later.pem", std::fs::read(registry.ca_file()).expect("reads"));
    pod.assert_recovered(REMOTE, 1);
}

#[test]
fn fault_l16_authorities_of_one_host_count_for_that_host_only() {
    let (first, second) = (Registry::tls(), Registry::tls());
    for registry in [&first, &second] {
        registry.push("policies/a:v1", &Reply::module_bytes("authorities"));
    }
    let folder = Folder::with_canary();
    let other = Authority::new("another");
    let authorities = |of_second: &str| {
        json!({"source_authorities": {
            first.host(): [{"type": "Path", "path": first.ca_file()}],
            second.host(): [{"type": "Data", "data": of_second}],
        }})
    };
    write_sources(&folder, authorities(&other.pem));
    folder.put(&Policy::cluster("remote").module(&first.module("policies/a:v1")));
    folder.put(&Policy::cluster("second").module(&second.module("policies/a:v1")));
    // The usual authorities would verify the second server's certificate, but the host's own list replaces them.
    let pod = pod_with(&folder).loader("--source-ca", second.ca_file()).start();

    pod.assert_recovered(REMOTE, 1);
    pod.assert_unserved("cluster/second", Reason::TLSFailed);
    // While the file is invalid, its last valid content applies.
    folder.write("sources.yml", "{source_authorities: nonsense");
    pod.loader().wait_for_log("a word about the file", |line| {
        line["message"].as_str().is_some_and(|text| text.contains("file of sources"))
    });
    write_sources(&folder, authorities(&Authority::shared().pem));
    pod.assert_recovered("cluster/second", 1);
}

#[test]
fn fault_l26_proxy_with_a_login_and_hosts_that_need_none() {
    let registry = Registry::tls();
    registry.push("policies/a:v1", &Reply::module_bytes("through a proxy"));
    registry.push("policies/b:v1", &Reply::module_bytes("past the proxy"));
    let port = registry.host().rsplit_once(':').expect("a port").1.to_owned();
    let (right, wrong) = (Secret::planted_in("proxy-password"), Secret::planted_in("wrong-proxy-password"));
    let proxy = ForwardProxy::with_login("somebody", right.text());
    let folder = Folder::with_canary();
    let ip = registry.host().rsplit_once(':').expect("a port").0.to_owned();
    let proxies = |secret: &Secret| {
        let address = format!("http://somebody:{}@{}", secret.text(), proxy.host());
        json!({"proxies": {"https_proxy": address, "no_proxy": ip}})
    };
    write_sources(&folder, proxies(&wrong));
    // Only the proxy can resolve this name.
    folder.put(&Policy::cluster("remote").module(&format!("registry://registry.example:{port}/policies/a:v1")));
    folder.put(&Policy::cluster("direct").module(&registry.module("policies/b:v1")));
    let pod = pod_with(&folder).loader("--source-ca", registry.ca_file()).start();

    pod.assert_recovered("cluster/direct", 1);
    pod.assert_unserved(REMOTE, Reason::Unauthorized);
    assert!(proxy.tunnels().is_empty(), "{:?}", proxy.tunnels());
    write_sources(&folder, proxies(&right));
    pod.assert_recovered(REMOTE, 1);
    let tunnels = proxy.tunnels();
    assert!(!tunnels.is_empty() && tunnels.iter().all(|to| *to == format!("registry.example:{port}")), "{tunnels:?}");
    right.assert_nowhere(&pod);
    wrong.assert_nowhere(&pod);
}

/// The variable in upper case takes precedence, and a proxy may have an address that is not allowed for sources.
#[test]
fn fault_l26_proxy_of_the_environment() {
    let registry = Registry::tls();
    registry.push("policies/a:v1", &Reply::module_bytes("by the environment"));
    let port = registry.host().rsplit_once(':').expect("a port").1.to_owned();
    let proxy = ForwardProxy::open();
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&format!("registry://registry.example:{port}/policies/a:v1")));
    let setup = Pod::on(&folder).loader("--source-ca", registry.ca_file()).loader("--allow-private", "192.0.2.0/24");
    let proxy_port = proxy.host().rsplit_once(':').expect("a port").1.to_owned();
    let name = format!("localhost:{proxy_port}");
    // The name resolves to 127.0.0.1, where there is no proxy: only the address in upper case works.
    let setup = setup.env(Program::Loader, "https_proxy", &format!("http://{name}"));
    let pod = setup.env(Program::Loader, "HTTPS_PROXY", &proxy.host()).start();
    pod.assert_recovered(REMOTE, 1);
    assert!(!proxy.tunnels().is_empty());
}

#[test]
fn fault_l23_sources_that_are_not_on_the_list() {
    let (registry, web) = (Registry::tls(), Source::https());
    let module = Reply::module_bytes("allowed");
    let (manifest, _) = registry.push("policies/a:v1", &module);
    registry.push("elsewhere/a:v1", &module);
    web.answer("/m.wasm", [Reply::ok(module)]);
    let folder = Folder::with_canary();
    let listed = format!("registry://{}/policies/*", registry.host());
    write_sources(&folder, json!({"allowed_sources": [listed]}));
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    let pod = pod_with(&folder).loader("--source-ca", registry.ca_file()).start();
    pod.assert_recovered(REMOTE, 1);

    // Even though the bytes are on the volume, the list applies.
    let refused = [
        ("tag", registry.module("elsewhere/a:v1")),
        ("pinned", registry.module(&format!("elsewhere/a@{manifest}"))),
        ("web", web.url("/m.wasm")),
    ];
    for (name, address) in &refused {
        folder.put(&Policy::cluster(name).module(address));
    }
    for (name, _) in &refused {
        let failure = pod.assert_unserved(&format!("cluster/{name}"), Reason::SourceNotAllowed);
        assert!(failure.message.contains("sources.yml"), "{}", failure.message);
    }
    assert_eq!(web.connections(), 0);
    let both = [listed, format!("registry://{}/elsewhere/a", registry.host())];
    write_sources(&folder, json!({"allowed_sources": both}));
    pod.assert_recovered("cluster/tag", 1);
    pod.assert_recovered("cluster/pinned", 1);
    pod.assert_unserved("cluster/web", Reason::SourceNotAllowed);
}

/// The flag is a list of its own: if there are two lists, sources must be on both.
#[test]
fn fault_l23_list_of_the_command_line() {
    let (registry, web) = (Registry::tls(), Source::https());
    registry.push("policies/a:v1", &Reply::module_bytes("flag"));
    web.answer("/m.wasm", [Reply::module()]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&registry.module("policies/a:v1")));
    folder.put(&Policy::cluster("web").module(&web.url("/m.wasm")));
    let pattern = format!("registry://{}/*", registry.host());
    let pod = Pod::on(&folder).loader("--source-ca", registry.ca_file()).loader("--allow-source", pattern).start();
    pod.assert_recovered(REMOTE, 1);
    let failure = pod.assert_unserved("cluster/web", Reason::SourceNotAllowed);
    assert!(failure.message.contains("--allow-source"), "{}", failure.message);
    assert_eq!(web.connections(), 0);
}
