//! Where modules come from: one [`Source`] a scheme.

mod file;
mod https;
mod reference;
mod sink;
mod tls;

use std::time::Duration;

use futures::future::BoxFuture;
use portcullis_contract::Reason;

pub(crate) use self::file::FileSource;
pub(crate) use self::https::{WebLimits, WebSource};
pub(crate) use self::reference::{Reference, shown};
pub(crate) use self::sink::{Progress, Sink};

/// Brings modules of one scheme.
pub(crate) trait Source: Send + Sync {
    /// Writes the module's bytes into `sink`, as they come.
    fn fetch<'a>(&'a self, module: &'a Reference, sink: &'a mut Sink) -> BoxFuture<'a, Result<(), SourceError>>;
}

/// Why a module was not brought.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}: {message}")]
pub(crate) struct SourceError {
    /// In one word.
    pub reason: Reason,
    /// In words; never with credentials.
    pub message: String,
    /// The source asked not to be asked again before this has passed.
    pub retry_after: Option<Duration>,
}

impl SourceError {
    /// The message is cleaned and cut.
    pub(crate) fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        let message = portcullis_contract::clean(message.as_ref(), portcullis_contract::Failure::MAX_MESSAGE);
        Self { reason, message, retry_after: None }
    }
}

/// The sources of this loader.
pub(crate) struct Sources {
    /// For [`Reference::File`].
    pub file: FileSource,
    /// For [`Reference::Web`].
    pub web: WebSource,
}

impl Sources {
    /// The source of a reference.
    pub(crate) fn of(&self, reference: &Reference) -> &dyn Source {
        match reference {
            Reference::File(_) => &self.file,
            Reference::Web(_) => &self.web,
        }
    }
}
