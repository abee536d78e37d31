//! How a builtin fails.

use portcullis_yaml::{ReadError, WriteError};

use super::{MAX_ITEMS, MAX_TEXT};
use crate::verdict::PatchError;
use crate::verdict::reply::DecodeError;

/// Why a builtin has no result. The texts are for users and follow the name of the builtin.
#[derive(Debug, thiserror::Error)]
pub(in super::super) enum BuiltinError {
    /// The module gives fewer arguments than the builtin takes. The number is from 1 on.
    #[error("argument {0} is missing")]
    Missing(usize),
    /// The argument of this number does not have the type that the builtin takes.
    #[error("argument {number} is not a valid {expected}")]
    Type { number: usize, expected: &'static str },
    /// An argument, or a part of it, does not have the form that the builtin reads.
    #[error("{0}")]
    Form(&'static str),
    /// A word in an argument is not known, such as a unit or a time zone.
    #[error("{word} is no {expected}")]
    Unknown { word: String, expected: &'static str },
    /// A number or a time is out of range, in an argument or in the result.
    #[error("{0}")]
    Range(&'static str),
    /// Something has too many parts.
    #[error("{what} has more than {MAX_ITEMS} {parts}")]
    TooMany { what: &'static str, parts: &'static str },
    /// The result is too long.
    #[error("the result is above {MAX_TEXT} bytes")]
    TooLong,
    /// A format asks for a field that is wider than this limit.
    #[error("a width or precision of the format is above {0}")]
    Width(usize),
    /// A regular expression is longer than this limit.
    #[error("the regular expression is above {0} bytes")]
    LongPattern(usize),
    /// The builtin would take too long with these arguments.
    #[error("{0}")]
    TooMuchWork(&'static str),
    /// The result is larger than what a builtin may make with little effort.
    #[error("it takes more effort")]
    MoreEffort,
    /// The deadline of the evaluation has passed.
    #[error("the deadline has passed")]
    TimedOut,
    /// The argument of this number is not a version of semver.org.
    #[error("argument {number} is not a version: {source}")]
    Version { number: usize, source: semver::Error },
    /// The aliases of a YAML text repeat more values than there is memory for.
    #[error("the aliases of the YAML repeat too much")]
    Copies,
    /// A text is not YAML, or exceeds a limit.
    #[error("it is not YAML: {0}")]
    Yaml(ReadError),
    /// A value cannot be written as YAML.
    #[error(transparent)]
    NoYaml(#[from] WriteError),
    /// A patch cannot be applied.
    #[error(transparent)]
    Patch(#[from] PatchError),
    /// The arguments cannot be decoded: they are nested too deep.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The result cannot be written as JSON.
    #[error(transparent)]
    Encode(#[from] serde_json::Error),
}

impl BuiltinError {
    /// Whether the same call may succeed with more effort.
    pub(in super::super) fn is_effort(&self) -> bool {
        matches!(self, Self::TooMuchWork(_) | Self::MoreEffort)
    }
}
