//! The part of `wasi_snapshot_preview1`, and of its predecessor `wasi_unstable`, that policies need: clocks, random numbers, arguments, the
//! three streams, sleep and exit. All other functions exist, since compilers import them, and answer that there is nothing.
//!
//! The implementation is our own, because nothing here may reach a file, a socket or the environment, standard input must be able to
//! report its end and later have more (docs/design/policy-abi.md, section 6), and every buffer has a limit.

mod poll;

use std::sync::LazyLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use wasmtime::{Caller, Linker, Trap};

use self::poll::Poll;
use super::linear_memory::{OutOfBounds, index, parts, read_u32, slice, slice_mut, write, write_u32};
use super::streams::Streams;
use super::{CallError, Context};

/// The most buffers in one read or write.
const MAX_BUFFERS: u32 = 1024;
/// The most random bytes in one call: the deadline is not checked while they are made.
const MAX_RANDOM: usize = 1 << 20;

// Numbers that the interface defines.
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

/// A version of the interface. Upstream offers both. The functions are the same, but for the order of `whence` in `fd_seek`, which no stream
/// looks at, and the sizes below.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    /// `wasi_unstable`, which compilers of 2019 import.
    Unstable,
    /// `wasi_snapshot_preview1`.
    Preview1,
}

impl Version {
    /// The name of the module that a guest imports.
    fn module(self) -> &'static str {
        match self {
            Self::Unstable => "wasi_unstable",
            Self::Preview1 => "wasi_snapshot_preview1",
        }
    }

    /// Bytes of what `fd_filestat_get` writes: the number of links had 32 bits and has 64.
    fn filestat_size(self) -> usize {
        match self {
            Self::Unstable => 56,
            Self::Preview1 => 64,
        }
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

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        Self::End(wasmtime::Error::new(error))
    }
}

fn errno(result: Result<(), Failure>) -> wasmtime::Result<i32> {
    match result {
        Ok(()) => Ok(SUCCESS),
        Err(Failure::Errno(errno)) => Ok(errno),
        Err(Failure::End(error)) => Err(error),
    }
}

/// Defines all functions of both versions of the interface.
pub(super) fn add_to_linker(linker: &mut Linker<Context>) -> wasmtime::Result<()> {
    for version in [Version::Unstable, Version::Preview1] {
        process(linker, version)?;
        streams(linker, version)?;
        nothing(linker, version.module())?;
    }
    Ok(())
}

/// Arguments, environment, clocks, random numbers, sleep and exit.
fn process(linker: &mut Linker<Context>, version: Version) -> wasmtime::Result<()> {
    let module = version.module();
    linker.func_wrap(module, "args_sizes_get", |mut caller: Caller<'_, Context>, count: i32, size: i32| {
        let (memory, context) = parts(&mut caller)?;
        let arguments = &context.wasi.arguments;
        let bytes = arguments.iter().map(|argument| argument.len() + 1).sum();
        errno(write_size(memory, count, arguments.len()).and_then(|()| write_size(memory, size, bytes)))
    })?;
    linker.func_wrap(module, "args_get", |mut caller: Caller<'_, Context>, pointers: i32, buffer: i32| {
        let (memory, context) = parts(&mut caller)?;
        errno(args_get(memory, &context.wasi.arguments, pointers, buffer))
    })?;
    linker.func_wrap(module, "environ_sizes_get", |mut caller: Caller<'_, Context>, count: i32, size: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(write_size(memory, count, 0).and_then(|()| write_size(memory, size, 0)))
    })?;
    linker.func_wrap(module, "environ_get", |_: i32, _: i32| SUCCESS)?;
    linker.func_wrap(module, "clock_res_get", |mut caller: Caller<'_, Context>, clock: i32, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(now(clock).and_then(|_| Ok(write(memory, ptr, &1_u64.to_le_bytes())?)))
    })?;
    linker.func_wrap(module, "clock_time_get", |mut caller: Caller<'_, Context>, clock: i32, _: i64, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(now(clock).and_then(|time| Ok(write(memory, ptr, &nanoseconds(time).to_le_bytes())?)))
    })?;
    linker.func_wrap(module, "random_get", |mut caller: Caller<'_, Context>, ptr: i32, len: i32| {
        let (memory, _) = parts(&mut caller)?;
        errno(random_get(memory, ptr, len))
    })?;
    linker.func_wrap(module, "sched_yield", || SUCCESS)?;
    linker.func_wrap(module, "proc_exit", |code: i32| -> wasmtime::Result<()> {
        Err(wasmtime::Error::new(CallError::Exit(code)))
    })?;
    linker.func_wrap_async(
        module,
        "poll_oneoff",
        move |mut caller: Caller<'_, Context>, (input, output, count, events): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (memory, context) = parts(&mut caller)?;
                let poll = match Poll::read(version, memory, input, count.cast_unsigned()) {
                    Ok(poll) => poll,
                    Err(failure) => return errno(Err(failure)),
                };
                if let Some(wait) = poll.wait() {
                    // Waiting ends at the deadline, and when the caller of the guest hangs up, which drops this future.
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
fn streams(linker: &mut Linker<Context>, version: Version) -> wasmtime::Result<()> {
    let module = version.module();
    linker.func_wrap_async(
        module,
        "fd_write",
        |mut caller: Caller<'_, Context>, (fd, buffers, count, written): (i32, i32, i32, i32)| {
            Box::new(async move {
                let (memory, context) = parts(&mut caller)?;
                errno(fd_write(memory, context, fd, (buffers, count), written).await)
            })
        },
    )?;
    linker.func_wrap(
        module,
        "fd_read",
        |mut caller: Caller<'_, Context>, fd: i32, buffers: i32, count: i32, read: i32| {
            let (memory, context) = parts(&mut caller)?;
            errno(fd_read(memory, &mut context.wasi, fd, (buffers, count), read))
        },
    )?;
    linker.func_wrap(module, "fd_fdstat_get", |mut caller: Caller<'_, Context>, fd: i32, ptr: i32| {
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
    linker.func_wrap(module, "fd_filestat_get", move |mut caller: Caller<'_, Context>, fd: i32, ptr: i32| {
        let (memory, _) = parts(&mut caller)?;
        if !is_stream(fd) {
            return Ok(BADF);
        }
        errno(write(memory, ptr, &[0; 64][..version.filestat_size()]).map_err(Failure::from))
    })?;
    let on_stream = |answer: i32| move |fd: i32| if is_stream(fd) { answer } else { BADF };
    linker.func_wrap(module, "fd_close", on_stream(SUCCESS))?;
    linker.func_wrap(module, "fd_sync", on_stream(SUCCESS))?;
    linker.func_wrap(module, "fd_datasync", on_stream(SUCCESS))?;
    linker.func_wrap(module, "fd_fdstat_set_flags", move |fd: i32, _: i32| on_stream(SUCCESS)(fd))?;
    linker.func_wrap(module, "fd_seek", move |fd: i32, _: i64, _: i32, _: i32| on_stream(SPIPE)(fd))?;
    linker.func_wrap(module, "fd_tell", move |fd: i32, _: i32| on_stream(SPIPE)(fd))?;
    Ok(())
}

/// Functions for files, folders, sockets and signals, of which there are none. Descriptors after those of the streams do not exist, which
/// is how a guest learns that nothing was opened for it.
fn nothing(linker: &mut Linker<Context>, module: &str) -> wasmtime::Result<()> {
    linker.func_wrap(module, "fd_advise", |_: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "fd_allocate", |_: i32, _: i64, _: i64| BADF)?;
    linker.func_wrap(module, "fd_fdstat_set_rights", |_: i32, _: i64, _: i64| BADF)?;
    linker.func_wrap(module, "fd_filestat_set_size", |_: i32, _: i64| BADF)?;
    linker.func_wrap(module, "fd_filestat_set_times", |_: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "fd_pread", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "fd_prestat_get", |_: i32, _: i32| BADF)?;
    linker.func_wrap(module, "fd_prestat_dir_name", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "fd_pwrite", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "fd_readdir", |_: i32, _: i32, _: i32, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "fd_renumber", |_: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_create_directory", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_filestat_get", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker
        .func_wrap(module, "path_filestat_set_times", |_: i32, _: i32, _: i32, _: i32, _: i64, _: i64, _: i32| BADF)?;
    linker.func_wrap(module, "path_link", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(
        module,
        "path_open",
        |_: i32, _: i32, _: i32, _: i32, _: i32, _: i64, _: i64, _: i32, _: i32| BADF,
    )?;
    linker.func_wrap(module, "path_readlink", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_remove_directory", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_rename", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_symlink", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "path_unlink_file", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "sock_accept", |_: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "sock_recv", |_: i32, _: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "sock_send", |_: i32, _: i32, _: i32, _: i32, _: i32| BADF)?;
    linker.func_wrap(module, "sock_shutdown", |_: i32, _: i32| BADF)?;
    linker.func_wrap(module, "proc_raise", |_: i32| NOSYS)?;
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
    let len = index(len);
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

async fn fd_write(
    memory: &mut [u8],
    context: &mut Context,
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
        // The memory is taken from the instance's budget before the bytes are copied.
        if let Some(reply) = context.wasi.grows_to(fd, bytes.len())? {
            context.growth.take_copies(reply).await?;
        }
        context.wasi.write(fd, bytes)?;
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
        let len = index(len.cast_signed());
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
