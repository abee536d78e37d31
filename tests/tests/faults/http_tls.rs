//! Section 9: bytes that are not TLS, and certificates that change.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use portcullis_tests::{
    Authority, Client, Folder, Identity, LIMIT, Pod, Policy, Raw, Review, StopOnDrop, client_hello, eventually, request,
};
use rustls::version::{TLS12, TLS13};

use crate::http::{DENIES, Server};

#[test]
fn fault_h10_http2_is_out_of_reach() {
    let server = Server::start();
    let address = server.pod.admission();
    let offered = |alpn: &[&str]| Raw::tls_with(address, &[&TLS12, &TLS13], alpn).map(|connection| connection.alpn());
    assert_eq!(offered(&["h2", "http/1.1"]).expect("connects").as_deref(), Some("http/1.1"));
    assert_eq!(offered(&[]).expect("connects"), None);
    // Without a common protocol the handshake is refused, or no protocol is chosen.
    assert!(offered(&["h2"]).is_err() || offered(&["h2"]).is_ok_and(|chosen| chosen.is_none()));

    // Sends HTTP/2 all the same, with the frames of known attacks.
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let frame = |kind: u8, flags: u8, stream: u8, payload: &[u8]| {
        let mut frame = vec![0, 0, u8::try_from(payload.len()).expect("it is short"), kind, flags, 0, 0, 0, stream];
        frame.extend_from_slice(payload);
        frame
    };
    let settings = frame(4, 0, 0, b"");
    for (what, attack) in [
        ("resets", frame(3, 0, 1, &[0, 0, 0, 8]).repeat(1000)),
        ("endless continuation", [frame(1, 0, 1, b"\x82"), frame(9, 0, 1, b"\x84").repeat(1000)].concat()),
        ("empty data", frame(0, 0, 1, b"").repeat(1000)),
        ("pings", frame(6, 0, 0, &[0; 8]).repeat(1000)),
    ] {
        let mut connection = server.connect();
        // The server may close the connection after the first line.
        let _ = connection.send([&preface[..], &settings, &attack].concat());
        if let Ok(response) = connection.response() {
            assert!((400..=505).contains(&response.status), "{what}: {response:?}");
        }
        assert!(connection.closed_within(LIMIT).is_some(), "{what}");
    }
    assert_eq!(server.asked(), 0);
    server.finish();
}

#[test]
fn fault_h13_no_tls() {
    let server = Server::start();
    let address = server.pod.admission();
    let hello = client_hello(address).expect("a ClientHello");
    let failed = || server.pod.metric("portcullis_tls_handshakes_failed_total") as usize;
    // Each of these is refused as soon as it is read. The client never ends the connection by itself.
    for form in [
        request("POST", "/validate/cluster/denies", &[], Review::pod().bytes()),
        b"SSH-2.0-OpenSSH_9.9\r\n".to_vec(),
        old_client_hello(0x00),
        old_client_hello(0x01),
        old_client_hello(0x02),
        // A record and a message that claim more bytes than is allowed.
        vec![0x16, 0x03, 0x01, 0xff, 0xff, 0x01, 0xff, 0xff, 0xff],
        // An alert, application data and a heartbeat where a hello is due.
        vec![0x15, 0x03, 0x03, 0x00, 0x02, 0x02, 0x28],
        vec![0x17, 0x03, 0x03, 0x00, 0x03, 0x61, 0x61, 0x61],
        vec![0x18, 0x03, 0x02, 0x00, 0x03, 0x01, 0x40, 0x00],
    ] {
        let before = failed();
        let mut connection = Raw::tcp(address).expect("connects");
        // The server may close the connection before everything is sent, and then its answer is lost.
        let _ = connection.send(&form);
        let answer = connection.bytes().unwrap_or_default();
        let is_alert = answer.first().is_none_or(|first| *first == 0x15);
        assert!(is_alert, "{form:02x?} is answered by {answer:02x?}");
        assert!(connection.closed_within(LIMIT).is_some(), "{form:02x?} is left open");
        eventually("a failed handshake to be counted", || (failed() > before).then_some(()));
    }

    // With these, the server may wait for more, for a limited time.
    let mut forms = vec![b"\n".to_vec()];
    forms.extend((1..40).map(noise));
    // The hello with a different byte changed each time.
    forms.extend((0..hello.len()).step_by(7).map(|place| {
        let mut hello = hello.clone();
        hello[place] ^= 0x80;
        hello
    }));
    let before = failed();
    let connections = forms.iter().map(|form| {
        let mut connection = Raw::tcp(address).expect("connects");
        let _ = connection.send(form);
        (form, connection)
    });
    for (form, mut connection) in connections.collect::<Vec<_>>() {
        assert!(connection.closed_within(LIMIT).is_some(), "{form:02x?} is left open");
    }
    eventually("failed handshakes to be counted", || (failed() > before).then_some(()));

    // A ClientHello in pieces is valid, but the server waits for the rest of one only for a limited time.
    // A busy machine may send the pieces too slowly, hence the retries.
    let answer = eventually("an answer to a hello in pieces", || {
        let mut connection = Raw::tcp(address).expect("connects");
        connection.send_slowly(&hello, Duration::from_millis(1)).and_then(|()| connection.bytes()).ok()
    });
    assert_eq!(answer[0], 0x16, "a handshake record");
    let halves = [0, 1, 5, hello.len() / 2, hello.len() - 1].map(|end| {
        let mut connection = Raw::tcp(address).expect("connects");
        connection.send(&hello[..end]).expect("sends");
        (end, connection)
    });
    for (end, mut connection) in halves {
        assert!(connection.closed_within(LIMIT).is_some(), "{end} bytes of a hello");
    }
    for version in [&TLS12, &TLS13] {
        Raw::tls_with(address, &[version], &[]).expect("both are spoken");
    }
    assert_eq!(server.asked(), 0);
    server.finish();
}

/// The ClientHello of SSL 3 (0), TLS 1.0 (1) or TLS 1.1 (2).
fn old_client_hello(version: u8) -> Vec<u8> {
    let mut hello = vec![0x03, version];
    hello.extend([0x5a; 32]);
    // No session id, three cipher suites of that time, no compression.
    hello.extend([0x00, 0x00, 0x06, 0x00, 0x2f, 0x00, 0x35, 0xc0, 0x13, 0x01, 0x00]);
    let length = u8::try_from(hello.len()).expect("it is short");
    let mut record = vec![0x16, 0x03, version.min(1), 0x00, length + 4, 0x01, 0x00, 0x00, length];
    record.extend(hello);
    record
}

/// Pseudo-random bytes (xorshift), which depend only on the seed.
fn noise(seed: u64) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    std::iter::repeat_with(next).take(64).flatten().collect()
}

/// Callers that make calls before, during and after a change of certificates, one of them on a connection that it keeps and two on a
/// new connection each time. They trust all authorities of a bundle, like an API server.
struct Callers<'s> {
    asked: &'s AtomicUsize,
}

impl Callers<'_> {
    /// Runs `change` while they make calls, and asserts that no call fails.
    fn during(pod: &Pod, bundle: &str, change: impl FnOnce(&Callers)) {
        let (done, asked) = (AtomicBool::new(false), AtomicUsize::new(0));
        let address = pod.admission();
        let call = |client: &Client| {
            let answer =
                client.try_ask(DENIES, &Review::pod()).unwrap_or_else(|error| panic!("a call failed: {error}"));
            assert!(!answer.verdict().allowed);
            asked.fetch_add(1, Ordering::SeqCst);
        };
        let kept = || {
            let client = Client::trusting(address, bundle);
            while !done.load(Ordering::SeqCst) {
                call(&client);
            }
        };
        let new = || {
            while !done.load(Ordering::SeqCst) {
                call(&Client::trusting(address, bundle));
            }
        };
        thread::scope(|scope| {
            let threads = [scope.spawn(kept), scope.spawn(new), scope.spawn(new)];
            let stop = StopOnDrop(&done);
            change(&Callers { asked: &asked });
            drop(stop);
            for thread in threads {
                thread.join().expect("no call fails");
            }
        });
    }

    /// Waits until there have been a few more calls.
    fn go_on(&self) {
        let before = self.asked.load(Ordering::SeqCst);
        eventually("calls", || (self.asked.load(Ordering::SeqCst) > before + 50).then_some(()));
    }
}

/// Waits until a client that trusts only this authority gets an answer on a new connection.
fn wait_authority(pod: &Pod, authority: &Authority) {
    eventually("the new authority's certificate", || {
        Client::trusting(pod.admission(), &authority.pem).get("/").ok().filter(|answer| answer.status == 404)
    });
}

fn wait_certificate(pod: &Pod, identity: &Identity) {
    eventually("the new certificate", || {
        let shown = Raw::tls(pod.admission()).ok()?.certificate();
        (shown == identity.certificate_der).then_some(())
    });
}

/// A certificate for clients that connect by address.
fn identity(pod: &Pod, authority: &Authority) -> Identity {
    authority.identity(&[&pod.admission().ip().to_string()])
}

#[test]
fn fault_h16_certificate_and_then_authority_rotate_under_load() {
    let server = Server::start();
    let (old, new) = (Authority::shared(), Authority::new("the next one"));
    let bundle = format!("{}{}", old.pem, new.pem);
    Callers::during(&server.pod, &bundle, |callers| {
        callers.go_on();
        for _ in 0..2 {
            let renewed = identity(&server.pod, old);
            server.folder.identify(&renewed);
            wait_certificate(&server.pod, &renewed);
            callers.go_on();
        }
        server.folder.identify(&identity(&server.pod, &new));
        wait_authority(&server.pod, &new);
        callers.go_on();
        // Back to the first authority, because the canary trusts only that one, and makes a new connection now and then.
        let renewed = identity(&server.pod, old);
        server.folder.identify(&renewed);
        wait_certificate(&server.pod, &renewed);
        callers.go_on();
    });
    assert!(server.pod.metric("portcullis_certificate_seconds_left") > 0.0);
    server.finish();
}

/// The certificate changes in the way of a mounted Secret: `tls.crt` is a link to `..data/tls.crt`, `..data` is a link to a folder, and a
/// link to a new folder takes its place by a rename.
#[test]
fn fault_h16_rotation_by_symlink_swap() {
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("denies").guest("always_deny"));
    let secret = folder.path("secret");
    fs::create_dir(&secret).expect("a folder");
    for name in ["tls.crt", "tls.key"] {
        symlink(Path::new("..data").join(name), secret.join(name)).expect("links");
    }
    let publish = |version: u32, write: &dyn Fn(&Path)| {
        let data = secret.join(format!("..version-{version}"));
        fs::create_dir(&data).expect("a folder");
        write(&data);
        symlink(data.file_name().expect("it has a name"), secret.join("..data_tmp")).expect("links");
        fs::rename(secret.join("..data_tmp"), secret.join("..data")).expect("swaps");
        if version > 0 {
            fs::remove_dir_all(secret.join(format!("..version-{}", version - 1))).expect("removes");
        }
    };
    let setup = Pod::on(&folder).evaluator("--tls-dir", secret.display());
    // The first certificate is the one that every pod gets.
    publish(0, &|data| {
        for name in ["tls.crt", "tls.key"] {
            fs::copy(folder.path("tls").join(name), data.join(name)).expect("copies");
        }
    });
    let pod = setup.start();
    pod.wait_current(DENIES, 1);
    Callers::during(&pod, &Authority::shared().pem, |callers| {
        for version in 1..=3 {
            let renewed = identity(&pod, Authority::shared());
            publish(version, &|data| renewed.write_to(data));
            wait_certificate(&pod, &renewed);
            callers.go_on();
        }
    });
}

#[test]
fn fault_h17_a_pair_that_cannot_be_used() {
    let server = Server::start();
    let tls = server.pod.path("tls");
    let old = identity(&server.pod, Authority::shared());
    server.folder.identify(&old);
    wait_certificate(&server.pod, &old);
    let other = identity(&server.pod, Authority::shared());
    let forms: [(&str, &str, &str); 8] = [
        ("another key", &old.certificate, &other.key),
        ("another certificate", &other.certificate, &old.key),
        ("no certificate", "", &old.key),
        ("no key", &old.certificate, ""),
        ("noise", "-----BEGIN CERTIFICATE-----\nnoise\n-----END CERTIFICATE-----\n", &old.key),
        ("PEM of noise", "-----BEGIN CERTIFICATE-----\nbm9pc2U=\n-----END CERTIFICATE-----\n", &old.key),
        ("the key twice", &old.key, &old.key),
        ("cut", &old.certificate[..old.certificate.len() / 2], &old.key),
    ];
    let errors = || server.pod.metric("portcullis_certificate_errors_total") as u64;
    Callers::during(&server.pod, &Authority::shared().pem, |callers| {
        for (what, certificate, key) in forms {
            let before = errors();
            server.folder.write("tls/tls.key", key);
            server.folder.write("tls/tls.crt", certificate);
            eventually(&format!("an error for a pair with {what}"), || (errors() > before).then_some(()));
            assert_eq!(
                Raw::tls(server.pod.admission()).expect("connects").certificate(),
                old.certificate_der,
                "{what}"
            );
            callers.go_on();
        }
        let before = errors();
        fs::remove_file(tls.join("tls.crt")).expect("it is there");
        eventually("an error for a file that is gone", || (errors() > before).then_some(()));
        assert_eq!(Raw::tls(server.pod.admission()).expect("connects").certificate(), old.certificate_der);

        let mended = identity(&server.pod, Authority::shared());
        server.folder.identify(&mended);
        wait_certificate(&server.pod, &mended);
        callers.go_on();
    });
    // The key is a secret, so it is not logged even if it cannot be used.
    let marker = other.key.lines().nth(1).expect("a key has lines");
    for line in server.pod.evaluator().lines() {
        assert!(!line.contains(marker), "the key is in the log: {line}");
    }
    server.finish();
}
