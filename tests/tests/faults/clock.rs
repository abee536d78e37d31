//! Section 7, row V16: the wall clock jumps under all three programs.

use std::time::{SystemTime, UNIX_EPOCH};

use portcullis_tests::{Clock, Folder, Pod, Policy, Reply, Review, Source, Tls, eventually};

const UPDATED: &str = "cluster/updated";
const HOUR: i64 = 3600;
const YEAR: i64 = 365 * 24 * HOUR;

fn seconds_now() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("it is after 1970").as_secs();
    i64::try_from(now).expect("it is before the year 292 billion")
}

#[test]
fn fault_v16_wall_clock_jumps_by_an_hour_and_a_year_both_ways() {
    let (clock, source) = (Clock::new(), Source::new(Tls::Off));
    source.answer("/m.wasm", [Reply::status(503)]);
    let folder = Folder::with_canary();
    folder.put(&Policy::cluster("remote").module(&source.url("/m.wasm")));
    folder.put(&Policy::cluster("updated").denying("generation 1"));
    let leaves = Policy::cluster("leaves").guest("always_deny").on("secrets");
    folder.put(&leaves);
    let pod = clock.of(Pod::on(&folder).loader("--allow-http-host", source.host())).start();
    pod.wait_current(UPDATED, 1);
    pod.wait_current("cluster/leaves", 1);
    // Its group goes on answering for ten minutes.
    folder.remove(&leaves);
    let group = leaves.group();
    let asked = || pod.client().post(&format!("/admit/{group}"), Review::pod().bytes()).expect("answers");
    eventually("the group to allow", || asked().verdict().allowed.then_some(()));

    let mut number = pod.volume().manifest().number;
    for (generation, jump) in (2..).zip([HOUR, -HOUR, YEAR, -YEAR, 0]) {
        clock.jump_to(jump);
        let attempts = source.requests("/m.wasm").len();
        folder.put(&Policy::cluster("updated").denying(&format!("generation {generation}")));

        pod.assert_recovered(UPDATED, generation);
        let verdict = pod.ask(UPDATED, &Review::pod()).verdict();
        assert_eq!(verdict.message, format!("generation {generation}"));
        let now = pod.volume().manifest().number;
        assert!(now > number, "manifest {now} after {number}");
        number = now;
        // The programs do use this clock. A look at the folder that began before the jump uses the earlier time.
        let mut looks = 0;
        eventually(&format!("a new policy to be dated by the clock that jumped to {jump}"), || {
            looks += 1;
            let name = format!("new-{generation}-{looks}");
            folder.put(&Policy::cluster(&name).guest("always_accept"));
            let created = eventually("the new policy to be known", || {
                let policies = pod.loader_state()?.policies.into_iter();
                policies.filter(|policy| policy.id.name() == name).map(|policy| policy.created.as_second()).next()
            });
            let off = created - seconds_now() - jump;
            (off.abs() < 600).then_some(())
        });
        // A retry is due after a second or two, whatever the clock says.
        eventually("the next attempts", || (source.requests("/m.wasm").len() >= attempts + 2).then_some(()));
        assert!(asked().verdict().allowed, "the group's time is not over");
        if jump == -YEAR {
            // A program that starts now finds files whose times are, by its clock, in the far future.
            pod.loader().restart_with(None);
        }
    }
    source.answer("/m.wasm", [Reply::module()]);
    pod.assert_recovered("cluster/remote", 1);
}
