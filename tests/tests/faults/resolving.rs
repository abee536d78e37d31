//! Section 4: the resolution of the names of sources.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_contract::Reason;
use portcullis_tests::{Folder, Pod, Policy, Reply, Review, Source, Tls, Verdict};

/// A name server that answers every name with the same address, or fails.
pub(crate) struct NameServer {
    pub(crate) address: SocketAddr,
    ip: Arc<AtomicU32>,
    /// Only one query in this many gets an address; 0 if none does.
    answers_one_of: Arc<AtomicUsize>,
    asked: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
}

impl NameServer {
    pub(crate) fn new(ip: [u8; 4]) -> Self {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("binds");
        socket.set_read_timeout(Some(Duration::from_millis(100))).expect("a limit");
        let address = socket.local_addr().expect("an address");
        let (answers_one_of, asked, stop) = (Arc::default(), Arc::default(), Arc::default());
        let ip = Arc::new(AtomicU32::new(u32::from_be_bytes(ip)));
        let server = Self { address, ip: Arc::clone(&ip), answers_one_of, asked, stop };
        let (one_of, asked) = (Arc::clone(&server.answers_one_of), Arc::clone(&server.asked));
        let stopped = Arc::clone(&server.stop);
        thread::spawn(move || {
            let mut question = [0; 512];
            while !stopped.load(Ordering::SeqCst) {
                let Ok((length, from)) = socket.recv_from(&mut question) else { continue };
                let asked = asked.fetch_add(1, Ordering::SeqCst) + 1;
                let one_of = one_of.load(Ordering::SeqCst);
                let ip = ip.load(Ordering::SeqCst).to_be_bytes();
                let reply = reply(&question[..length], (one_of > 0 && asked % one_of == 0).then_some(ip));
                // The client may be gone by now.
                let _ = socket.send_to(&reply, from);
            }
        });
        server
    }

    /// How many queries have come.
    pub(crate) fn queries(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Answers with this address from now on.
    fn answer_with(&self, ip: [u8; 4]) {
        self.ip.store(u32::from_be_bytes(ip), Ordering::SeqCst);
    }

    pub(crate) fn answer_one_of(&self, questions: usize) {
        self.answers_one_of.store(questions, Ordering::SeqCst);
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
    }
}

/// The address for a question of type A, no records for other types, SERVFAIL without an address.
fn reply(question: &[u8], ip: Option<[u8; 4]>) -> Vec<u8> {
    // The question: a header, then the name, its type and its class.
    let end = 12 + question[12..].iter().position(|byte| *byte == 0).expect("a name ends") + 5;
    let is_a = question[end - 4..end - 2] == [0, 1];
    let mut reply = question[..2].to_vec();
    let (code, answers) = match ip {
        None => (2, 0),
        Some(_) if is_a => (0, 1),
        Some(_) => (0, 0),
    };
    reply.extend([0x81, 0x80 | code, 0, 1, 0, answers, 0, 0, 0, 0]);
    reply.extend(&question[12..end]);
    if let (Some(ip), true) = (ip, is_a) {
        reply.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4]);
        reply.extend(ip);
    }
    reply
}

fn ip_and_port(source: &Source) -> ([u8; 4], String) {
    let address: SocketAddr = source.host().parse().expect("an address");
    let SocketAddr::V4(address) = address else { panic!("{address} is no IPv4 address") };
    (address.ip().octets(), address.port().to_string())
}

#[test]
fn fault_l18_name_that_does_not_resolve() {
    let source = Source::new(Tls::Off);
    source.answer("/m.wasm", [Reply::module()]);
    let (ip, port) = ip_and_port(&source);
    let names = NameServer::new(ip);
    let folder = Folder::with_canary();
    let address = format!("http://modules.example:{port}/m.wasm");
    folder.put(&Policy::cluster("remote").module(&address));
    folder.put(&Policy::cluster("updated").denying("generation one"));
    let setup = Pod::on(&folder).loader("--name-server", names.address);
    let pod = setup.loader("--allow-http-host", format!("modules.example:{port}")).start();
    pod.wait_current("cluster/updated", 1);
    folder.put(&Policy::cluster("updated").module(&address));
    pod.assert_unserved("cluster/remote", Reason::RegistryUnreachable);
    let is_first = |verdict: &Verdict| verdict.message == "generation one";
    pod.assert_kept("cluster/updated", Reason::RegistryUnreachable, 1, is_first);
    assert_eq!(source.connections(), 0);
    names.answer_one_of(3);
    pod.assert_recovered("cluster/remote", 1);
    pod.assert_recovered("cluster/updated", 2);
    assert!(pod.ask("cluster/updated", &Review::pod()).verdict().allowed);
}

#[test]
fn fault_x05_name_that_leads_inside() {
    let source = Source::new(Tls::Off);
    source.answer("/m.wasm", [Reply::module()]);
    let (ip, port) = ip_and_port(&source);
    let names = NameServer::new(ip);
    names.answer_one_of(1);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&format!("http://modules.example:{port}/m.wasm")));
    let setup = Pod::on(&folder).loader("--name-server", names.address).loader("--allow-private", "192.0.2.0/24");
    let pod = setup.loader("--allow-http-host", format!("modules.example:{port}")).start();
    let failure = pod.assert_unserved("cluster/remote", Reason::SourceNotAllowed);
    assert!(failure.message.contains("--allow-private"), "{}", failure.message);
    assert_eq!(source.connections(), 0);
}

/// A name server may be wrong for a while.
#[test]
fn fault_x05_name_that_led_inside() {
    let source = Source::new(Tls::Off);
    source.answer("/m.wasm", [Reply::module()]);
    let (ip, port) = ip_and_port(&source);
    let names = NameServer::new([0, 0, 0, 0]);
    names.answer_one_of(1);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&format!("http://modules.example:{port}/m.wasm")));
    let setup = Pod::on(&folder).loader("--name-server", names.address).loader("--allow-private", Ipv4Addr::from(ip));
    let pod = setup.loader("--allow-http-host", format!("modules.example:{port}")).start();
    pod.assert_unserved("cluster/remote", Reason::SourceNotAllowed);
    assert_eq!(source.connections(), 0);
    names.answer_with(ip);
    pod.assert_recovered("cluster/remote", 1);
}
