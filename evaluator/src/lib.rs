//! Runs policies, swaps them live and answers admission reviews.
//!
//! ```text
//!  volume ──► watch ──► reload ──► table (one pointer, swapped whole) ◄── admit ◄── serve (TLS, HTTP/1.1) ◄── API server
//!                                    │
//!                                    └──► state, health, metrics (a thread of their own)
//! ```
//!
//! A request comes in by [`serve`] (connections) and [`handle`] (HTTP), is read by [`review`] and put to guests by [`ask`];
//! what becomes of their verdicts is decided in [`admit`], [`group`] and [`patch`], which are pure. It takes the table once
//! and keeps it, so its answer is wholly of one generation. What is large in a request or a reply is worked on beside the
//! lanes, in its policy's time.
//!
//! This program never compiles, never fetches, has no API token, and gives up connections, other programs and foreign
//! files before it loads the first module.

pub mod admit;
pub mod answer;
mod args;
mod artifact;
pub mod ask;
pub mod body;
pub mod client_names;
mod connections;
mod descriptors;
pub mod draft;
pub mod drain;
mod error_share;
pub mod eviction;
pub mod expiry;
mod few;
pub mod follow;
pub mod group;
mod guest;
pub mod handle;
mod health;
mod json;
pub mod lanes;
mod large;
mod load;
pub mod member_deadlines;
pub mod memory;
pub mod metrics;
pub mod pace;
pub mod patch;
pub mod path_keys;
mod payload;
pub mod place;
mod plan;
pub mod policy;
pub mod private_copy;
mod private_room;
mod probe_inside;
mod reload;
mod response;
pub mod review;
pub mod route;
mod run;
pub mod serve;
pub mod shares;
mod shut_in;
pub mod state;
mod stream;
pub mod table;
mod tenant;
mod text;
pub mod tls;
pub mod turns;
pub mod verdict;
mod warnings;
mod watch;

pub use args::Args;
pub use run::run;
