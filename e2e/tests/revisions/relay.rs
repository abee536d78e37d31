//! A relay in front of an API server that can cut, hold and refuse connections. It understands nothing of what it passes on.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// A relay. It refuses everybody once it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    server: SocketAddr,
    is_closed: AtomicBool,
    connections: Mutex<Vec<Arc<Connection>>>,
}

struct Connection {
    client: TcpStream,
    server: TcpStream,
    is_held: AtomicBool,
}

impl Relay {
    pub(crate) fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared { server, is_closed: false.into(), connections: Mutex::default() });
        let accepting = Arc::clone(&shared);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if !accepting.is_closed.load(Ordering::SeqCst) {
                    accepting.pass(client);
                }
            }
        });
        Self { address, shared }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends every connection; new ones pass.
    pub(crate) fn cut(&self) {
        for connection in self.shared.connections.lock().unwrap().drain(..) {
            // One side may have gone already.
            let _ = connection.client.shutdown(Shutdown::Both);
            let _ = connection.server.shutdown(Shutdown::Both);
        }
    }

    /// Nothing passes any more on the connections that there are, and nobody is told; new ones pass.
    pub(crate) fn hold(&self) {
        for connection in self.shared.connections.lock().unwrap().iter() {
            connection.is_held.store(true, Ordering::SeqCst);
        }
    }

    /// Ends every connection and takes no more.
    pub(crate) fn close(&self) {
        self.shared.is_closed.store(true, Ordering::SeqCst);
        self.cut();
    }

    /// Takes connections again.
    pub(crate) fn open(&self) {
        self.shared.is_closed.store(false, Ordering::SeqCst);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.close();
    }
}

impl Shared {
    fn pass(&self, client: TcpStream) {
        let Ok(server) = TcpStream::connect(self.server) else { return };
        let connection = Arc::new(Connection { client, server, is_held: false.into() });
        self.connections.lock().unwrap().push(Arc::clone(&connection));
        for is_upward in [true, false] {
            let connection = Arc::clone(&connection);
            thread::spawn(move || {
                connection.copy(is_upward);
                let _ = connection.client.shutdown(Shutdown::Both);
                let _ = connection.server.shutdown(Shutdown::Both);
            });
        }
    }
}

impl Connection {
    fn copy(&self, is_upward: bool) {
        let (mut from, mut to) = if is_upward { (&self.client, &self.server) } else { (&self.server, &self.client) };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            while self.is_held.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(100));
                if matches!(self.client.take_error(), Ok(Some(_)) | Err(_)) {
                    return;
                }
            }
            if to.write_all(&buffer[..length]).is_err() {
                return;
            }
        }
    }
}
