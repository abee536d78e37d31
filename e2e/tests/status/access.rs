//! The API server goes away, refuses, and comes back.

use std::io::Write as _;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_e2e::{POLICY_SERVER_ACCOUNT, PodSetup, Program, eventually_within};
use serde_json::json;

use crate::cluster;
use crate::stage::{SOON, Stage, told};
use crate::states::{Says, unreachable};

/// The way to the API server, which can be closed: then nothing that was sent comes through, and new connections are refused.
struct Gate {
    address: SocketAddr,
    open: Arc<AtomicBool>,
}

impl Gate {
    fn new(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let open = Arc::new(AtomicBool::new(true));
        let is_open = Arc::clone(&open);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Some(server) = is_open.load(Ordering::SeqCst).then(|| TcpStream::connect(server).ok()).flatten()
                else {
                    continue;
                };
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let is_open = Arc::clone(&is_open);
                    thread::spawn(move || pass(&mut from, &mut to, &is_open));
                }
            }
        });
        Self { address, open }
    }

    fn set(&self, open: bool) {
        self.open.store(open, Ordering::SeqCst);
    }
}

fn pass(from: &mut TcpStream, to: &mut TcpStream, is_open: &AtomicBool) -> Option<()> {
    from.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
    let mut bytes = [0; 16 << 10];
    while is_open.load(Ordering::SeqCst) {
        match std::io::Read::read(from, &mut bytes) {
            Ok(0) => break,
            Ok(count) => to.write_all(&bytes[..count]).ok()?,
            Err(error) if matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) => {}
            Err(_) => break,
        }
    }
    let _ = from.shutdown(std::net::Shutdown::Both);
    let _ = to.shutdown(std::net::Shutdown::Both);
    None
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r01_status_is_right_within_seconds_of_the_api_server_s_return() {
    let stage = Stage::new(cluster(), "away");
    let gate = Gate::new(cluster().api_servers()[0]);
    let replica = stage.replica_with(PodSetup::default().through(Program::Reporter, gate.address));
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    gate.set(false);
    thread::sleep(Duration::from_secs(1));
    replica.says(&object, unreachable());
    // Longer than the Lease, so that all begins anew.
    thread::sleep(Duration::from_secs(18));
    assert!(replica.pod.is_ready(), "readiness does not depend on the API server");
    assert_eq!(
        replica.logs("WARN").len(),
        replica.logs("WARN").iter().collect::<std::collections::BTreeSet<_>>().len()
    );
    gate.set(true);
    let found = stage.word_within(Duration::from_secs(10), &policy, "Error");
    assert_eq!(told(&found, "Degraded"), "True/RegistryUnreachable");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r08_withdrawn_rights_make_the_status_stale_and_given_back_right() {
    let stage = Stage::new(cluster(), "withdrawn");
    let quick = || {
        let setup = PodSetup::default().flag(Program::Reporter, "--heartbeat", "1s");
        setup.flag(Program::Reporter, "--report-lifetime", "4s")
    };
    let replica = stage.replica_with(quick());
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let namespace = stage.installation.namespace().to_owned();
    let path = format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings");
    let api = stage.installation.api();
    let mut binding = api.get(&format!("{path}/portcullis-reporter")).unwrap();
    api.delete(&format!("{path}/portcullis-reporter"), None).unwrap().expect("rights withdrawn");
    let found = stage.word(&policy, "Degraded");
    assert_eq!(told(&found, "Degraded"), "True/ReportStale");
    assert!(replica.pod.is_ready());
    eventually_within(SOON, "one log line", || (replica.logs("WARN").len() == 1).then_some(()));
    binding["metadata"] = json!({ "name": "portcullis-reporter", "namespace": namespace });
    api.create(&path, &binding).unwrap().expect("rights given back");
    stage.word(&policy, "Active");
}

#[test]
#[ignore = "starts a cluster"]
fn fault_r09_r10_a_refused_token_is_read_again_and_a_new_one_is_used() {
    let stage = Stage::new(cluster(), "token");
    let replica = stage.replica();
    stage.wait_ready();
    let (policy, object) = stage.policy("labels");
    replica.says(&object, Says::Current);
    stage.word(&policy, "Active");
    let good = stage.installation.token(POLICY_SERVER_ACCOUNT, &replica.pod);
    replica.pod.put_token("worth nothing");
    // The token in use stays good for a minute; the reporter that starts again has the bad one only.
    replica.pod.kill(Program::Reporter);
    replica.says(&object, unreachable());
    let refused = "portcullis_reporter_api_failures_total{call=\"write the report\",code=\"401\"}";
    eventually_within(SOON, "a refusal", || {
        let (_, text) = replica.pod.probe(Program::Reporter, "/metrics")?;
        text.contains(refused).then_some(())
    });
    let restarts = replica.pod.restarts(Program::Reporter);
    replica.pod.put_token(&good);
    stage.word(&policy, "Error");
    assert_eq!(replica.pod.restarts(Program::Reporter), restarts, "no restart was needed");
}
