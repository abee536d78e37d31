//! What can go wrong, and the draw that says what does: one seed, one sequence, whatever the cluster looks like meanwhile.

use std::time::Duration;

use fastrand::Rng;

/// The containers of a replica.
pub(super) const PROGRAMS: [&str; 3] = ["evaluator", "loader", "reporter"];

/// How many policies are edited.
pub(super) const VICTIMS: usize = 3;

/// One thing that goes wrong, or that somebody does. A `usize` is drawn before anybody knows how many there are to choose from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fault {
    /// A container of a replica is killed.
    KillContainer { program: &'static str, replica: usize },
    /// A container of a replica is stopped where it is, and goes on after a while.
    FreezeContainer { program: &'static str, replica: usize, time: Duration },
    /// A pod is deleted, and may drain or not.
    DeletePod { replica: usize, at_once: bool },
    /// The controller that holds the Lease is killed.
    KillLeader,
    /// A pod of the controller is deleted.
    DeleteController { pod: usize },
    /// Another number of replicas.
    Scale { replicas: usize },
    /// `kubectl rollout restart` of the policy server.
    RestartRollout,
    /// The pods' template is again as helm made it.
    UndoRollout,
    /// `kubectl rollout restart` of the controller.
    RestartControllers,
    /// The API server ends, cleanly or not, and is started again.
    RestartApiServer { is_killed: bool },
    /// A part of Kubernetes is stopped where it is, and goes on after a while.
    FreezePart { part: Part, time: Duration },
    /// Kubelet and containerd are restarted; containers go on.
    RestartKubelet,
    /// The source of all modules hangs up on everybody while something else happens, and for a while longer.
    WhileSourceIsClosed { time: Duration, fault: Box<Fault> },
    /// The source of all modules takes long for every answer while something else happens, and for a while longer.
    WhileSourceIsSlow { time: Duration, fault: Box<Fault> },
    /// A policy is edited.
    Edit { victim: usize, edit: Edit },
    /// Somebody edits a webhook of the controller's.
    EditWebhook { webhook: usize },
    /// Somebody edits the status of a policy.
    EditStatus { victim: usize },
    /// Somebody deletes a Lease.
    DeleteLease { lease: usize },
    /// Somebody deletes the Secret of the authority that webhooks trust, or that of the certificate which it has issued.
    DeleteSecret { is_authority: bool },
    /// A policy is made that was not there, or was and is deleted.
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

/// What becomes of a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Edit {
    /// Another text to deny with.
    Good,
    /// The same, but its module takes long to come.
    Slow,
    /// The same, but the source says 503 instead of the module, until the policy is mended.
    Unavailable,
    /// The same, but the source says 404 instead of the module, until the policy is mended.
    Missing,
    /// The module is none.
    NotAModule,
    /// The module traps when it starts.
    StartTraps,
    /// The module refuses its settings.
    SettingsRefused,
    /// `rollbackTo` of the newest generation that was Ready.
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

/// How often each kind is drawn, compared with the others.
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
    /// The next one.
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

    /// Whether it takes something away that there are several of: what is away already has to be back then, as with the maintenance
    /// of nodes.
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
            // A container that is just being started is started once more.
            | Self::RestartKubelet => true,
            Self::WhileSourceIsClosed { fault, .. } | Self::WhileSourceIsSlow { fault, .. } => {
                fault.takes_one_of_several()
            }
            _ => false,
        }
    }

    /// Whether calls may break until all is back: somebody who answers them, or passes them on, ends without warning.
    pub(super) fn breaks_calls(&self) -> bool {
        match self {
            Self::KillContainer { program, .. } => *program == "evaluator",
            Self::DeletePod { at_once, .. } => *at_once,
            Self::RestartApiServer { .. } => true,
            Self::WhileSourceIsClosed { fault, .. } | Self::WhileSourceIsSlow { fault, .. } => fault.breaks_calls(),
            _ => false,
        }
    }

    /// Whether pods start because of it, which then need all modules.
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

/// One that can happen while modules cannot be had.
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

/// How long nothing else happens after a fault.
pub(super) fn pause(random: &mut Rng) -> Duration {
    // Half of them meet the one before.
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
