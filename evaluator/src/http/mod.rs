//! The admission port, from a connection to the bytes of an answer.
//!
//! [`server`] accepts connections, [`handler`] answers requests, [`body`] reads their bodies. Everything else here limits what a client
//! may use and for how long, so that a slow or hostile client costs other clients nothing.

pub(crate) mod body;
mod connection;
pub(crate) mod connections;
pub(crate) mod descriptors;
mod eviction;
pub(crate) mod handler;
pub(crate) mod media_type;
mod pace;
pub(crate) mod path_keys;
pub(crate) mod route;
pub(crate) mod server;
mod stream;
pub(crate) mod tls;
pub(crate) mod under_way;
