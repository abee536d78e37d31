//! The evaluator without its ports: a volume, the loop that follows it, and guests that behave and misbehave.

#![expect(missing_docs, reason = "a test program has no readers of its documentation")]
#![expect(unreachable_pub, reason = "the rig is shared by the modules of one program")]

mod calls;
mod following;
mod hosting;
mod loading;
mod rig;
mod speed;
