//! Failures of the volume, and the reasons that they are reported under.

use std::io;

use portcullis_contract::Reason;
use portcullis_process::files;

/// A failure of the volume.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct VolumeError {
    /// The reason.
    pub reason: Reason,
    /// The message for users.
    pub message: String,
}

/// The reason for an error of the volume's file system.
pub(crate) fn volume_reason(error: &io::Error) -> Reason {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Reason::VolumeFull,
        _ => Reason::VolumeReadOnly,
    }
}

impl From<files::FileError> for VolumeError {
    fn from(error: files::FileError) -> Self {
        Self { reason: volume_reason(&error.source), message: portcullis_contract::clean(&error.to_string(), 500) }
    }
}
