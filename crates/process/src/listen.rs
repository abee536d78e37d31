//! Taking a port, also right after another process had it.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

/// How long a port may still be taken by the process before: a container that is started again finds the port of its
/// predecessor open for as long as one of that one's children, which was just being started, has not run yet.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);

/// Listens on `address`. Waits a moment for who is just letting go of it, and blocks the thread meanwhile.
///
/// # Errors
/// When the address cannot be bound, or is still in use after two seconds.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match TcpListener::bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < PATIENCE => {
                thread::sleep(PAUSE)
            }
            bound => return bound,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_port_that_is_let_go_in_a_moment_is_taken() {
        let before = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = before.local_addr().expect("bound");
        let letting_go = thread::spawn(move || {
            thread::sleep(PAUSE * 5);
            drop(before);
        });
        assert_eq!(listen(address).expect("listens").local_addr().expect("bound"), address);
        letting_go.join().expect("lets go");
    }

    #[test]
    fn a_port_that_stays_taken_is_told() {
        let before = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = before.local_addr().expect("bound");
        assert_eq!(listen(address).expect_err("it is taken").kind(), io::ErrorKind::AddrInUse);
    }
}
