//! The order in which jobs get slots of what is scarce: downloads from one host, compile children, readers of the volume. Pure: no
//! clock, no task, no lock.
//!
//! **The order.** First what ClusterPolicies want, as they guard the whole cluster and only its administrators write them. Then what
//! served before, so that a fresh pod starts with every tenant's last good state. Then the rest. Among equals, namespaces take turns: the
//! namespace that holds the fewest slots is next, then the one whose last turn is longest ago, and within it the job that came first. A
//! job that several tenants want has the best of their places.
//!
//! **No job waits for ever.** Every fourth slot is given in turn, regardless of need. Otherwise namespaces with many policies that served
//! before and can no longer be fetched would hold up all new policies.
//!
//! **One slot is left.** A running job is never stopped for another, and a slow one runs for minutes. So a namespace may hold all slots but
//! one, even while no other waits: the next namespace finds that one free. ClusterPolicies may hold all slots.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use portcullis_contract::Tenant;

use crate::claims::{Claims, Need};

/// One slot in this many is given in turn, regardless of need.
const ROUND: u64 = 4;

/// Slots, and the jobs that wait for one. `W` is how a waiting job is notified.
pub(super) struct Queue<W> {
    slots: usize,
    running: usize,
    tenants: HashMap<Tenant, Account>,
    /// The waiting jobs, by ticket.
    waiting: BTreeMap<u64, Waiter<W>>,
    tickets: u64,
    /// How many slots have been given so far.
    turns: u64,
}

#[derive(Debug, Default)]
struct Account {
    held: usize,
    /// The number of the last slot that the tenant got.
    turn: u64,
}

struct Waiter<W> {
    claims: Arc<Claims>,
    waiter: W,
}

/// A job's place in the order; the smallest is next.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Rank {
    class: Class,
    held: usize,
    turn: u64,
    need: Need,
    ticket: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Class {
    Cluster,
    Served,
    New,
}

impl<W> Queue<W> {
    /// A queue for this many slots, at least one.
    pub(super) fn new(slots: usize) -> Self {
        Self {
            slots: slots.max(1),
            running: 0,
            tenants: HashMap::new(),
            waiting: BTreeMap::new(),
            tickets: 0,
            turns: 0,
        }
    }

    /// Adds a waiting job and returns its ticket.
    pub(super) fn wait(&mut self, claims: Arc<Claims>, waiter: W) -> u64 {
        self.tickets += 1;
        self.waiting.insert(self.tickets, Waiter { claims, waiter });
        self.tickets
    }

    /// Removes a job that no longer waits; `None` if it had already left.
    pub(super) fn leave(&mut self, ticket: u64) -> Option<W> {
        let gone = self.waiting.remove(&ticket).map(|waiter| waiter.waiter);
        self.tidy();
        gone
    }

    /// Updates which tenants need the waiting jobs.
    pub(super) fn renew(&mut self, claims: impl Fn(&W) -> Arc<Claims>) {
        for waiter in self.waiting.values_mut() {
            waiter.claims = claims(&waiter.waiter);
        }
    }

    /// The next job that gets a slot, and the tenant that the slot counts for. Call it until it returns `None`.
    pub(super) fn next(&mut self) -> Option<(Tenant, W)> {
        if self.running >= self.slots {
            return None;
        }
        let goes_round = (self.turns + 1).is_multiple_of(ROUND);
        let ranked = self.waiting.iter().flat_map(|(ticket, waiter)| {
            let claims = waiter.claims.iter().filter(|(tenant, _)| self.leaves_room(tenant));
            claims.map(|(tenant, need)| (self.rank(*ticket, tenant, need, goes_round), tenant))
        });
        let (rank, tenant) = ranked.min_by(|(one, _), (other, _)| one.cmp(other))?;
        let (ticket, tenant) = (rank.ticket, tenant.clone());
        let waiter = self.waiting.remove(&ticket)?.waiter;
        self.turns += 1;
        self.running += 1;
        let account = self.tenants.entry(tenant.clone()).or_default();
        account.held += 1;
        account.turn = self.turns;
        Some((tenant, waiter))
    }

    /// Gives back a slot of this tenant.
    pub(super) fn give_back(&mut self, tenant: &Tenant) {
        if let Some(account) = self.tenants.get_mut(tenant) {
            account.held -= 1;
            self.running -= 1;
        }
        self.tidy();
    }

    /// Whether no job holds a slot or waits for one.
    fn is_idle(&self) -> bool {
        self.running == 0 && self.waiting.is_empty()
    }

    fn leaves_room(&self, tenant: &Tenant) -> bool {
        match tenant {
            Tenant::Cluster => true,
            Tenant::Namespace(_) => self.account(tenant).0 < (self.slots - 1).max(1),
        }
    }

    fn rank(&self, ticket: u64, tenant: &Tenant, need: Need, goes_round: bool) -> Rank {
        let class = match (tenant, need) {
            _ if goes_round => Class::New,
            (Tenant::Cluster, _) => Class::Cluster,
            (_, Need::Served) => Class::Served,
            (_, Need::New) => Class::New,
        };
        let (held, turn) = self.account(tenant);
        Rank { class, held, turn, need, ticket }
    }

    fn account(&self, tenant: &Tenant) -> (usize, u64) {
        self.tenants.get(tenant).map_or((0, 0), |account| (account.held, account.turn))
    }

    /// Forgets tenants while the queue is idle; otherwise those of past policies would pile up.
    fn tidy(&mut self) {
        if self.is_idle() {
            self.tenants.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims from words: `cluster`, `a` for a namespace, and `a!` for what served there before.
    fn claims(wanted: &[&str]) -> Arc<Claims> {
        let mut claims = Claims::default();
        for one in wanted {
            let need = if one.ends_with('!') { Need::Served } else { Need::New };
            let tenant = match one.trim_end_matches('!') {
                "cluster" => Tenant::Cluster,
                name => Tenant::Namespace(name.into()),
            };
            claims.add(&tenant, need);
        }
        Arc::new(claims)
    }

    struct Table {
        queue: Queue<&'static str>,
        running: Vec<(Tenant, &'static str)>,
    }

    impl Table {
        fn new(slots: usize) -> Self {
            Self { queue: Queue::new(slots), running: Vec::new() }
        }

        /// Adds waiting jobs: the name of each, and the tenants that want it.
        fn wait(&mut self, waiting: &[(&'static str, &[&str])]) {
            for (name, wanted) in waiting {
                self.queue.wait(claims(wanted), name);
            }
        }

        fn begin(&mut self) -> Vec<&'static str> {
            let mut begun = Vec::new();
            while let Some((tenant, name)) = self.queue.next() {
                begun.push(name);
                self.running.push((tenant, name));
            }
            begun
        }

        /// Ends a job, and returns the jobs that begin in its place.
        fn end(&mut self, name: &str) -> Vec<&'static str> {
            let place = self.running.iter().position(|(_, running)| *running == name).expect("it runs");
            let (tenant, _) = self.running.remove(place);
            self.queue.give_back(&tenant);
            self.begin()
        }

        /// Runs all jobs, each once the one before has ended, and returns their order.
        fn one_by_one(&mut self) -> Vec<&'static str> {
            let mut order = self.begin();
            while let Some((_, name)) = self.running.first().cloned() {
                order.extend(self.end(name));
            }
            order
        }
    }

    #[test]
    fn z09_cluster_policies_come_first_then_what_served_then_the_rest() {
        let mut table = Table::new(1);
        table.wait(&[("new", &["a"]), ("served", &["b!"]), ("guard", &["cluster"])]);
        assert_eq!(table.one_by_one(), ["guard", "served", "new"]);
    }

    #[test]
    fn z09_it_goes_round_over_namespaces_and_within_one_by_age() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"]), ("b1", &["b"]), ("b2", &["b"]), ("c1", &["c"])]);
        assert_eq!(table.one_by_one(), ["a1", "b1", "c1", "a2", "b2", "a3"]);
    }

    #[test]
    fn z09_within_a_namespace_what_served_comes_first() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a!"]), ("b1", &["b!"])]);
        assert_eq!(table.one_by_one(), ["a2", "b1", "a1"]);
    }

    #[test]
    fn z09_what_several_want_has_the_best_place_of_theirs() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("shared", &["a", "z"]), ("guarded", &["a", "cluster"])]);
        assert_eq!(table.one_by_one(), ["guarded", "a1", "shared", "a2"]);
    }

    #[test]
    fn z09_a_namespace_leaves_a_slot_to_the_others_before_they_come() {
        let mut table = Table::new(4);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"]), ("a4", &["a"]), ("a5", &["a!"])]);
        assert_eq!(table.begin(), ["a5", "a1", "a2"]);
        table.wait(&[("b1", &["b"]), ("b2", &["b"])]);
        assert_eq!(table.begin(), ["b1"]);
        assert_eq!(table.end("a1"), ["b2"], "who holds less comes first, and what runs goes on");
        assert_eq!(table.end("b1"), ["a3"]);
    }

    #[test]
    fn one_slot_can_be_had_and_cluster_policies_may_have_all() {
        let mut table = Table::new(0);
        table.wait(&[("a1", &["a"])]);
        assert_eq!(table.begin(), ["a1"]);
        let mut table = Table::new(2);
        table.wait(&[("one", &["cluster"]), ("two", &["cluster"])]);
        assert_eq!(table.begin(), ["one", "two"]);
    }

    #[test]
    fn z09_what_cannot_be_had_any_more_holds_up_new_policies_for_three_turns_at_most() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a!"]), ("b1", &["b!"]), ("a2", &["a!"]), ("b2", &["b!"]), ("new", &["c"])]);
        assert_eq!(table.one_by_one(), ["a1", "b1", "a2", "new", "b2"]);
    }

    #[test]
    fn who_wants_it_may_change_while_it_waits() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"]), ("a2", &["a"]), ("a3", &["a"])]);
        table.queue.renew(|name| claims(if *name == "a3" { &["a", "cluster"] } else { &["a"] }));
        assert_eq!(table.one_by_one(), ["a3", "a1", "a2"]);
        table.wait(&[("nobody", &[])]);
        assert_eq!(table.begin(), Vec::<&str>::new());
    }

    #[test]
    fn nothing_is_remembered_of_who_is_gone() {
        let mut table = Table::new(1);
        table.wait(&[("a1", &["a"])]);
        let ticket = table.queue.wait(claims(&["b"]), "b1");
        assert_eq!(table.begin(), ["a1"]);
        assert_eq!((table.queue.leave(ticket), table.queue.leave(ticket)), (Some("b1"), None));
        assert_eq!(table.end("a1"), Vec::<&str>::new());
        assert!(table.queue.is_idle() && table.queue.tenants.is_empty());
    }
}
