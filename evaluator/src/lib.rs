//! Runs policies, swaps them live and answers admission reviews.
//!
//! ```text
//!  volume ──► watch ──► reload ──► table (one pointer, swapped whole) ◄── admit ◄── serve (TLS, HTTP/1.1) ◄── API server
//!                                    │
//!                                    └──► state, health, metrics (a thread of their own)
//! ```
//!
//! This program never compiles, never fetches, has no API token, and gives up connections, other programs and foreign
//! files before it loads the first module.

pub mod follow;
pub mod lanes;
pub mod metrics;
pub mod policy;
pub mod table;
pub mod verdict;
