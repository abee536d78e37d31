//! What the chart promises, tested on a real installation with kubelet, containers, probes, services and network.
//!
//! All tests except those that end the installation or the cluster share one release, one after the other; each leaves it as it found
//! it. `cargo xtask e2e` builds the images and runs the tests.
#![forbid(unsafe_code)]
#![expect(clippy::unwrap_used, reason = "a helper of tests fails like the test")]

mod asked;
mod audit;
mod bad_update;
mod cache_volume;
mod certificates;
mod cold_start;
mod confinement;
mod containers;
mod crash_loop;
mod cut_off;
mod degraded;
mod deleted;
mod earlier_release;
mod first_denial;
mod floods;
mod killed;
mod locked_out;
mod moved_tag;
mod network;
mod newcomers;
mod policy_checks;
mod random_faults;
mod reads_objects;
mod restarts;
mod rolling;
mod room;
mod rotation;
mod scaling;
mod source_away;
mod stage;
mod strangers;
mod swap;
mod tls;
mod two_api_servers;
mod uninstall;
mod upgrade;
