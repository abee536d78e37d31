//! The part of `wasi_snapshot_preview1` that policies need: clocks, random numbers, arguments, the three streams, sleep and
//! exit. Every other function is there, since compilers import it, and answers that it has nothing.
//!
//! An implementation of its own: nothing here can reach a file, a socket or the environment, standard input must be able to
//! report its end and later have more (policy-abi section 6), and every buffer has a limit.

use std::collections::VecDeque;
use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bytes::{Buf as _, Bytes};
use wasmtime::{Caller, Linker, Trap};

use super::memory::{OutOfBounds, parts, read_u32, slice, slice_mut, write, write_u32};
use super::{CallError, Context, Host, MAX_REPLY};

const MODULE: &str = "wasi_snapshot_preview1";
/// Bytes of standard error that are kept; what follows is dropped.
const MAX_STDERR: usize = 64 << 10;
/// Buffers in one read or write.
const MAX_BUFFERS: u32 = 1024;
/// Random bytes in one call: they are made while nobody looks at the clock.
const MAX_RANDOM: usize = 1 << 20;
/// Subscriptions in one poll.
const MAX_SUBSCRIPTIONS: u32 = 1024;

// Numbers of the interface.
const SUCCESS: i32 = 0;
const BADF: i32 = 8;
const FAULT: i32 = 21;
const INVAL: i32 = 28;
const NOSYS: i32 = 52;
const NOTSUP: i32 = 58;
const SPIPE: i32 = 70;
const CLOCK_REALTIME: i32 = 0;
const CLOCK_MONOTONIC: i32 = 1;
const RIGHT_READ: u64 = 1 << 1;
const RIGHT_WRITE: u64 = 1 << 6;
const RIGHT_POLL: u64 = 1 << 27;
const SUBSCRIPTION_SIZE: usize = 48;
const EVENT_SIZE: usize = 32;

/// Arguments and streams of one instance.
#[derive(Default)]
pub(super) struct Streams {
    arguments: Vec<&'static str>,
    stdin: VecDeque<Bytes>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Whether standard output is the reply; else it is one more log.
    replies: bool,
}

impl Streams {
    /// Makes the instance a command with one argument and an input.
    pub(super) fn command(&mut self, argument: &'static str, input: Bytes) {
        self.arguments = vec!["policy.wasm", argument];
        self.replies = true;
        self.push_stdin(input);
    }

    /// Adds to the end of standard input.
    pub(super) fn push_stdin(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.stdin.push_back(bytes);
        }
    }

    /// What was written to standard output.
    pub(super) fn take_stdout(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stdout)
    }

    /// The beginning of what was written to standard error.
    pub(super) fn stderr(&self) -> &[u8] {
        &self.stderr
    }

    /// Logs what was written to standard error.
    pub(super) fn log_rest(&mut self, host: &Host) {
        host.log.stderr(&std::mem::take(&mut self.stderr));
    }

    /// Takes what a guest writes to descriptor `fd`.
    fn write(&mut self, fd: i32, bytes: &[u8]) -> Result<(), CallError> {
        if fd == 1 && self.replies {
            if bytes.len() > MAX_REPLY - self.stdout.len() {
                return Err(CallError::ReplyTooLarge);
            }
            self.stdout.extend_from_slice(bytes);
        } else {
            let room = MAX_STDERR - self.stderr.len();
            self.stderr.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
        Ok(())
    }

    /// Moves what there is of standard input into `buffer`; nothing means its end, for now.
    fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(front) = self.stdin.front_mut().filter(|_| done < buffer.len()) {
            let n = front.len().min(buffer.len() - done);
            front.copy_to_slice(&mut buffer[done..done + n]);
            done += n;
            if front.is_empty() {
                self.stdin.pop_front();
            }
        }
        done
    }
}

/// Why a function does not succeed: a number for the guest, or the end of the call.
enum Failure {
    Errno(i32),
    End(wasmtime::Error),
}

impl From<OutOfBounds> for Failure {
    fn from(_: OutOfBounds) -> Self {
        Self::Errno(FAULT)
    }
}

fn errno(result: Result<(), Failure>) -> wasmtime::Result<i32> {
    match result {
        Ok(()) => Ok(SUCCESS),
        Err(Failure::Errno(errno)) => Ok(errno),
        Err(Failure::End(error)) => Err(error),
    }
}

/// Defines all functions of the interface.
pub(super) fn add_to_linker(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    process(linker)?;
    streams(linker)?;
    nothing(linker)
}

/// Arguments, environment, clocks, random numbers, sleep and exit.
fn process(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "args_sizes_get", |mut caller: Caller<'_, Context>, count: i32, size: i32| {
        let (memory, context) = parts(&mut caller)?;
        let arguments = &context.wasi.arguments;
        let bytes = arguments.iter().map(|argument| argument.len() + 1).sum();
        errno(write_size(memory, count, arguments.len()).and_then(|()| write_size(memory, size, bytes)))
    })?;
    linker.func_wrap(MODULE, "args_get", |mut caller: Caller<'_, Context>, pointers: i32, buffer: i32| {
        let (memory, context) = parts(&mut caller)?;
        errno(args_get(memory, &context.wasi.arguments, pointers, buffer))
    })?;
    linker.func_wrap(MODULE, "environ_sizes_get", |mut caller: Caller<'_, Context>, count: i32, size: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(write_size(memory, count, 0).and_then(|()| write_size(memory, size, 0)))
    })?;
    linker.func_wrap(MODULE, "environ_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(MODULE, "clock_res_get", |mut caller: Caller<'_, Context>, clock: i32, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(now(clock).and_then(|_| Ok(write(memory, ptr, &1_u64.to_le_bytes())?)))
    })?;
    linker.func_wrap(MODULE, "clock_time_get", |mut caller: Caller<'_, Context>, clock: i32, _: i64, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(now(clock).and_then(|time| Ok(write(memory, ptr, &nanoseconds(time).to_le_bytes())?)))
    })?;
    linker.func_wrap(MODULE, "random_get", |mut caller: Caller<'_, Context>, ptr: i32, len: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(random_get(memory, ptr, len))
    })?;
    linker.func_wrap(MODULE, "sched_yield", || SUCCESS)?;
    linker.func_wrap(MODULE, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(CallError::Exit(code)))
    })?;
    linker.func_wrap_async(
        MODULE,
        "poll_oneoff",
        |mut caller: Caller<'_, Context>, (input, output, count, events): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (memory, context) = parts(&mut caller)?;
                let poll = match Poll::read(memory, input, count.cast_unsigned()) {
                    Ok(poll) => poll,
                    Err(failure) => return errno(Err(failure)),
                };
                if let Some(wait) = poll.wait() {
                    // Waiting ends with the deadline, and with the call when its caller hangs up.
                    let left = context.deadline.saturating_duration_since(Instant::now());
                    tokio::time::sleep(wait.min(left)).await;
                    if wait >= left {
                        return Err(Trap::Interrupt.into());
                    }
                }
                let (memory, _) = parts(&mut caller)?;
                errno(poll.write(memory, output, events))
            })
        },
    )?;
    Ok(())
}

/// The three streams.
fn streams(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    linker.func_wrap(
        MODULE,
        "fd_write",
        |mut caller: Caller<'_, Context>, fd: i32, buffers: i32, count: i32, written: i32| {
            let (memory, context) = parts(&mut caller)?;
            errno(fd_write(memory, &mut context.wasi, fd, (buffers, count), written))
        },
    )?;
    linker.func_wrap(
        MODULE,
        "fd_read",
        |mut caller: Caller<'_, Context>, fd: i32, buffers: i32, count: i32, read: i32| {
            let (memory, context) = parts(&mut caller)?;
            errno(fd_read(memory, &mut context.wasi, fd, (buffers, count), read))
        },
    )?;
    linker.func_wrap(MODULE, "fd_fdstat_get", |mut caller: Caller<'_, Context>, fd: i32, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        let rights = match fd {
            0 => RIGHT_READ | RIGHT_POLL,
            1 | 2 => RIGHT_WRITE | RIGHT_POLL,
            _ => return Ok(BADF),
        };
        // File type "unknown" and no flags, then the rights of the descriptor and of what is opened from it.
        let mut stat = [0; 24];
        stat[8..16].copy_from_slice(&rights.to_le_bytes());
        errno(write(memory, ptr, &stat).map_err(Failure::from))
    })?;
    linker.func_wrap(MODULE, "fd_filestat_get", |mut caller: Caller<'_, Context>, fd: i32, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        if !is_stream(fd) {
            return Ok(BADF);
        }
        errno(write(memory, ptr, &[0; 64]).map_err(Failure::from))
    })?;
    let on_stream = |answer: i32| move |fd: i32| if is_stream(fd) { answer } else { BADF };
    linker.func_wrap(MODULE, "fd_close", on_stream(SUCCESS))?;
    linker.func_wrap(MODULE, "fd_sync", on_stream(SUCCESS))?;
    linker.func_wrap(MODULE, "fd_datasync", on_stream(SUCCESS))?;
    linker.func_wrap(MODULE, "fd_fdstat_set_flags", move |fd: i32, _: i32| on_stream(SUCCESS)(fd))?;
    linker.func_wrap(MODULE, "fd_seek", move |fd: i32, _: i64, _: i32, _: i32| on_stream(SPIPE)(fd))?;
    linker.func_wrap(MODULE, "fd_tell", move |fd: i32, _: i32| on_stream(SPIPE)(fd))?;
    Ok(())
}

/// Files, folders, sockets and signals: there are none. The descriptors after the streams do not exist, which is how a
/// guest learns that nothing was opened for it.
fn nothing(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    linker.func_wrap(MODULE, "fd_advise", |_: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_allocate", |_: i32, _: i64, _: i64| BADF)?;
    linker.func_wrap(MODULE, "fd_fdstat_set_rights", |_: i32, _: i64, _: i64| BADF)?;
    linker.func_wrap(MODULE, "fd_filestat_set_size", |_: i32, _: i64| BADF)?;
    linker.func_wrap(MODULE, "fd_filestat_set_times", |_: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_pread", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_prestat_get", |_: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_prestat_dir_name", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_pwrite", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_readdir", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "fd_renumber", |_: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_create_directory", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_filestat_get", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker
        .func_wrap(MODULE, "path_filestat_set_times", |_: i32, _: i32, _: i32, _: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_link", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(
        MODULE,
        "path_open",
        |_: i32, _: i32, _: i32, _: i32, _: i32, _: i64, _: i64, _: i32, _: i32| BADF,
    )?;
    linker.func_wrap(MODULE, "path_readlink", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_remove_directory", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_rename", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_symlink", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "path_unlink_file", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "sock_accept", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "sock_recv", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "sock_send", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "sock_shutdown", |_: i32, _: i32| BADF)?;
    linker.func_wrap(MODULE, "proc_raise", |_: i32| NOSYS)?;
    Ok(())
}

fn is_stream(fd: i32) -> bool {
    matches!(fd, 0..=2)
}

fn write_size(memory: &mut [u8], ptr: i32, value: usize) -> Result<(), Failure> {
    Ok(write_u32(memory, ptr, u32::try_from(value).unwrap_or(u32::MAX))?)
}

fn args_get(memory: &mut [u8], arguments: &[&str], pointers: i32, buffer: i32) -> Result<(), Failure> {
    let (mut pointer, mut at) = (pointers, buffer);
    for argument in arguments {
        write_u32(memory, pointer, at.cast_unsigned())?;
        let len = i32::try_from(argument.len()).unwrap_or(i32::MAX);
        write(memory, at, argument.as_bytes())?;
        write(memory, at.wrapping_add(len), b"\0")?;
        pointer = pointer.wrapping_add(4);
        at = at.wrapping_add(len).wrapping_add(1);
    }
    Ok(())
}

/// The time of a clock. The monotonic one counts from the start of this program, and from one second on: guests take zero
/// for "no clock".
fn now(clock: i32) -> Result<Duration, Failure> {
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    match clock {
        CLOCK_REALTIME => Ok(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()),
        CLOCK_MONOTONIC => Ok(START.elapsed() + Duration::from_secs(1)),
        // Processor time would tell a guest about its neighbours.
        _ => Err(Failure::Errno(INVAL)),
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

fn random_get(memory: &mut [u8], ptr: i32, len: i32) -> Result<(), Failure> {
    let len = super::memory::index(len);
    if len > MAX_RANDOM {
        return Err(Failure::Errno(INVAL));
    }
    let mut buffer = slice_mut(memory, ptr, len)?;
    while !buffer.is_empty() {
        let done = rustix::rand::getrandom(&mut *buffer, rustix::rand::GetRandomFlags::empty())
            .map_err(|_| Failure::Errno(NOTSUP))?;
        buffer = &mut buffer[done..];
    }
    Ok(())
}

fn fd_write(
    memory: &mut [u8],
    streams: &mut Streams,
    fd: i32,
    (buffers, count): (i32, i32),
    written: i32,
) -> Result<(), Failure> {
    if !matches!(fd, 1 | 2) {
        return Err(Failure::Errno(BADF));
    }
    let mut total = 0_u32;
    for at in vectors(buffers, count)? {
        let (ptr, len) = (read_u32(memory, at, 0)?, read_u32(memory, at, 4)?);
        let bytes = slice(memory, ptr.cast_signed(), len.cast_signed())?;
        streams.write(fd, bytes).map_err(|error| Failure::End(wasmtime::Error::new(error)))?;
        total = total.saturating_add(len);
    }
    Ok(write_u32(memory, written, total)?)
}

fn fd_read(
    memory: &mut [u8],
    streams: &mut Streams,
    fd: i32,
    (buffers, count): (i32, i32),
    read: i32,
) -> Result<(), Failure> {
    if fd != 0 {
        return Err(Failure::Errno(BADF));
    }
    let mut total = 0;
    for at in vectors(buffers, count)? {
        let (ptr, len) = (read_u32(memory, at, 0)?, read_u32(memory, at, 4)?);
        let len = super::memory::index(len.cast_signed());
        total += streams.read(slice_mut(memory, ptr.cast_signed(), len)?);
    }
    write_size(memory, read, total)
}

/// The addresses of `count` pairs of pointer and length.
fn vectors(buffers: i32, count: i32) -> Result<impl Iterator<Item = i32>, Failure> {
    let count = count.cast_unsigned();
    if count > MAX_BUFFERS {
        return Err(Failure::Errno(INVAL));
    }
    Ok((0..count.cast_signed()).map(move |i| buffers.wrapping_add(i * 8)))
}

/// The subscriptions of a poll, as far as they matter: time and streams, and streams are always ready.
struct Poll {
    subscriptions: Vec<Subscription>,
}

struct Subscription {
    userdata: [u8; 8],
    kind: u8,
    /// Nothing for a stream.
    wait: Option<Duration>,
    errno: i32,
}

impl Poll {
    fn read(memory: &[u8], input: i32, count: u32) -> Result<Self, Failure> {
        if count == 0 || count > MAX_SUBSCRIPTIONS {
            return Err(Failure::Errno(INVAL));
        }
        let len = SUBSCRIPTION_SIZE * usize::try_from(count).unwrap_or_default();
        let bytes = slice(memory, input, i32::try_from(len).unwrap_or(i32::MAX))?;
        let subscriptions = bytes.chunks_exact(SUBSCRIPTION_SIZE).map(Subscription::read).collect();
        Ok(Self { subscriptions })
    }

    /// How long nothing happens; nothing when something is ready already.
    fn wait(&self) -> Option<Duration> {
        let waits: Option<Vec<_>> = self.subscriptions.iter().map(|subscription| subscription.wait).collect();
        waits?.into_iter().min().filter(|wait| !wait.is_zero())
    }

    /// Writes the events that have happened after [`Poll::wait`].
    fn write(&self, memory: &mut [u8], output: i32, events: i32) -> Result<(), Failure> {
        let waited = self.wait().unwrap_or_default();
        let ready = self.subscriptions.iter().filter(|s| s.wait.is_none_or(|wait| wait <= waited));
        let mut written = 0;
        for (i, subscription) in ready.enumerate() {
            let mut event = [0; EVENT_SIZE];
            event[..8].copy_from_slice(&subscription.userdata);
            event[8..10].copy_from_slice(&subscription.errno.to_le_bytes()[..2]);
            event[10] = subscription.kind;
            let at = output.wrapping_add(i32::try_from(i * EVENT_SIZE).unwrap_or(i32::MAX));
            write(memory, at, &event)?;
            written = i + 1;
        }
        write_size(memory, events, written)
    }
}

impl Subscription {
    fn read(bytes: &[u8]) -> Self {
        let number = |at: usize| {
            let mut number = [0; 8];
            number.copy_from_slice(&bytes[at..at + 8]);
            number
        };
        let small = |at: usize| i32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let (userdata, kind) = (number(0), bytes[8]);
        if kind != 0 {
            let errno = if is_stream(small(16)) { SUCCESS } else { BADF };
            return Self { userdata, kind, wait: None, errno };
        }
        let (clock, timeout, is_absolute) =
            (small(16), Duration::from_nanos(u64::from_le_bytes(number(24))), bytes[40] & 1 == 1);
        match now(clock) {
            Ok(now) if is_absolute => Self { userdata, kind, wait: Some(timeout.saturating_sub(now)), errno: SUCCESS },
            Ok(_) => Self { userdata, kind, wait: Some(timeout), errno: SUCCESS },
            Err(_) => Self { userdata, kind, wait: None, errno: INVAL },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_input_ends_and_goes_on() {
        let mut streams = Streams::default();
        streams.push_stdin(Bytes::from_static(b"abc"));
        streams.push_stdin(Bytes::from_static(b"de"));
        let mut buffer = [0; 4];
        assert_eq!((streams.read(&mut buffer), &buffer), (4, b"abcd"));
        assert_eq!(streams.read(&mut buffer), 1);
        assert_eq!(streams.read(&mut buffer), 0);
        streams.push_stdin(Bytes::from_static(b"more"));
        assert_eq!((streams.read(&mut buffer), &buffer), (4, b"more"));
    }

    #[test]
    fn output_has_a_limit_and_errors_are_cut() {
        let mut streams = Streams::default();
        streams.command("validate", Bytes::new());
        let large = vec![b'x'; MAX_REPLY];
        assert_eq!(streams.write(1, &large), Ok(()));
        assert_eq!(streams.write(1, b"x"), Err(CallError::ReplyTooLarge));
        assert_eq!(streams.write(2, &large), Ok(()));
        assert_eq!(streams.stderr().len(), MAX_STDERR);
    }

    fn clock(id: u8, timeout: u64) -> [u8; SUBSCRIPTION_SIZE] {
        let mut bytes = [0; SUBSCRIPTION_SIZE];
        bytes[0] = 7;
        bytes[16] = id;
        bytes[24..32].copy_from_slice(&timeout.to_le_bytes());
        bytes
    }

    #[test]
    fn a_poll_waits_for_its_earliest_clock() {
        let mut memory = vec![0; 4096];
        memory[..48].copy_from_slice(&clock(1, 5_000_000));
        memory[48..96].copy_from_slice(&clock(1, 2_000_000));
        let Ok(poll) = Poll::read(&memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), Some(Duration::from_millis(2)));
        assert!(poll.write(&mut memory, 1024, 2048).is_ok());
        assert_eq!((memory[1024], read_u32(&memory, 2048, 0)), (7, Ok(1)));
    }

    #[test]
    fn a_stream_in_a_poll_is_ready_at_once() {
        let mut memory = vec![0; 4096];
        memory[..48].copy_from_slice(&clock(1, 5_000_000));
        memory[56] = 1;
        let Ok(poll) = Poll::read(&memory, 0, 2) else { panic!("reads") };
        assert_eq!(poll.wait(), None);
    }

    #[test]
    fn polls_of_nothing_and_of_too_much_are_refused() {
        let memory = vec![0; 4096];
        assert!(matches!(Poll::read(&memory, 0, 0), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(&memory, 0, u32::MAX), Err(Failure::Errno(INVAL))));
        assert!(matches!(Poll::read(&memory, 4000, 4), Err(Failure::Errno(FAULT))));
    }
}
