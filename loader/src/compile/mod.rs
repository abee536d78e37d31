//! Compiling: in a child process of this program, so that a hostile module costs one child.

mod child;
mod inspect;
mod metadata;
mod parent;
mod processor_time;

use portcullis_contract::Reason;
use serde::{Deserialize, Serialize};

pub use self::child::{ChildArgs, compile_stdin};
pub use self::inspect::{Inspected, inspect};
pub use self::parent::{CompileLimits, Compilers};

/// The hidden subcommand of the child.
pub const SUBCOMMAND: &str = "compile";

/// Why a module was not compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{reason}: {message}")]
pub struct CompileFailure {
    /// The reason.
    pub reason: Reason,
    /// The message for users.
    pub message: String,
}

impl CompileFailure {
    /// The message is cleaned and cut.
    pub fn new(reason: Reason, message: impl AsRef<str>) -> Self {
        let message = portcullis_contract::clean(message.as_ref(), portcullis_contract::Failure::MAX_MESSAGE);
        Self { reason, message }
    }
}
