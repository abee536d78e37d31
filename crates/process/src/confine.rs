//! A process gives up what it will never need: files, connections, other programs.
//!
//! Landlock limits files and TCP, a seccomp filter limits system calls, and no-new-privileges makes both stick. All three
//! bind the calling thread and those it starts later, so [`Confinement::apply`] runs before any other thread exists.

use std::collections::BTreeMap;
use std::path::PathBuf;

use landlock::{
    ABI, Access as _, AccessFs, AccessNet, CompatLevel, Compatible as _, PathBeneath, PathFd, Ruleset,
    RulesetAttr as _, RulesetCreatedAttr as _, RulesetStatus, Scope,
};
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
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
    /// Shuts the process in. What the kernel does not know is left out and told.
    pub fn apply(&self) -> ConfinementReport {
        // Landlock first: the filter refuses nothing that it needs, but the order keeps it that way.
        let landlock = self.landlock().unwrap_or_else(|error| format!("none: {error}"));
        let seccomp = seccomp().map_or_else(|error| format!("none: {error}"), |()| "on".to_owned());
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

/// Refuses, with EPERM: new sockets other than Unix ones, new listeners, other programs, other processes' memory, mounts,
/// namespaces, kernel modules and keys, and io_uring, which would pass by the filter.
fn seccomp() -> Result<(), Box<dyn std::error::Error>> {
    const REFUSED: &[libc::c_long] = &[
        libc::SYS_execve,
        libc::SYS_execveat,
        libc::SYS_bind,
        libc::SYS_listen,
        libc::SYS_ptrace,
        libc::SYS_process_vm_readv,
        libc::SYS_process_vm_writev,
        libc::SYS_pidfd_getfd,
        libc::SYS_open_by_handle_at,
        libc::SYS_mount,
        libc::SYS_umount2,
        libc::SYS_pivot_root,
        libc::SYS_chroot,
        libc::SYS_unshare,
        libc::SYS_setns,
        libc::SYS_bpf,
        libc::SYS_perf_event_open,
        libc::SYS_userfaultfd,
        libc::SYS_add_key,
        libc::SYS_request_key,
        libc::SYS_keyctl,
        libc::SYS_init_module,
        libc::SYS_finit_module,
        libc::SYS_delete_module,
        libc::SYS_kexec_load,
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_enter,
        libc::SYS_io_uring_register,
    ];
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let unix = u64::try_from(libc::AF_UNIX)?;
    let other_than_unix = SeccompCondition::new(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, unix)?;
    rules.insert(libc::SYS_socket, vec![SeccompRule::new(vec![other_than_unix])?]);
    let refusal = SeccompAction::Errno(u32::try_from(libc::EPERM)?);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refusal, std::env::consts::ARCH.try_into()?)?;
    let program: BpfProgram = filter.try_into()?;
    seccompiler::apply_filter(&program)?;
    Ok(())
}
