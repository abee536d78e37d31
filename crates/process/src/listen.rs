//! Binds a port, for both families of addresses, even right after another process had it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::thread;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// How long a port may still be in use by the previous process. When a container is restarted, a child of its
/// predecessor that was just being started, and has not run yet, still holds the port open.
const PATIENCE: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_millis(20);
/// Connections that may wait to be accepted, the same number as in the standard library.
const BACKLOG: i32 = 128;

/// Listens on `address`. `[::]` means all addresses, those of IPv4 too, or those of IPv4 alone where the machine has no
/// IPv6. Waits a moment for a predecessor to release the port, and blocks the thread in the meantime.
///
/// # Errors
/// When the address cannot be bound, or is still in use after two seconds.
pub fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    listen_within(PATIENCE, address)
}

fn listen_within(patience: Duration, address: SocketAddr) -> io::Result<TcpListener> {
    let begun = Instant::now();
    loop {
        match bind(address) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && begun.elapsed() < patience => {
                thread::sleep(PAUSE)
            }
            bound => return bound,
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpListener> {
    match address {
        SocketAddr::V6(all) if all.ip().is_unspecified() => or_ipv4_alone(both_families(all), all.port()),
        one => TcpListener::bind(one),
    }
}

/// The socket option is set here, because the machine's `net.ipv6.bindv6only` may have either value.
fn both_families(address: SocketAddrV6) -> io::Result<TcpListener> {
    let socket = rustix::net::socket_with(AddressFamily::INET6, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    sockopt::set_ipv6_v6only(&socket, false)?;
    sockopt::set_socket_reuseaddr(&socket, true)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(TcpListener::from(socket))
}

/// Kernels and sandboxes without IPv6 report that in different ways, so every error except "in use" counts as that.
fn or_ipv4_alone(bound: io::Result<TcpListener>, port: u16) -> io::Result<TcpListener> {
    match bound {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)),
        bound => bound,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv6Addr, TcpStream};

    use super::*;

    #[test]
    fn all_addresses_are_those_of_both_families() {
        let all = listen("[::]:0".parse().expect("an address")).expect("listens");
        let port = all.local_addr().expect("bound").port();
        TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("answers over IPv4");
        // Machines without IPv6 do not have this loopback.
        if TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).is_ok() {
            TcpStream::connect((Ipv6Addr::LOCALHOST, port)).expect("answers over IPv6");
        }
    }

    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let unsupported = io::Error::from(rustix::io::Errno::AFNOSUPPORT);
        let bound = or_ipv4_alone(Err(unsupported), 0).expect("listens");
        assert_eq!(bound.local_addr().expect("bound").ip(), Ipv4Addr::UNSPECIFIED);
    }

    #[test]
    fn a_port_that_somebody_has_over_ipv4_is_taken() {
        let before = listen("0.0.0.0:0".parse().expect("an address")).expect("listens");
        let port = before.local_addr().expect("bound").port();
        let refused = listen(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port))).expect_err("it is taken");
        assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    }

    #[test]
    fn a_port_that_is_let_go_in_a_moment_is_taken() {
        let before = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = before.local_addr().expect("bound");
        let letting_go = thread::spawn(move || {
            thread::sleep(PAUSE * 5);
            drop(before);
        });
        let taken = listen_within(PATIENCE * 30, address).expect("listens");
        assert_eq!(taken.local_addr().expect("bound"), address);
        letting_go.join().expect("lets go");
    }

    #[test]
    fn a_port_that_stays_taken_is_told() {
        let before = listen("127.0.0.1:0".parse().expect("an address")).expect("listens");
        let address = before.local_addr().expect("bound");
        assert_eq!(listen(address).expect_err("it is taken").kind(), io::ErrorKind::AddrInUse);
    }
}
