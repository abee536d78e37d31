//! `portcullis run` shows the progress of a download.

use std::fs;

use portcullis_tests::{Folder, Policy, Reply, Source, eventually};
use rustix::process::Signal;

use crate::run::start_with;
use crate::tool::examples;

#[test]
fn promise_a_download_shows_as_a_bar() {
    let source = Source::https();
    let module = fs::read(examples().join("modules/no-privileged.wasm")).expect("reads");
    // The download takes some seconds.
    let rate = module.len() as u64 / 6;
    source.answer("/m.wasm", [Reply::ok(module).rate(rate)]);
    let folder = Folder::empty();
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    let ca = source.ca_file(&folder);
    let tool = start_with(&folder.policies(), &["--source-ca", &ca, "--table", "live"]);
    let wait = |what: &str, is: &dyn Fn(&str) -> bool| {
        eventually(what, || {
            assert!(tool.is_alive(), "it has ended");
            tool.lines().into_iter().find(|line| is(line))
        })
    };
    let is_bar =
        |line: &str| line.contains("cluster/remote: fetching [#") && line.contains("-] ") && line.contains(" MB");
    wait("a bar", &is_bar);
    wait("the policy to be served", &|line| line.contains("cluster/remote") && line.contains("Active"));
    tool.signal(Signal::INT);
    assert_eq!(tool.wait_for_end(portcullis_tests::LIMIT).code(), Some(0));
}
