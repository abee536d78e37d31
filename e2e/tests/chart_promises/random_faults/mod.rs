//! Random faults under load, which follow each other and overlap.
//!
//! ```text
//! seed ──► Fault::draw ──► Stand::suffer ──► Stand::look ──► … ──► Stand::calm ──► … ──► Stand::recover
//!                              │                 │                    │
//!                      the fault itself          │       no fault is left: I3 and I7
//!                                          assess: every answer since the last look
//! ```
//!
//! A seed gives the same faults in the same order. The state in which they find the cluster differs from run to run.

mod aftermath;
mod assess;
mod attempts;
mod calm;
mod effect;
mod fault;
mod run;
mod stand;
mod tally;
mod usage;
mod victim;

use std::thread;
use std::time::Instant;

use fastrand::Rng;

use self::calm::FAULTS_BETWEEN;
use self::fault::{Fault, pause};
use self::run::Run;
use self::stand::Stand;
use crate::stage::{Stage, own_cluster};

#[test]
#[ignore = "starts a cluster"]
fn fault_k12_whatever_goes_wrong_no_verdict_is_wrong_and_all_is_well_in_the_end() {
    let run = Run::from_env();
    let stage = Stage::new("random-faults");
    let Some(cluster) = own_cluster("fault_k12") else { return };
    let mut stand = Stand::new(&stage, cluster);
    let mut random = Rng::with_seed(run.seed);
    let start = Instant::now();
    for number in 1.. {
        stand.suffer(&Fault::draw(&mut random));
        thread::sleep(pause(&mut random));
        stand.look();
        if start.elapsed() > run.time {
            break;
        }
        if number % FAULTS_BETWEEN == 0 {
            stand.calm();
        }
    }
    let told = stand.recover();
    println!("\n`{}`\n\n{told}", run.command());
}
