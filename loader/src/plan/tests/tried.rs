//! Trials: policies that are tried because users apply them.

use super::*;

const OTHER: &str = "https://example.com/b";

fn trial(number: u64, module: &str) -> Arc<DesiredPolicy> {
    let id = PolicyId::check(Some("team"), number).expect("an id");
    let wanted = wants(id.as_str(), module, "{}");
    let head = Head { group: None, ..Head::strict() };
    Arc::new(DesiredPolicy { head: Some(head), ..wanted })
}

fn tried(table: &mut Table, trials: &[&Arc<DesiredPolicy>]) {
    table.take(Event::Tried(Arc::new(trials.iter().map(|trial| Arc::clone(trial)).collect())));
}

#[test]
fn a_trial_is_published_without_a_group_and_goes_when_it_is_tried_no_longer() {
    let mut table = Table::new();
    table.want(vec![wants("cluster/a", URL, "{}")]);
    let trial = trial(1, OTHER);
    tried(&mut table, &[&trial]);
    table.settle();
    let id = trial.id.as_str();
    assert_eq!(table.candidates(id), [1]);
    let manifest = table.manifest.as_ref().expect("a manifest");
    let is_member = |group: &portcullis_contract::GroupEntry| group.members.contains(&trial.id);
    assert!(!manifest.groups.iter().any(is_member));

    // A snapshot neither has it nor removes it, and another trial leaves it alone.
    table.want(vec![wants("cluster/a", URL, "{}")]);
    assert_eq!(table.candidates(id), [1]);
    tried(&mut table, &[]);
    table.jobs();
    let manifest = table.manifest.as_ref().expect("a manifest");
    assert_eq!(manifest.policies.iter().map(|entry| entry.id.as_str()).collect::<Vec<_>>(), ["cluster/a"]);
}

#[test]
fn the_policy_that_follows_its_trial_needs_neither_download_nor_compilation() {
    let mut table = Table::new();
    table.want(Vec::new());
    let trial = trial(1, URL);
    tried(&mut table, &[&trial]);
    table.settle();
    table.want(vec![wants("namespaced/team/a", URL, "{}")]);
    assert_eq!(table.jobs(), Vec::<String>::new());
    assert_eq!(table.candidates("namespaced/team/a"), [1]);
}

#[test]
fn what_an_earlier_loader_tried_is_forgotten() {
    let mut table = Table::new();
    table.want(vec![wants("cluster/a", URL, "{}")]);
    tried(&mut table, &[&trial(1, OTHER)]);
    table.settle();
    let mut table = Table::restored(table.manifest);
    let ids = table.plan.policies.keys().map(PolicyId::to_string).collect::<Vec<_>>();
    assert_eq!(ids, ["cluster/a"]);
    table.want(vec![wants("cluster/a", URL, "{}")]);
    table.jobs();
    let manifest = table.manifest.as_ref().expect("a manifest");
    assert_eq!(manifest.policies.len(), 1);
}

#[test]
fn a_source_that_only_trials_name_is_no_source_of_the_installation() {
    let mut table = Table::new();
    table.want(Vec::new());
    tried(&mut table, &[&trial(1, "https://typo.example/a")]);
    table.jobs();
    table.fetched("https://typo.example/a", Err(Reason::RegistryUnreachable));
    let state = table.plan.state(&Program::default(), &Contexts::default());
    assert_eq!(state.sources, []);
    table.want(vec![wants("cluster/a", "https://typo.example/a", "{}")]);
    let state = table.plan.state(&Program::default(), &Contexts::default());
    assert_eq!(state.sources.len(), 1);
    assert!(state.sources[0].policy.as_ref().is_none_or(|id| id.as_str() == "cluster/a"), "{:?}", state.sources);
}
