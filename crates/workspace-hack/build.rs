//! Cargo resolves build dependencies only where there is a build script.
#![forbid(unsafe_code)]

fn main() {}
