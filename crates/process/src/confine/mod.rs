//! A process gives up what it will never need: files, connections, other programs.
//!
//! Landlock limits files and TCP, a seccomp filter allows the system calls of a list and no other, and no-new-privileges makes
//! both stick. All three bind the calling thread and those it starts later, so [`Confinement::apply`] runs before any other
//! thread exists.

mod system_calls;

use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus, Scope,
};

/// The newest Landlock that is asked for; an older kernel does what it can.
const LANDLOCK: ABI = ABI::V6;

/// What stays allowed.
#[derive(Debug, Clone, Default)]
pub struct Confinement {
    /// Folders and files that may be read, with all below them. One that does not exist is left out.
    pub read: Vec<PathBuf>,
    /// Folders that may be read and written, with all below them.
    pub write: Vec<PathBuf>,
}

/// What the kernel made of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfinementReport {
    /// `full`, `partial` (an older kernel), or `none` with the cause.
    pub landlock: String,
    /// `on`, or `none` with the cause.
    pub seccomp: String,
}

impl ConfinementReport {
    /// Whether everything is in force.
    pub fn is_full(&self) -> bool {
        self.landlock == "full" && self.seccomp == "on"
    }
}

impl Confinement {
    /// Confines the process. What the kernel does not support is left out, and reported.
    pub fn apply(&self) -> ConfinementReport {
        // Landlock first: the filter allows none of its system calls.
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
