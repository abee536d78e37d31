use std::fmt::Write as _;
use std::process::{Command, Stdio};

use super::*;

/// The bit that turns an x86-64 number into one of x32, for which the kernel runs the same code.
const X32: i64 = 0x4000_0000;
const EPERM: u32 = 1;
const ENOSYS: u32 = 38;
const ENOTSOCK: u32 = 88;

/// The answer of a filter to a system call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Answer {
    Allowed,
    Refused(u32),
    Killed,
}

/// Runs a filter as the kernel does. It knows the instructions that seccompiler writes, on the number and the arguments of
/// a call.
fn run(program: &BpfProgram, architecture: u32, call: i64, arguments: [u64; 6]) -> Answer {
    let mut data = [0_u32; 16];
    data[0] = u32::try_from(call).expect("a number of a system call");
    data[1] = architecture;
    for (place, argument) in arguments.iter().enumerate() {
        data[4 + 2 * place] = u32::try_from(argument & 0xffff_ffff).expect("it is masked");
        data[5 + 2 * place] = u32::try_from(argument >> 32).expect("it is shifted");
    }
    let (mut at, mut value) = (0_usize, 0_u32);
    loop {
        let instruction = &program[at];
        at += 1;
        let jump = |is_true: bool| usize::from(if is_true { instruction.jt } else { instruction.jf });
        match u32::from(instruction.code) {
            // BPF_LD | BPF_W | BPF_ABS
            0x20 => value = data[instruction.k as usize / 4],
            // BPF_ALU | BPF_AND | BPF_K
            0x54 => value &= instruction.k,
            // BPF_JMP with JA, JEQ, JGT, JGE
            0x05 => at += instruction.k as usize,
            0x15 => at += jump(value == instruction.k),
            0x25 => at += jump(value > instruction.k),
            0x35 => at += jump(value >= instruction.k),
            // BPF_RET | BPF_K
            0x06 => {
                return match instruction.k & 0xffff_0000 {
                    0x7fff_0000 => Answer::Allowed,
                    0x0005_0000 => Answer::Refused(instruction.k & 0xffff),
                    _ => Answer::Killed,
                };
            }
            code => panic!("instruction {code:#x} is not known here"),
        }
    }
}

#[cfg(target_arch = "x86_64")]
const HERE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const HERE: u32 = 0xc000_00b7;

/// The strictest answer of all filters.
fn answer(call: i64, arguments: [u64; 6]) -> Answer {
    let answers = programs().expect("they compile").map(|program| run(&program, HERE, call, arguments));
    *answers.iter().find(|answer| **answer != Answer::Allowed).unwrap_or(&Answer::Allowed)
}

fn with(first: i32, second: u64) -> [u64; 6] {
    [u64::try_from(first).expect("a flag"), second, 0, 0, 0, 0]
}

#[test]
fn what_is_not_on_the_list_is_refused_whatever_its_arguments() {
    let conditional = [
        libc::SYS_clone,
        libc::SYS_clone3,
        libc::SYS_socket,
        libc::SYS_socketpair,
        libc::SYS_prlimit64,
        libc::SYS_prctl,
        libc::SYS_ioctl,
        libc::SYS_sendto,
        libc::SYS_sendmsg,
    ];
    let refused = |call: i64| {
        for arguments in [[0; 6], [u64::MAX; 6], [1; 6]] {
            assert_eq!(answer(call, arguments), Answer::Refused(EPERM), "{call} with {arguments:?}");
        }
    };
    let listed: Vec<i64> = ALLOWED.iter().chain(ALLOWED_HERE).copied().collect();
    for call in (0..1024).filter(|call| !conditional.contains(call)) {
        if listed.contains(&call) {
            assert_eq!(answer(call, [0; 6]), Answer::Allowed, "{call}");
        } else {
            refused(call);
        }
        // Refused even if the call itself is allowed: x32 has another number.
        refused(call | X32);
    }
}

#[test]
fn calls_of_another_architecture_end_the_process() {
    const I386: u32 = 0x4000_0003;
    let [_, list] = programs().expect("they compile");
    assert_eq!(run(&list, I386, libc::SYS_read, [0; 6]), Answer::Killed);
}

#[test]
fn threads_are_made_and_processes_are_not() {
    let thread = libc::CLONE_VM | libc::CLONE_FS | libc::CLONE_FILES | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    assert_eq!(answer(libc::SYS_clone, with(thread | libc::CLONE_SYSVSEM | libc::CLONE_SETTLS, 0)), Answer::Allowed);
    for flags in [libc::SIGCHLD, libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD, libc::CLONE_VM] {
        assert_eq!(answer(libc::SYS_clone, with(flags, 0)), Answer::Refused(EPERM), "{flags:#x}");
    }
    // The C library then uses `clone`.
    assert_eq!(answer(libc::SYS_clone3, [0; 6]), Answer::Refused(ENOSYS));
}

#[test]
fn arguments_decide_where_they_must() {
    for call in [libc::SYS_socket, libc::SYS_socketpair] {
        assert_eq!(answer(call, with(libc::AF_UNIX, 1)), Answer::Allowed);
        for family in [libc::AF_INET, libc::AF_INET6, libc::AF_NETLINK, libc::AF_PACKET, libc::AF_VSOCK, libc::AF_ALG] {
            assert_eq!(answer(call, with(family, 1)), Answer::Refused(EPERM), "{family}");
        }
    }
    assert_eq!(answer(libc::SYS_ioctl, [1, libc::FIONBIO, 0, 0, 0, 0]), Answer::Allowed);
    assert_eq!(answer(libc::SYS_ioctl, [9, PAGEMAP_SCAN, 0, 0, 0, 0]), Answer::Allowed);
    assert_eq!(answer(libc::SYS_ioctl, [0, libc::TIOCSTI, 0, 0, 0, 0]), Answer::Refused(EPERM));
    assert_eq!(answer(libc::SYS_prctl, with(libc::PR_SET_NAME, 0)), Answer::Allowed);
    assert_eq!(answer(libc::SYS_prctl, with(libc::PR_SET_DUMPABLE, 1)), Answer::Refused(EPERM));
    for (flags, allowed) in [
        (0, Answer::Allowed),
        (libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT | libc::MSG_MORE, Answer::Allowed),
        (libc::MSG_FASTOPEN, Answer::Refused(EPERM)),
        (libc::MSG_FASTOPEN | libc::MSG_NOSIGNAL, Answer::Refused(EPERM)),
    ] {
        // The kernel does not look at the upper half.
        for upper in [0, u64::from(u32::MAX) << 32] {
            let flags = upper | u64::try_from(flags).expect("a flag");
            assert_eq!(answer(libc::SYS_sendto, [7, 0, 0, flags, 0, 0]), allowed, "{flags:#x}");
            assert_eq!(answer(libc::SYS_sendmsg, [7, 0, flags, 0, 0, 0]), allowed, "{flags:#x}");
        }
    }
    assert_eq!(answer(libc::SYS_prlimit64, with(0, 7)), Answer::Allowed);
    assert_eq!(answer(libc::SYS_prlimit64, with(1, 7)), Answer::Refused(EPERM));
}

/// Takes the filters from its environment, binds itself to them as [`restrict`] does, and makes each call of its arguments
/// (`name:number,argument,…`). It is a script, because Rust without `unsafe` cannot make a system call by its number.
const SCRIPT: &str = r#"
    my ($prctl, $seccomp) = split /,/, $ENV{CALLS};
    my @filters = map { pack 'H*', $_ } split /,/, $ENV{FILTERS};
    syscall($prctl, 38, 1, 0, 0, 0) == 0 or die "no_new_privs: $!";
    for my $filter (@filters) {
        my $program = pack 'S x![P] P', length($filter) / 8, $filter;
        syscall($seccomp, 1, 0, $program) == 0 or die "seccomp: $!";
    }
    for (@ARGV) {
        my ($name, $call) = split /:/;
        my ($number, @arguments) = map { 0 + $_ } split /,/, $call;
        my $got = syscall($number, @arguments, (0) x (6 - @arguments));
        printf "%s %d\n", $name, $got < 0 ? 0 + $! : 0;
    }
"#;

/// A part of row Z19: asks the kernel itself.
#[test]
fn fault_z19_the_kernel_refuses_what_is_not_on_the_list() {
    if Command::new("perl").arg("-v").output().is_err() {
        portcullis_testkit::skip("there is no perl here to make system calls by their numbers");
        return;
    }
    let filters = programs().expect("they compile").map(|program| {
        program.iter().fold(String::new(), |mut text, instruction| {
            let [low, high] = instruction.code.to_ne_bytes();
            for byte in [low, high, instruction.jt, instruction.jf].into_iter().chain(instruction.k.to_ne_bytes()) {
                write!(text, "{byte:02x}").expect("a text takes all");
            }
            text
        })
    });
    let refused = [
        ("execve", libc::SYS_execve),
        ("connect", libc::SYS_connect),
        ("bind", libc::SYS_bind),
        ("listen", libc::SYS_listen),
        ("ptrace", libc::SYS_ptrace),
        ("mount", libc::SYS_mount),
        ("fsopen", libc::SYS_fsopen),
        ("open_tree", libc::SYS_open_tree),
        ("move_mount", libc::SYS_move_mount),
        ("mount_setattr", libc::SYS_mount_setattr),
        ("unshare", libc::SYS_unshare),
        ("setns", libc::SYS_setns),
        ("kexec_load", libc::SYS_kexec_load),
        ("finit_module", libc::SYS_finit_module),
        ("bpf", libc::SYS_bpf),
        ("keyctl", libc::SYS_keyctl),
        ("userfaultfd", libc::SYS_userfaultfd),
        ("pidfd_getfd", libc::SYS_pidfd_getfd),
        ("io_uring_setup", libc::SYS_io_uring_setup),
        ("io_uring_enter", libc::SYS_io_uring_enter),
        ("openat2", libc::SYS_openat2),
        ("clone_a_process", libc::SYS_clone),
        ("read_in_x32", libc::SYS_read | X32),
        ("execve_in_x32", 520 | X32),
    ];
    // Neither connects, as the kernel would for a TCP socket; without the flag it only says that this is no socket.
    let fast_open = libc::MSG_FASTOPEN;
    let connecting = [
        format!("sendto_that_connects:{},0,0,0,{fast_open}", libc::SYS_sendto),
        format!("sendmsg_that_connects:{},0,0,{fast_open}", libc::SYS_sendmsg),
        format!("sendto:{},0,0,0,0", libc::SYS_sendto),
    ];
    let call = |(name, number): (&str, i64)| format!("{name}:{number}");
    let output = Command::new("perl")
        .args(["-e", SCRIPT])
        .args(refused.map(call))
        .args(connecting)
        .args([call(("clone3", libc::SYS_clone3)), call(("getpid", libc::SYS_getpid))])
        .stdin(Stdio::null())
        .env("CALLS", format!("{},{}", libc::SYS_prctl, libc::SYS_seccomp))
        .env("FILTERS", filters.join(","))
        .output()
        .expect("perl runs");
    let told = String::from_utf8_lossy(&output.stdout);
    let mut expected: Vec<String> = refused.iter().map(|(name, _)| format!("{name} {EPERM}")).collect();
    expected.extend(["sendto", "sendmsg"].map(|name| format!("{name}_that_connects {EPERM}")));
    expected.extend([format!("sendto {ENOTSOCK}"), format!("clone3 {ENOSYS}"), "getpid 0".to_owned()]);
    assert_eq!(told.lines().collect::<Vec<_>>(), expected, "{}", String::from_utf8_lossy(&output.stderr));
}
