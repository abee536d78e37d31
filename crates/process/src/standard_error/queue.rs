//! The lines that wait to be written, within a limit of bytes.

/// The most bytes of lines that wait or are being written.
pub(super) const ROOM: usize = 1 << 20;
/// The part of it that lines of guests may fill. The rest is for the program's own lines, which are few.
pub(super) const ROOM_OF_GUESTS: usize = ROOM / 2;
/// The memory that is kept for the next lines after a flood.
const KEPT: usize = 64 << 10;

/// Whether the program or a guest wrote a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Speaker {
    /// The program itself.
    Program,
    /// A guest.
    Guest,
}

/// The lines that wait, one after the other, and the number of those for which there was no room.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waiting: Vec<u8>,
    /// The bytes of the batch that is being written.
    writing: usize,
    /// Whether a batch is taken and not done.
    is_busy: bool,
    lost: u64,
}

impl Queue {
    /// Adds a line, or counts it as lost if there is no room. Says whether it was added.
    pub(super) fn push(&mut self, line: &[u8], speaker: Speaker) -> bool {
        let room = match speaker {
            Speaker::Program => ROOM,
            Speaker::Guest => ROOM_OF_GUESTS,
        };
        let has_room = self.waiting.len() + self.writing + line.len() <= room;
        if has_room {
            self.waiting.extend_from_slice(line);
        } else {
            self.lost += 1;
        }
        has_room
    }

    /// Makes all waiting lines the next `batch` to be written.
    pub(super) fn take(&mut self, batch: &mut Vec<u8>) {
        batch.clear();
        batch.shrink_to(KEPT);
        std::mem::swap(&mut self.waiting, batch);
        self.writing = batch.len();
        self.is_busy = true;
    }

    /// Notes that the batch is written, which makes room. Gives the number of lines that were lost since the batch before.
    pub(super) fn written(&mut self) -> u64 {
        self.writing = 0;
        std::mem::take(&mut self.lost)
    }

    /// Notes that nothing more follows from the batch.
    pub(super) fn done(&mut self) {
        self.is_busy = false;
    }

    /// Whether no line waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether all lines are written.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: [u8; 1 << 10] = [b'x'; 1 << 10];

    fn pushed(queue: &mut Queue, speaker: Speaker) -> usize {
        (0..2 * ROOM / LINE.len()).filter(|_| queue.push(&LINE, speaker)).count()
    }

    #[test]
    fn guests_leave_room_for_the_program() {
        let mut queue = Queue::default();
        assert_eq!(pushed(&mut queue, Speaker::Guest), ROOM_OF_GUESTS / LINE.len());
        assert_eq!(pushed(&mut queue, Speaker::Program), (ROOM - ROOM_OF_GUESTS) / LINE.len());
        assert_eq!(queue.written(), 1536 + 1536, "what did not fit");
    }

    #[test]
    fn what_is_being_written_takes_room_until_it_is_written() {
        let (mut queue, mut batch) = (Queue::default(), Vec::new());
        pushed(&mut queue, Speaker::Program);
        queue.take(&mut batch);
        assert_eq!((batch.len(), queue.is_empty(), queue.is_idle()), (ROOM, true, false));
        assert!(!queue.push(b"line\n", Speaker::Program));
        assert!(queue.written() > 0 && !queue.is_idle());
        queue.done();
        assert!(queue.is_idle());
        assert!(queue.push(b"line\n", Speaker::Program));
        queue.take(&mut batch);
        assert_eq!((&*batch, queue.written()), (&b"line\n"[..], 0));
    }
}
