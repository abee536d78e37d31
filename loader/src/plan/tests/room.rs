//! More settings than a manifest has room for.

use super::*;

/// Room for four policies like [`large`] and for the entries around them.
const ROOM: u64 = 52_000;

fn large(id: &str, mark: &str) -> DesiredPolicy {
    wants(id, URL, &format!("{{\"{mark}\":\"{}\"}}", "x".repeat(9_000)))
}

fn small(id: &str, mark: &str) -> DesiredPolicy {
    wants(id, URL, &format!("{{\"small\":\"{mark}\"}}"))
}

fn greedy(n: usize) -> DesiredPolicy {
    large(&format!("namespaced/greedy/{n}"), "x")
}

impl Table {
    fn narrow() -> Self {
        let mut table = Self::new();
        table.plan.settings.manifest_size = ROOM;
        table
    }

    /// The ids of the manifest's policies that have a candidate; checks that the manifest is not too large.
    fn served(&mut self) -> Vec<String> {
        self.jobs();
        let manifest = self.manifest.as_ref().expect("a manifest");
        assert!(manifest.encode().expect("encodes").len() as u64 <= ROOM);
        let has = manifest.policies.iter().filter(|entry| !entry.candidates.is_empty());
        has.map(|entry| entry.id.to_string()).collect()
    }

    fn reason(&self, id: &str) -> Option<Reason> {
        let state = self.state(id);
        assert_eq!(state.failure.is_some(), state.phase == Phase::Failed);
        state.failure.map(|failure| failure.reason)
    }
}

#[test]
fn z07_the_namespace_that_floods_gives_way_and_the_others_go_on() {
    let mut table = Table::narrow();
    let flood: Vec<_> = (0..9).map(greedy).collect();
    table.want([flood.clone(), vec![large("cluster/guard", "x"), small("namespaced/team/a", "1")]].concat());
    table.settle();
    let served = table.served();
    assert!(served.contains(&"cluster/guard".to_owned()) && served.contains(&"namespaced/team/a".to_owned()));
    assert_eq!(served.len(), 4, "{served:?}");
    assert_eq!(table.reason("namespaced/greedy/8"), Some(Reason::SettingsTooLarge));
    let manifest = table.manifest.clone().expect("a manifest");
    let left = manifest.policies.iter().find(|entry| entry.id.as_str() == "namespaced/greedy/8").expect("is named");
    assert_eq!(left.failures.iter().map(|failure| failure.generation).collect::<Vec<_>>(), [1]);
    assert_eq!(table.plan.state(&Program::default(), &Contexts::default()).volume_failure, None);

    // An edit of another policy arrives, and nothing is published that is not needed.
    let edited = vec![large("cluster/guard", "x"), small("namespaced/team/a", "2")];
    table.want([flood.clone(), edited.clone()].concat());
    assert_eq!(table.candidates("namespaced/team/a"), [2]);
    let number = table.number;
    table.want([flood.clone(), edited.clone()].concat());
    assert_eq!((table.served(), table.number), (served, number));

    // With fewer of them there is room for all that are left.
    table.want([flood[6..].to_vec(), edited].concat());
    table.settle();
    assert_eq!(table.served().len(), 5);
    assert_eq!(table.reason("namespaced/greedy/8"), None);
}

#[test]
fn z07_what_served_goes_on_where_an_edit_has_no_room() {
    let mut table = Table::narrow();
    let policy = "namespaced/team/a";
    table.want(vec![small(policy, "1")]);
    table.settle();
    table.loads(policy, 1, digest(URL));
    let huge = wants(policy, URL, &format!("\"{}\"", "x".repeat(60_000)));
    table.want(vec![huge.clone()]);
    assert_eq!(table.candidates(policy), [1]);
    let state = table.state(policy);
    assert_eq!((state.phase, state.generation, state.last_good), (Phase::Failed, 2, Some(1)));
    assert_eq!(table.reason(policy), Some(Reason::SettingsTooLarge));

    let mut table = Table::restored(table.manifest.take());
    table.plan.settings.manifest_size = ROOM;
    table.want(vec![huge]);
    table.settle();
    assert_eq!((table.candidates(policy), table.state(policy).generation), (vec![1], 2), "also after a restart");
    table.want(vec![small(policy, "3")]);
    table.settle();
    assert_eq!((table.candidates(policy), table.reason(policy)), (vec![3], None));
}

#[test]
fn z07_what_serves_keeps_its_place_from_one_manifest_to_the_next() {
    let mut table = Table::narrow();
    table.want(vec![greedy(7), greedy(8)]);
    table.settle();
    table.loads("namespaced/greedy/7", 1, digest(URL));
    table.loads("namespaced/greedy/8", 1, digest(URL));
    table.want((0..9).map(greedy).collect());
    table.settle();
    let served = table.served();
    for n in [7, 8] {
        assert!(served.contains(&format!("namespaced/greedy/{n}")), "{served:?}");
    }
    assert_eq!(served.len(), 4, "{served:?}");
}

#[test]
fn z07_what_is_tried_again_keeps_its_place() {
    let kept = |reason| {
        let mut table = Table::narrow();
        // Others are older, and want more later.
        let older = || (0..7).map(|n| small(&format!("namespaced/greedy/{n}"), "x"));
        table.want(older().collect());
        table.settle();
        table.want(older().chain([greedy(7), greedy(8)]).collect());
        table.settle();
        table.loads("namespaced/greedy/7", 1, digest(URL));
        table.loads("namespaced/greedy/8", 1, digest(URL));
        // A replica that started again could not load it.
        table.refuses("namespaced/greedy/8", 1, digest(URL), digest("x"), reason, 0);
        table.want((0..9).map(greedy).collect());
        table.settle();
        table.served().contains(&"namespaced/greedy/8".to_owned())
    };
    assert!(kept(Reason::CapabilityUnavailable));
    assert!(!kept(Reason::SettingsInvalid), "what is refused for good makes room");
}
