//! Differences between what a module's metadata says and what its policy grants, and members of a policy group that are never
//! called.

use serde::{Deserialize, Serialize};

use crate::clean;

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// The kind of a difference. It is API like a [`crate::Reason`]: once released it is not renamed.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        pub enum MismatchReason {
            $($(#[doc = $doc])+ $name,)+
        }

        impl MismatchReason {
            /// Every kind, the worst first.
            pub const ALL: &[Self] = &[$(Self::$name),+];

            /// The kind in one word.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)+
                }
            }
        }
    };
}

reasons! {
    /// A host capability that the module declares is not available here, whatever is granted.
    CapabilityUnavailable,
    /// The module declares a host capability that the policy does not grant.
    CapabilityNotGranted,
    /// The module declares a kind that the policy does not let it read.
    KindNotGranted,
    /// Either the metadata or the policy says that requests are changed, and the other says that they are not.
    MutatingDiffers,
    /// The policy is asked about resources that no rule of the metadata names.
    RulesDiffer,
    /// The expression of a policy group never calls one of its members.
    MemberNotCalled,
    /// The module is made for raw requests, and the policy is asked about admission requests.
    RawPolicy,
    /// The module has no metadata to compare.
    NoMetadata,
}

/// One difference.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mismatch {
    /// Its kind.
    pub reason: MismatchReason,
    /// What differs and what to do, for people to read; at most 400 bytes, safe to show.
    pub message: String,
}

impl Mismatch {
    /// Longest `message`, in bytes.
    pub const MAX_MESSAGE: usize = 400;

    /// A difference. The message is cleaned and cut.
    pub fn new(reason: MismatchReason, message: impl AsRef<str>) -> Self {
        Self { reason, message: clean(message.as_ref(), Self::MAX_MESSAGE) }
    }

    /// The same difference, as that of a member of a policy group.
    #[must_use]
    pub fn of_member(&self, name: &str) -> Self {
        Self::new(self.reason, format!("member `{name}`: {}", self.message))
    }
}
