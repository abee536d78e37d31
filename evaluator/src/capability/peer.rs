//! The socket at which the broker connects.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::path::Path;

use tokio::net::{UnixListener, UnixStream};

/// Owner and group may connect: the pod's containers have users of their own and one group.
const MODE: u32 = 0o660;

/// A listening socket, and the user whose connections it takes.
pub(crate) struct BrokerSocket {
    listener: std::os::unix::net::UnixListener,
    user: u32,
}

impl BrokerSocket {
    /// Listens at `path`, in the place of a socket that an earlier start has left there.
    ///
    /// # Errors
    /// When the path is taken by something else, or cannot be bound.
    pub(crate) fn bind(path: &Path, user: Option<u32>) -> io::Result<Self> {
        if fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
            fs::remove_file(path)?;
        }
        let listener = std::os::unix::net::UnixListener::bind(path)?;
        fs::set_permissions(path, Permissions::from_mode(MODE))?;
        listener.set_nonblocking(true)?;
        Ok(Self { listener, user: user.unwrap_or_else(|| rustix::process::geteuid().as_raw()) })
    }

    /// The socket as a listener of the async runtime, and the user whose connections it takes.
    pub(super) fn into_listener(self) -> io::Result<(UnixListener, u32)> {
        Ok((UnixListener::from_std(self.listener)?, self.user))
    }
}

/// Whether the other end of a connection is a process of this user. In a pod it is a process of another container, and its process id is
/// not known here.
pub(super) fn is_of(stream: &UnixStream, user: u32) -> bool {
    stream.peer_cred().is_ok_and(|peer| peer.uid() == user)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_that_was_left_is_replaced_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("broker.sock");
        drop(BrokerSocket::bind(&path, None).expect("binds"));
        BrokerSocket::bind(&path, None).expect("binds again");
        let file = folder.path().join("file");
        fs::write(&file, "mine").expect("writes");
        assert!(BrokerSocket::bind(&file, None).is_err());
        assert_eq!(fs::read(&file).expect("reads"), b"mine");
    }
}
