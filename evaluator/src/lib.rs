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

pub mod admit;
pub mod answer;
pub mod artifact;
pub mod draft;
pub mod follow;
pub mod group;
mod guest;
mod json;
pub mod lanes;
mod load;
pub mod metrics;
pub mod patch;
mod payload;
mod plan;
pub mod policy;
mod reload;
mod response;
pub mod review;
pub mod route;
pub mod state;
pub mod table;
mod text;
pub mod verdict;
mod watch;
