//! Arguments and the three streams.

use std::collections::VecDeque;

use bytes::{Buf as _, Bytes};

use crate::guest::{CallError, Host, MAX_REPLY};

/// Bytes of standard error that are kept; what follows is dropped.
const MAX_STDERR: usize = 64 << 10;

/// Arguments and streams of one instance.
#[derive(Default)]
pub(crate) struct Streams {
    pub(super) arguments: Vec<&'static str>,
    stdin: VecDeque<Bytes>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
    /// Whether standard output is the reply; else it is one more log.
    replies: bool,
}

impl Streams {
    /// Makes the instance a command with one argument and an input.
    pub(crate) fn command(&mut self, argument: &'static str, input: Bytes) {
        self.arguments = vec!["policy.wasm", argument];
        self.replies = true;
        self.push_stdin(input);
    }

    /// Adds to the end of standard input.
    pub(crate) fn push_stdin(&mut self, bytes: Bytes) {
        if !bytes.is_empty() {
            self.stdin.push_back(bytes);
        }
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
        host.log.stderr(&std::mem::take(&mut self.stderr));
    }

    /// Takes what a guest writes to descriptor `fd`.
    pub(super) fn write(&mut self, fd: i32, bytes: &[u8]) -> Result<(), CallError> {
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
    pub(super) fn read(&mut self, buffer: &mut [u8]) -> usize {
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
}
