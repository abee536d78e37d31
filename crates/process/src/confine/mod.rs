//! Takes from a process the rights that it will never need: to files, connections and other programs.
//!
//! Landlock limits files and TCP, a seccomp filter allows only the system calls of a list, and no-new-privileges makes both
//! permanent. All three bind the calling thread and those it starts later, so [`Confinement::apply`] runs before any other
//! thread exists.

mod system_calls;

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus, Scope,
};

/// The newest Landlock version that is asked for; an older kernel enforces what it supports.
const LANDLOCK: ABI = ABI::V6;

/// The access that stays allowed.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Folders and files that may be read, with everything below them. A path that does not exist is skipped.
    pub read: Vec<PathBuf>,
    /// Folders that may be read and written, with everything below them.
    pub write: Vec<PathBuf>,
}

/// How much of the confinement the kernel enforces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinementReport {
    /// `full`, `partial` (an older kernel), or `none` with the cause.
    pub landlock: String,
    /// `on`, or `none` with the cause.
    pub seccomp: String,
}

impl ConfinementReport {
    /// Whether the confinement is fully in force.
    pub fn is_full(&self) -> bool {
        self.landlock == "full" && self.seccomp == "on"
    }
}

impl Confinement {
    /// Confines the process. What the kernel does not support is skipped and reported.
    pub fn apply(&self) -> ConfinementReport {
        // Landlock first, because the filter does not allow Landlock's system calls.
        let landlock = self.landlock().unwrap_or_else(|error| format!("none: {error}"));
        let seccomp = system_calls::restrict().map_or_else(|error| format!("none: {error}"), |()| "on".to_owned());
        ConfinementReport { landlock, seccomp }
    }

    fn landlock(&self) -> Result<String, landlock::RulesetError> {
        let mut ruleset = Ruleset::default()
            .set_compatibility(CompatLevel::BestEffort)
            .handle_access(AccessFs::from_all(LANDLOCK))?
            .handle_access(AccessNet::from_all(LANDLOCK))?
            .scope(Scope::from_all(LANDLOCK))?
            .create()?;
        let read = self.read.iter().map(|path| (path, AccessFs::ReadFile | AccessFs::ReadDir));
        let write = self.write.iter().map(|path| (path, AccessFs::from_all(LANDLOCK) & !AccessFs::Execute));
        for (path, access) in read.chain(write) {
            if let Ok(path) = PathFd::new(path) {
                ruleset = ruleset.add_rule(PathBeneath::new(path, access))?;
            }
        }
        Ok(match ruleset.restrict_self()?.ruleset {
            RulesetStatus::FullyEnforced => "full".to_owned(),
            RulesetStatus::PartiallyEnforced => "partial: the kernel knows an older Landlock only".to_owned(),
            RulesetStatus::NotEnforced => "none: the kernel has no Landlock".to_owned(),
        })
    }
}
