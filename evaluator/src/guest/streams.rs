//! Arguments and the three streams.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

use crate::guest::{CallError, Host, MAX_REPLY, Parts};

/// The most bytes of standard error that are kept; the rest is counted as a dropped line. They are for the log, which takes no more in a second.
const MAX_STDERR: usize = 64 << 10;
/// The most bytes of host-call replies that wait to be read; a single reply may be longer. A guest reads each one before it asks again, so
/// this is many times what any guest needs.
const MAX_UNREAD: usize = 64 << 10;

/// Arguments and streams of one instance.
#[derive(Default)]
pub(crate) struct Streams {
    pub(super) arguments: Vec<&'static str>,
    /// The part of standard input that comes with the call, in few pieces.
    input: VecDeque<Bytes>,
    /// The replies that follow it. They are kept as bytes rather than pieces, so that a thousand short replies cost no more than their bytes.
    replies: VecDeque<u8>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// How many bytes of standard error were not kept.
    unkept: usize,
    /// Whether standard output is the guest's reply; otherwise it is logged like standard error.
    is_command: bool,
}

impl Streams {
    /// Makes the instance a command with one argument and an input.
    pub(crate) fn command(&mut self, argument: &'static str, input: Parts) {
        self.arguments = vec!["policy.wasm", argument];
        self.is_command = true;
        self.input = input.into_iter().collect();
    }

    /// Adds the reply of a host call to the end of standard input.
    ///
    /// # Errors
    /// When too many bytes have not been read yet.
    pub(crate) fn push_reply(&mut self, reply: &[u8]) -> Result<(), CallError> {
        if !self.replies.is_empty() && self.replies.len() + reply.len() > MAX_UNREAD {
            return Err(CallError::Limit(format!(
                "replies of host calls that the guest did not read grew beyond their limit of {MAX_UNREAD} bytes"
            )));
        }
        self.replies.extend(reply);
        Ok(())
    }

    /// Bytes of replies that wait to be read.
    pub(crate) fn unread(&self) -> usize {
        self.replies.len()
    }

    /// What was written to standard output.
    pub(crate) fn take_stdout(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.stdout)
    }

    /// The beginning of what was written to standard error.
    pub(crate) fn stderr(&self) -> &[u8] {
        &self.stderr
    }

    /// Logs what was written to standard error.
    pub(crate) fn log_rest(&mut self, host: &Host) {
        host.log.stderr(&std::mem::take(&mut self.stderr), std::mem::take(&mut self.unkept));
    }

    /// How many bytes the reply of a command takes, once `more` bytes are written to descriptor `fd`; none if it takes no more than now.
    pub(super) fn grows_to(&self, fd: i32, more: usize) -> Result<Option<usize>, CallError> {
        if fd != 1 || !self.is_command {
            return Ok(None);
        }
        if more > MAX_REPLY - self.stdout.len() {
            return Err(CallError::ReplyTooLarge);
        }
        let length = self.stdout.len() + more;
        // The capacity stays below the limit too.
        Ok((length > self.stdout.capacity()).then(|| (2 * self.stdout.capacity()).clamp(length, MAX_REPLY)))
    }

    /// Takes what a guest writes to descriptor `fd`.
    pub(super) fn write(&mut self, fd: i32, bytes: &[u8]) -> Result<(), CallError> {
        if fd == 1 && self.is_command {
            if let Some(wanted) = self.grows_to(fd, bytes.len())? {
                self.stdout.reserve_exact(wanted - self.stdout.len());
            }
            self.stdout.extend_from_slice(bytes);
        } else {
            let (kept, rest) = bytes.split_at(bytes.len().min(MAX_STDERR - self.stderr.len()));
            self.stderr.extend_from_slice(kept);
            self.unkept = self.unkept.saturating_add(rest.len());
        }
        Ok(())
    }

    /// Moves the available bytes of standard input into `buffer`; 0 means the end of the input, for now.
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
        let mut done = 0;
        while let Some(part) = self.input.front_mut() {
            done += take(part, &mut buffer[done..]);
            if part.has_remaining() {
                return done;
            }
            self.input.pop_front();
        }
        done + take(&mut self.replies, &mut buffer[done..])
    }
}

/// Moves as many bytes as fit from the front of `from`; gives how many.
fn take(from: &mut impl Buf, buffer: &mut [u8]) -> usize {
    let n = from.remaining().min(buffer.len());
    from.copy_to_slice(&mut buffer[..n]);
    n
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_input_ends_and_goes_on() {
        let mut streams = Streams::default();
        streams.command("validate", Parts::whole(Bytes::from_static(b"abc")));
        assert_eq!(streams.push_reply(b"de"), Ok(()));
        let mut buffer = [0; 4];
        assert_eq!((streams.read(&mut buffer), &buffer), (4, b"abcd"));
        assert_eq!(streams.read(&mut buffer), 1);
        assert_eq!(streams.read(&mut buffer), 0);
        assert_eq!(streams.push_reply(b"more"), Ok(()));
        assert_eq!((streams.read(&mut buffer), &buffer), (4, b"more"));
    }

    #[test]
    fn replies_that_are_not_read_have_a_limit_also_when_each_is_tiny() {
        let mut streams = Streams::default();
        streams.command("validate", Parts::whole(vec![b'x'; 1 << 20].into()));
        let taken = (0..).take_while(|_| streams.push_reply(b"x").is_ok()).count();
        assert_eq!(taken, MAX_UNREAD);
        let Err(CallError::Limit(text)) = streams.push_reply(b"x") else { panic!("there is room") };
        assert!(text.contains(&format!("{MAX_UNREAD} bytes")), "{text}");
        assert!(streams.replies.capacity() <= 2 * MAX_UNREAD, "{}", streams.replies.capacity());
        // A guest that reads its replies may ask for ever.
        let mut buffer = vec![0; 2 << 20];
        assert_eq!(streams.read(&mut buffer), (1 << 20) + MAX_UNREAD);
        for _ in 0..10 * MAX_UNREAD {
            assert_eq!(streams.push_reply(b"ab"), Ok(()));
            assert_eq!(streams.read(&mut buffer), 2);
        }
        assert!(streams.replies.capacity() <= 2 * MAX_UNREAD, "{}", streams.replies.capacity());
        // A single reply may be as long as any, and the next one is refused until it is read.
        assert_eq!(streams.push_reply(&buffer[..1 << 20]), Ok(()));
        assert!(streams.push_reply(b"x").is_err());
    }

    #[test]
    fn output_has_a_limit_and_errors_are_cut() {
        let mut streams = Streams::default();
        streams.command("validate", Parts::whole(Bytes::new()));
        let large = vec![b'x'; MAX_REPLY];
        assert_eq!((streams.grows_to(1, 5), streams.grows_to(2, 5)), (Ok(Some(5)), Ok(None)));
        assert_eq!(streams.write(1, &large[1..]), Ok(()));
        assert_eq!((streams.grows_to(1, 0), streams.grows_to(1, 1)), (Ok(None), Ok(Some(MAX_REPLY))));
        assert_eq!(streams.write(1, b"x"), Ok(()));
        assert_eq!(streams.stdout.capacity(), MAX_REPLY);
        assert_eq!(streams.write(1, b"x"), Err(CallError::ReplyTooLarge));
        assert_eq!(streams.write(2, &large), Ok(()));
        assert_eq!((streams.stderr().len(), streams.unkept), (MAX_STDERR, MAX_REPLY - MAX_STDERR));
    }
}
