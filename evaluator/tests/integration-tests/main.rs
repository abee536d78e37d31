//! The evaluator without its ports: a volume, the loop that follows it, and guests that behave and misbehave.

#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]
#![expect(unreachable_pub, reason = "the rig is shared by the modules of one program")]

mod calls;
mod clean_memory;
mod examples;
mod following;
mod hosting;
mod instructions;
mod loading;
mod rego;
mod rig;
mod speed;
