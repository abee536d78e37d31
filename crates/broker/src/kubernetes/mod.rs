//! `kubernetes/*`: objects of the API server, and what users may do there.

mod cluster;
mod collection;
mod data;
mod freshness;
mod mask;
mod objects;
mod read;
mod refusals;
mod room;
mod watches;

pub(crate) use self::cluster::Cluster;
pub(crate) use self::data::Form;
pub(crate) use self::read::Read;
