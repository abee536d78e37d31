//! The real loader on folders of its own: what it writes to the volume and says of itself.
#![forbid(unsafe_code)]

mod folder;
mod loading;
mod modules;
mod volume;
mod web;
