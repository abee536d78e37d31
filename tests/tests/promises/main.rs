//! Black-box tests of what the README and the design promise to users.

#![forbid(unsafe_code)]

mod audit;
mod capabilities;
mod check;
mod downloads;
mod edits;
mod eval;
mod eval_recordings;
mod examples;
mod failing;
mod groups;
mod identities;
mod metadata;
mod metrics;
mod migrate;
mod policies_yml;
mod policy_groups;
mod policy_tests;
mod rebuilt;
mod registries;
mod registry_tool;
mod rego;
mod run;
mod swaps;
mod tool;
mod traces;
