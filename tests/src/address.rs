//! Loopback addresses and ports that no other test uses.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU16, Ordering};

use crate::{Program, eventually};

/// This process's own loopback address: all of 127.0.0.0/8 is the loopback. 127.0.0.x is not used, as other programs
/// may use it.
pub(crate) fn loopback() -> IpAddr {
    let [_, a, b, c] = (std::process::id() % 0xfe_ff00 + 0x100).to_be_bytes();
    IpAddr::V4(Ipv4Addr::new(127, a, b, c))
}

/// How many ports a caller of [`ports`] gets.
const PORTS: u16 = 10;

/// The first of ten ports on this process's own loopback address that no other caller gets, and where no program of this machine accepts
/// connections to all of its addresses. Unlike port 0, they stay the same over restarts of a program. They are below the ports that the
/// kernel uses for outgoing connections.
pub fn ports() -> SocketAddr {
    static NEXT: AtomicU16 = AtomicU16::new(10_000);
    loop {
        let first = SocketAddr::new(loopback(), NEXT.fetch_add(PORTS, Ordering::Relaxed));
        let is_free = |number| TcpStream::connect(SocketAddr::new(first.ip(), first.port() + number)).is_err();
        if (0..PORTS).all(is_free) {
            return first;
        }
    }
}

/// Listens on an address of [`ports`], without waiting for connections. The previous listener may still hold it for a moment: a
/// process that another test was just starting has a copy of the socket until it executes its program.
///
/// # Panics
/// When the address stays in use.
pub(crate) fn listen(address: SocketAddr) -> TcpListener {
    let listener = eventually("the port to be free", || match TcpListener::bind(address) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
        bound => Some(bound.expect("an address of the loopback can be listened on")),
    });
    listener.set_nonblocking(true).expect("a listener can be asked without waiting");
    listener
}

/// The addresses of a pod's ports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Addresses(SocketAddr);

impl Addresses {
    /// The ports of a new pod.
    pub(crate) fn take() -> Self {
        Self(ports())
    }

    fn port(self, number: u16) -> SocketAddr {
        SocketAddr::new(self.0.ip(), self.0.port() + number)
    }

    pub(crate) fn admission(self) -> SocketAddr {
        self.port(0)
    }

    pub(crate) fn probes(self, program: Program) -> SocketAddr {
        match program {
            Program::Evaluator => self.port(1),
            Program::Loader => self.port(2),
            Program::Reporter | Program::Cli => self.port(3),
        }
    }

    pub(crate) fn state(self, program: Program) -> SocketAddr {
        match program {
            Program::Evaluator => self.port(4),
            _ => self.port(5),
        }
    }
}
