//! Which objects of a cluster a policy would be asked about, and with which request: rules, selectors, match conditions. Pure.
//!
//! The evaluator decides here which members of a shared webhook a request is for ([`MemberMatcher`]). `portcullis impact` asks one policy about all
//! objects that it matches, and the audit of the reporter asks all policies; both decide here what an API server would decide about a request.
#![forbid(unsafe_code)]

mod admission_request;
mod conditions;
mod existing;
mod filled;
mod member;
mod request;
mod resource;
pub mod rules;
mod scope;
mod selector;
pub mod system;

pub use admission_request::AdmissionRequest;
pub use conditions::{Conditions, Decision, Failing, NoPause, Pace};
pub use existing::Existing;
pub use filled::{NAME_LABEL, labels_of};
pub use member::{MemberMatcher, shared_part};
pub use request::{Asked, about, matches_rule};
pub use resource::Resource;
pub use scope::{LEFT_OUT, Namespaces, Parts, SYSTEM, Scope, ScopeError, is_own_definition};
pub use selector::{Labels, Selector, SelectorError, is_label_name, labels};
pub use system::is_by_the_cluster;
