//! What tests do to the node of a cluster, and what they read from it.

mod containers;
mod evidence;
mod operate;
mod packet_filter;
mod volumes;

pub use evidence::Evidence;
pub use packet_filter::Rules;
