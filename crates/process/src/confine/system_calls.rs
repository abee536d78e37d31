//! The system calls that a process may still make: an allow list, made from what the programs do (see the test that
//! traces them).
//!
//! All other calls fail with EPERM, so that code that can do without a call goes on. That excludes, without naming them: other
//! programs and processes, connections and listeners, mounts in the old way and the new, namespaces, kernel modules, kexec,
//! keys, io_uring, eBPF, and the numbers of other calling conventions (x32, 32-bit).

use std::collections::BTreeMap;
use std::error::Error;

use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter, SeccompRule,
};

/// System calls that are allowed whatever their arguments.
const ALLOWED: &[libc::c_long] = &[
    // Memory. The machine code of policies is mapped, then made executable; memory images of modules are anonymous files.
    libc::SYS_brk,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_memfd_create,
    libc::SYS_mmap,
    libc::SYS_mprotect,
    libc::SYS_mremap,
    libc::SYS_munmap,
    // Threads and signals. `clone` is below; `tgkill` is how a process aborts.
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_futex,
    libc::SYS_getpid,
    libc::SYS_getpriority,
    libc::SYS_gettid,
    libc::SYS_restart_syscall,
    libc::SYS_rseq,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sched_getaffinity,
    libc::SYS_sched_yield,
    libc::SYS_set_robust_list,
    libc::SYS_setpriority,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    // Time and random numbers.
    libc::SYS_clock_getres,
    libc::SYS_clock_gettime,
    libc::SYS_clock_nanosleep,
    libc::SYS_getrandom,
    libc::SYS_gettimeofday,
    libc::SYS_nanosleep,
    // What the process may ask about itself.
    libc::SYS_getcwd,
    libc::SYS_getegid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getrusage,
    libc::SYS_getuid,
    libc::SYS_sysinfo,
    libc::SYS_uname,
    // Files, as far as Landlock allows them.
    libc::SYS_close,
    libc::SYS_copy_file_range,
    libc::SYS_dup,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_fadvise64,
    libc::SYS_fallocate,
    libc::SYS_fchmod,
    libc::SYS_fcntl,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_fstat,
    libc::SYS_fstatfs,
    libc::SYS_fsync,
    libc::SYS_ftruncate,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_mkdirat,
    libc::SYS_newfstatat,
    libc::SYS_openat,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_read,
    libc::SYS_readlinkat,
    libc::SYS_readv,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_statfs,
    libc::SYS_statx,
    libc::SYS_umask,
    libc::SYS_unlinkat,
    libc::SYS_write,
    libc::SYS_writev,
    // Events.
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_eventfd2,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_rm_watch,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    // Connections of clients, on ports that were opened before.
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_getpeername,
    libc::SYS_getsockname,
    libc::SYS_getsockopt,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    // `sendmsg` and `sendto` are below.
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
];

/// Calls of this architecture only: newer architectures have them in another form, and C libraries here still use them.
#[cfg(target_arch = "x86_64")]
const ALLOWED_HERE: &[libc::c_long] = &[
    libc::SYS_access,
    libc::SYS_epoll_wait,
    libc::SYS_getdents,
    libc::SYS_lstat,
    libc::SYS_mkdir,
    libc::SYS_open,
    libc::SYS_poll,
    libc::SYS_readlink,
    libc::SYS_rename,
    libc::SYS_rmdir,
    libc::SYS_stat,
    libc::SYS_time,
    libc::SYS_unlink,
];
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_HERE: &[libc::c_long] = &[];

/// Asks `/proc/self/pagemap`, which was opened before, for pages that were written: `_IOWR('f', 16, struct pm_scan_arg)` of the
/// kernel's `linux/fs.h`. It reads about the memory of this process only, and can change nothing but the tracking of writes.
const PAGEMAP_SCAN: libc::c_ulong = 0xc060_6610;

/// Binds the calling thread, and those it starts from now on, to the list.
///
/// # Errors
/// When the kernel does not accept the filter.
pub(super) fn restrict() -> Result<(), Box<dyn Error>> {
    for program in programs()? {
        seccompiler::apply_filter(&program)?;
    }
    Ok(())
}

/// The filters in the order in which they are applied. The kernel runs all of them, and the strictest answer applies.
fn programs() -> Result<[BpfProgram; 2], Box<dyn Error>> {
    Ok([without_clone3()?, only_allowed()?])
}

/// Answers `clone3` like a kernel that does not have it. The flags of `clone3` are in memory, where no filter can look;
/// and only with this answer does a C library start threads by `clone` instead.
fn without_clone3() -> Result<BpfProgram, Box<dyn Error>> {
    let rules = BTreeMap::from([(libc::SYS_clone3, Vec::new())]);
    program(rules, SeccompAction::Allow, SeccompAction::Errno(u32::try_from(libc::ENOSYS)?))
}

fn only_allowed() -> Result<BpfProgram, Box<dyn Error>> {
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> =
        ALLOWED.iter().chain(ALLOWED_HERE).map(|call| (*call, Vec::new())).collect();
    // The other filter decides about it.
    rules.insert(libc::SYS_clone3, Vec::new());
    let thread = u64::try_from(libc::CLONE_THREAD | libc::CLONE_VM | libc::CLONE_SIGHAND)?;
    rules.insert(libc::SYS_clone, vec![argument(0, SeccompCmpArgLen::Qword, SeccompCmpOp::MaskedEq(thread), thread)?]);
    // Socket pairs and sockets that stay on this machine; Landlock decides which of them can be reached.
    let unix = u64::try_from(libc::AF_UNIX)?;
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        rules.insert(call, vec![argument(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, unix)?]);
    }
    // Not with the flag that makes a TCP socket connect while it sends: a listener that was shut down would do.
    let fast_open = u64::try_from(libc::MSG_FASTOPEN)?;
    for (call, flags) in [(libc::SYS_sendto, 3), (libc::SYS_sendmsg, 2)] {
        let without = argument(flags, SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(fast_open), 0)?;
        rules.insert(call, vec![without]);
    }
    // Limits of this process only.
    rules.insert(libc::SYS_prlimit64, vec![argument(0, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, 0)?]);
    let any_of = |index, values: &[u64]| -> Result<Vec<SeccompRule>, Box<dyn Error>> {
        values.iter().map(|value| argument(index, SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, *value)).collect()
    };
    // Setting the names of threads and of memory.
    let names =
        [libc::PR_SET_NAME, libc::PR_GET_NAME, libc::PR_SET_VMA].map(|name| u64::try_from(name).unwrap_or(u64::MAX));
    rules.insert(libc::SYS_prctl, any_of(0, &names)?);
    // Non-blocking, close on exec, the number of bytes to read, whether it is a terminal, and which pages of its own memory were
    // written.
    let questions = [libc::FIONBIO, libc::FIOCLEX, libc::FIONREAD, libc::TCGETS, PAGEMAP_SCAN];
    rules.insert(libc::SYS_ioctl, any_of(1, &questions)?);
    program(rules, SeccompAction::Errno(u32::try_from(libc::EPERM)?), SeccompAction::Allow)
}

fn argument(
    index: u8,
    length: SeccompCmpArgLen,
    comparison: SeccompCmpOp,
    value: u64,
) -> Result<SeccompRule, Box<dyn Error>> {
    Ok(SeccompRule::new(vec![SeccompCondition::new(index, length, comparison, value)?])?)
}

fn program(
    rules: BTreeMap<i64, Vec<SeccompRule>>,
    otherwise: SeccompAction,
    matched: SeccompAction,
) -> Result<BpfProgram, Box<dyn Error>> {
    let filter = SeccompFilter::new(rules, otherwise, matched, std::env::consts::ARCH.try_into()?)?;
    Ok(filter.try_into()?)
}

#[cfg(test)]
mod tests;
