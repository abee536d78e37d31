//! Which tenants want a job, and how much depends on it.

use portcullis_contract::Tenant;

use super::cluster::{broken, object, served};
use super::*;

const OTHER: &str = "https://example.com/b";
const ID: &str = "namespaced/team/p";

/// The jobs of a turn, each with the tenants that want it and how urgently.
fn claims(table: &mut Table) -> Vec<(String, Vec<(Tenant, Need)>)> {
    let turn = table.plan.turn(table.now);
    let of = |claims: &Claims| claims.iter().map(|(tenant, need)| (tenant.clone(), need)).collect();
    turn.jobs.iter().map(|(job, claims)| (name(job), of(claims))).collect()
}

fn team(need: Need) -> Vec<(Tenant, Need)> {
    vec![(Tenant::Namespace("team".into()), need)]
}

fn newest_served(mut desired: DesiredPolicy) -> DesiredPolicy {
    let object = desired.object.as_mut().expect("an object");
    (object.newest_served, object.enforced) = (true, true);
    desired
}

#[test]
fn z09_on_a_fresh_pod_what_served_elsewhere_is_needed_most() {
    let mut table = Table::new();
    table.want(vec![newest_served(object(wants(ID, URL, "{}"), "u", 3))]);
    assert_eq!(claims(&mut table), [(format!("fetch {URL}"), team(Need::Served))]);

    // The newest generation cannot be read, and the one before it serves instead.
    let mut table = Table::new();
    let desired = broken(object(wants(ID, OTHER, "{}"), "u", 4));
    table.want(vec![served(desired, 3, URL, Some("old"))]);
    assert_eq!(claims(&mut table), [("admit".to_owned(), team(Need::Served))]);
    table.jobs();
    assert_eq!(claims(&mut table), [("prepare".to_owned(), team(Need::Served))]);

    // A generation that has not served anywhere is less urgent.
    let mut table = Table::new();
    table.want(vec![served(object(wants(ID, OTHER, "{}"), "u", 4), 3, URL, Some("old"))]);
    assert_eq!(claims(&mut table), [(format!("fetch {OTHER}"), team(Need::New))]);
}

#[test]
fn z09_what_an_evaluator_loaded_is_needed_after_a_restart_and_a_new_generation_less() {
    let mut table = Table::new();
    table.want(vec![wants(ID, URL, "{}")]);
    assert_eq!(claims(&mut table), [(format!("fetch {URL}"), team(Need::New))]);
    table.settle();
    table.loads(ID, 1, digest(URL));
    table.jobs();
    let manifest = table.manifest.take();
    let mut again = Table::restored(manifest);
    again.want(vec![wants(ID, URL, "{}")]);
    assert!(claims(&mut again).contains(&("prepare".to_owned(), team(Need::Served))), "what is there is looked at");
    again.want(vec![wants(ID, OTHER, "{}")]);
    assert!(claims(&mut again).contains(&(format!("fetch {OTHER}"), team(Need::New))));
}

#[test]
fn z09_everybody_who_wants_a_module_counts() {
    let mut table = Table::new();
    let ids = ["cluster/a", "namespaced/one/a", "namespaced/one/b", "namespaced/two/a"];
    table.want(ids.map(|id| wants(id, URL, "{}")).to_vec());
    let tenants = [Tenant::Cluster, Tenant::Namespace("one".into()), Tenant::Namespace("two".into())];
    let all = tenants.map(|tenant| (tenant, Need::New)).to_vec();
    assert_eq!(claims(&mut table), [(format!("fetch {URL}"), all)]);
}
