//! Why an artifact cannot be used.

use std::io;

use portcullis_contract::{Digest, Reason};
use portcullis_process::files::FileError;

use crate::volume::private_room::NoRoom;

/// Why an artifact cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ArtifactError {
    /// It is not on the volume.
    #[error("the artifact {file} is not on the volume; the loader makes it again")]
    Missing {
        /// The file's name.
        file: String,
    },
    /// It is not a regular file, or this program may not read it.
    #[error("{0}; the evaluator's user must be able to read the volume")]
    Unreadable(FileError),
    /// Its bytes have another digest than the manifest promises.
    #[error(
        "the artifact {file} has digest {found} and not {expected}, as its manifest says; the loader makes it again"
    )]
    Corrupt {
        /// The file's name.
        file: String,
        /// The digest that the manifest promises.
        expected: Digest,
        /// The digest of the bytes.
        found: Digest,
    },
    /// It has another size than the manifest promises.
    #[error("the artifact {file} does not have the {expected} bytes that its manifest says; the loader makes it again")]
    Length {
        /// The file's name.
        file: String,
        /// The size that the manifest promises, in bytes.
        expected: u64,
    },
    /// It was compiled for another engine, other settings or another processor.
    #[error("the artifact {file} was made for another engine: {cause}; the loader makes it again")]
    Incompatible {
        /// The file's name.
        file: String,
        /// The engine's error.
        cause: String,
    },
    /// The module needs more at its start than an instance may have.
    #[error("{0}")]
    Limit(String),
    /// There is no room for the private copy.
    #[error(
        "there is no room for a private copy of the artifact {file} of {bytes} bytes: {why}; use smaller or fewer modules, or enlarge the folder"
    )]
    NoRoom {
        /// The file's name.
        file: String,
        /// The size of the copy.
        bytes: u64,
        /// Why there is no room.
        why: NoRoom,
    },
    /// The private copy cannot be written.
    #[error("failed to make the private copy of an artifact: {0}")]
    Copy(FileError),
}

impl ArtifactError {
    /// The reason of the failure.
    pub(crate) fn reason(&self) -> Reason {
        match self {
            Self::Missing { .. } => Reason::ArtifactMissing,
            Self::NoRoom { .. } => Reason::VolumeFull,
            Self::Copy(error) if is_full(error) => Reason::VolumeFull,
            Self::Unreadable(_) | Self::Copy(_) => Reason::ArtifactUnreadable,
            Self::Corrupt { .. } | Self::Length { .. } => Reason::ArtifactCorrupt,
            Self::Incompatible { .. } => Reason::ArtifactIncompatible,
            Self::Limit(_) => Reason::MemoryLimit,
        }
    }
}

fn is_full(error: &FileError) -> bool {
    matches!(error.source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
