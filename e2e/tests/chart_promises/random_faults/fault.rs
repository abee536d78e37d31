//! The faults, and how they are drawn: a seed determines the sequence, whatever the state of the cluster is.

use std::time::Duration;

use fastrand::Rng;

/// The containers of a replica.
pub(super) const PROGRAMS: [&str; 3] = ["evaluator", "loader", "reporter"];

/// The number of policies that are edited.
pub(super) const VICTIMS: usize = 3;

/// A failure, or an action of a user. A `usize` is drawn without knowing how many objects there are to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A container of a replica is killed.
    KillContainer { program: &'static str, replica: usize },
    /// A container of a replica is frozen for a while.
    FreezeContainer { program: &'static str, replica: usize, time: Duration },
    /// A pod is deleted, with or without a grace period.
    DeletePod { replica: usize, at_once: bool },
    /// The controller that holds the Lease is killed.
    KillLeader,
    /// A pod of the controller is deleted.
    DeleteController { pod: usize },
    /// The policy server is scaled to this number of replicas.
    Scale { replicas: usize },
    /// `kubectl rollout restart` of the policy server.
    RestartRollout,
    /// The annotation of `kubectl rollout restart` is removed again, as by `kubectl rollout undo`.
    UndoRollout,
    /// `kubectl rollout restart` of the controller.
    RestartControllers,
    /// The API server is stopped or killed, and is started again.
    RestartApiServer { is_killed: bool },
    /// A part of Kubernetes is frozen for a while.
    FreezePart { part: Part, time: Duration },
    /// Kubelet and containerd are restarted; containers go on running.
    RestartKubelet,
    /// The source of all modules refuses connections during another fault, and for a while longer.
    WhileSourceIsClosed { time: Duration, fault: Box<Fault> },
    /// The source of all modules answers slowly during another fault, and for a while longer.
    WhileSourceIsSlow { time: Duration, fault: Box<Fault> },
    /// A policy is edited.
    Edit { victim: usize, edit: Edit },
    /// A user edits a webhook of the controller.
    EditWebhook { webhook: usize },
    /// A user edits the status of a policy.
    EditStatus { victim: usize },
    /// A user deletes a Lease.
    DeleteLease { lease: usize },
    /// A user deletes the Secret of the authority that webhooks trust, or that of the serving certificate.
    DeleteSecret { is_authority: bool },
    /// One more policy is created, or applied again if it exists.
    PolicyComes,
    /// That policy is deleted.
    PolicyGoes,
}

/// Parts of Kubernetes that hang.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    ApiServer,
    Etcd,
    ControllerManager,
    Kubelet,
    KubeProxy,
}

/// An edit of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// A module that denies with another text.
    Good,
    /// The same, but the source is slow to send the module.
    Slow,
    /// The same, but the source answers 503 for the module until the next edit.
    Unavailable,
    /// The same, but the source answers 404 for the module until the next edit.
    Missing,
    /// A file that is not a module.
    NotAModule,
    /// A module that traps when it starts.
    StartTraps,
    /// A module that refuses its settings.
    SettingsRefused,
    /// A `rollbackTo` the newest generation that was Ready.
    RollBack,
}

const EDITS: [Edit; 8] = [
    Edit::Good,
    Edit::Slow,
    Edit::Unavailable,
    Edit::Missing,
    Edit::NotAModule,
    Edit::StartTraps,
    Edit::SettingsRefused,
    Edit::RollBack,
];

const PARTS: [Part; 5] = [Part::ApiServer, Part::Etcd, Part::ControllerManager, Part::Kubelet, Part::KubeProxy];

type Kind = fn(&mut Rng) -> Fault;

/// All kinds of faults, with the weights with which they are drawn.
const TABLE: [(u32, Kind); 21] = [
    (6, |random| Fault::KillContainer { program: choose(random, &PROGRAMS), replica: random.usize(..12) }),
    (2, |random| Fault::FreezeContainer {
        program: choose(random, &PROGRAMS),
        replica: random.usize(..12),
        time: millis(random, 200, 1500),
    }),
    (3, |random| Fault::DeletePod { replica: random.usize(..12), at_once: random.u8(..4) == 0 }),
    (3, |_| Fault::KillLeader),
    (1, |random| Fault::DeleteController { pod: random.usize(..12) }),
    (2, |random| Fault::Scale { replicas: random.usize(2..=4) }),
    (2, |_| Fault::RestartRollout),
    (1, |_| Fault::UndoRollout),
    (1, |_| Fault::RestartControllers),
    (2, |random| Fault::RestartApiServer { is_killed: random.bool() }),
    (2, |random| Fault::FreezePart { part: choose(random, &PARTS), time: millis(random, 300, 3000) }),
    (1, |_| Fault::RestartKubelet),
    (3, |random| Fault::WhileSourceIsClosed { time: millis(random, 0, 4000), fault: Box::new(in_place(random)) }),
    (2, |random| Fault::WhileSourceIsSlow { time: millis(random, 0, 4000), fault: Box::new(in_place(random)) }),
    (16, |random| Fault::Edit { victim: random.usize(..VICTIMS), edit: choose(random, &EDITS) }),
    (2, |random| Fault::EditWebhook { webhook: random.usize(..12) }),
    (2, |random| Fault::EditStatus { victim: random.usize(..VICTIMS) }),
    (2, |random| Fault::DeleteLease { lease: random.usize(..12) }),
    (3, |random| Fault::DeleteSecret { is_authority: random.bool() }),
    (3, |_| Fault::PolicyComes),
    (2, |_| Fault::PolicyGoes),
];

impl Fault {
    /// Draws the next fault.
    pub(super) fn draw(random: &mut Rng) -> Self {
        let sum: u32 = TABLE.iter().map(|(weight, _)| weight).sum();
        let mut point = random.u32(..sum);
        for (weight, kind) in TABLE {
            match point.checked_sub(weight) {
                Some(rest) => point = rest,
                None => return kind(random),
            }
        }
        unreachable!("the point is below the sum of all weights")
    }

    /// Whether it takes one of several replicas away. Those that are already away must be back before, as in the maintenance of nodes.
    pub(super) fn takes_one_of_several(&self) -> bool {
        match self {
            Self::KillContainer { .. }
            | Self::DeletePod { .. }
            | Self::KillLeader
            | Self::DeleteController { .. }
            | Self::Scale { .. }
            | Self::RestartRollout
            | Self::UndoRollout
            | Self::RestartControllers
            // A container that is just being started would be started once more.
            | Self::RestartKubelet => true,
            Self::WhileSourceIsClosed { fault, .. } | Self::WhileSourceIsSlow { fault, .. } => {
                fault.takes_one_of_several()
            }
            _ => false,
        }
    }

    /// Whether calls may break until everything is back, because a program that answers them or passes them on ends without warning.
    pub(super) fn breaks_calls(&self) -> bool {
        match self {
            Self::KillContainer { program, .. } => *program == "evaluator",
            Self::DeletePod { at_once, .. } => *at_once,
            Self::RestartApiServer { .. } => true,
            Self::WhileSourceIsClosed { fault, .. } | Self::WhileSourceIsSlow { fault, .. } => fault.breaks_calls(),
            _ => false,
        }
    }

    /// Whether it makes pods start, which then need all modules.
    fn starts_pods(&self) -> bool {
        matches!(
            self,
            Self::DeletePod { .. }
                | Self::Scale { .. }
                | Self::RestartRollout
                | Self::UndoRollout
                | Self::RestartKubelet
        )
    }

    fn is_about_the_source(&self) -> bool {
        matches!(self, Self::WhileSourceIsClosed { .. } | Self::WhileSourceIsSlow { .. })
    }
}

/// Draws a fault that may happen while modules cannot be fetched.
fn in_place(random: &mut Rng) -> Fault {
    loop {
        let fault = Fault::draw(random);
        if !fault.starts_pods() && !fault.is_about_the_source() {
            return fault;
        }
    }
}

fn choose<T: Copy>(random: &mut Rng, all: &[T]) -> T {
    all[random.usize(..all.len())]
}

fn millis(random: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(random.u64(least..=most))
}

/// Draws the pause after a fault.
pub(super) fn pause(random: &mut Rng) -> Duration {
    // Half of the faults come right after the one before.
    if random.bool() { Duration::ZERO } else { millis(random, 0, 1500) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn draws(seed: u64, count: usize) -> Vec<Fault> {
        let mut random = Rng::with_seed(seed);
        std::iter::repeat_with(|| Fault::draw(&mut random)).take(count).collect()
    }

    #[test]
    fn a_seed_gives_the_same_faults_again_and_another_gives_others() {
        assert_eq!(draws(7, 50), draws(7, 50));
        assert_ne!(draws(7, 50), draws(8, 50));
    }

    #[test]
    fn every_kind_is_drawn() {
        let kinds: std::collections::HashSet<_> = draws(1, 1000).iter().map(std::mem::discriminant).collect();
        assert_eq!(kinds.len(), TABLE.len());
    }

    #[test]
    fn while_modules_cannot_be_had_no_pod_starts() {
        for fault in draws(2, 1000) {
            if let Fault::WhileSourceIsClosed { fault, .. } | Fault::WhileSourceIsSlow { fault, .. } = fault {
                assert!(!fault.starts_pods() && !fault.is_about_the_source(), "{fault:?}");
            }
        }
    }

    #[test]
    fn a_fault_within_another_counts_like_that_fault() {
        let kill = Fault::KillContainer { program: "evaluator", replica: 0 };
        let both = Fault::WhileSourceIsClosed { time: Duration::ZERO, fault: Box::new(kill) };
        assert!(both.takes_one_of_several() && both.breaks_calls());
        let edit = Fault::Edit { victim: 0, edit: Edit::Good };
        let both = Fault::WhileSourceIsSlow { time: Duration::ZERO, fault: Box::new(edit) };
        assert!(!both.takes_one_of_several() && !both.breaks_calls());
    }
}
