use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustls::{ServerConnection, StreamOwned};

use super::keys::tests::{NAME, sibling_folder};
use super::*;
use crate::{WebSettings, WriteTime, test_server};

const TIME: Duration = Duration::from_secs(2);

/// A loader that gives every caller the same module, and how often it was asked.
fn loader(keys: &PeerKeys) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let (tls, asked) = (keys.tls().expect("good files"), Arc::<AtomicUsize>::default());
    let counter = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let connection = ServerConnection::new(Arc::clone(&tls.server)).expect("a connection");
            let mut stream = StreamOwned::new(connection, stream);
            let (mut request, mut piece) = (Vec::new(), [0; 1024]);
            while !request.ends_with(b"\r\n\r\n") {
                match stream.read(&mut piece) {
                    Ok(length) if length > 0 => request.extend_from_slice(&piece[..length]),
                    _ => break,
                }
            }
            counter.fetch_add(1, Ordering::Relaxed);
            // The caller may have hung up.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 6\r\nconnection: close\r\n\r\nmodule");
            let _ = stream.flush();
        }
    });
    (address, asked)
}

/// What takes a module at this speed, or does not.
struct Volume {
    fails: Option<Reason>,
    takes: Duration,
    time: WriteTime,
}

impl Receive for Volume {
    fn expect(&mut self, _: u64) -> Result<(), FetchError> {
        Ok(())
    }

    async fn write(&mut self, _: &[u8]) -> Result<(), FetchError> {
        self.time.count(tokio::time::sleep(self.takes)).await;
        self.fails.map_or(Ok(()), |reason| Err(FetchError::new(reason, "no")))
    }

    fn write_time(&self) -> WriteTime {
        self.time.clone()
    }
}

/// Asks two loaders for a module, and returns the reason of the failure and how many were asked.
async fn ask(fails: Option<Reason>, takes: Duration) -> (Option<Reason>, usize) {
    let folder = sibling_folder();
    let keys = PeerKeys::new(folder.path().to_owned(), NAME).expect("a name");
    let loaders = [loader(&keys), loader(&keys)];
    let places = loaders.iter().map(|(address, _)| PeerAddress::Address(*address)).collect();
    let peers = Peers::new(places, BTreeSet::new(), keys, None);
    let web = Web::new(WebSettings { total: TIME, ..test_server::web("127.0.0.1:1").settings().clone() });
    let receive = || Ok(Volume { fails, takes, time: WriteTime::default() });
    let result = peers.fetch(&web, PeerContent::Module, &Digest::of(b"module"), receive).await;
    let asked = loaders.iter().map(|(_, asked)| asked.load(Ordering::Relaxed)).sum();
    (result.err().map(|error| error.reason), asked)
}

#[tokio::test]
async fn no_other_loader_is_asked_where_the_volume_is_at_fault() {
    let none = Duration::ZERO;
    assert_eq!(ask(None, none).await, (None, 1));
    for reason in [Reason::VolumeFull, Reason::VolumeReadOnly] {
        assert_eq!(ask(Some(reason), none).await, (Some(reason), 1));
    }
    assert_eq!(ask(Some(Reason::ModuleTooLarge), none).await, (Some(Reason::ModuleTooLarge), 2));
}

#[tokio::test]
async fn a_slow_volume_does_not_end_a_search() {
    assert_eq!(ask(None, TIME + TIME / 2).await, (None, 1));
}
