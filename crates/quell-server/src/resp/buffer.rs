//! Buffers of a RESP connection: small while it is idle, bounded when it is not.

use crate::budget::BudgetShare;

/// First size of a buffer: a dozen commands, and small enough for ten thousand idle connections.
const FIRST: usize = 2 * 1_024;

/// Size up to which the input grows to read faster: a thousand commands per system call.
const BATCH: usize = 64 * 1_024;

/// Bytes that were received and not decoded yet.
#[derive(Debug)]
pub(super) struct Input {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Largest size: the longest frame has to fit.
    most: usize,
    /// Share of the budget beyond the first size.
    share: BudgetShare,
}

impl Input {
    pub(super) fn new(max_frame: usize, share: BudgetShare) -> Self {
        Self {
            bytes: Vec::new(),
            start: 0,
            end: 0,
            most: max_frame.max(BATCH),
            share,
        }
    }

    /// The bytes that were received.
    pub(super) fn filled(&self) -> &[u8] {
        self.bytes.get(self.start..self.end).unwrap_or_default()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Drops `count` bytes from the front.
    pub(super) fn drop_front(&mut self, count: usize) {
        self.start = self.start.saturating_add(count).min(self.end);
        if self.is_empty() {
            self.start = 0;
            self.end = 0;
            if self.bytes.len() > BATCH {
                // The end of a long frame.
                self.shrink();
            }
        }
    }

    /// Room to read into, at least one byte unless the longest frame was received; `None` if the budget
    /// has no more.
    pub(super) fn room(&mut self) -> Option<&mut [u8]> {
        if self.end == self.bytes.len() {
            if self.start > 0 {
                self.bytes.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            } else {
                let size = (self.bytes.len() * 2).clamp(FIRST, self.most);
                if !self.grow(size) {
                    return None;
                }
            }
        }
        Some(self.bytes.get_mut(self.end..).unwrap_or_default())
    }

    /// Notes that `count` bytes were read into the room.
    pub(super) fn read(&mut self, count: usize) {
        self.end = self.end.saturating_add(count).min(self.bytes.len());
        // A full buffer means that there is probably more to read.
        let is_full = self.end == self.bytes.len();
        if is_full && self.start == 0 && self.bytes.len() < BATCH {
            // For speed only: the rest is read even if the buffer cannot grow.
            let _ = self.grow((self.bytes.len() * 2).min(BATCH));
        }
    }

    /// Grows to `size` bytes if the budget has as much.
    fn grow(&mut self, size: usize) -> bool {
        let may_grow = size <= FIRST || self.share.resize(size);
        if may_grow {
            self.bytes
                .reserve_exact(size.saturating_sub(self.bytes.len()));
            self.bytes.resize(size, 0);
        }
        may_grow
    }

    /// Gives memory back that an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
            self.share.resize(0);
        }
    }
}

/// Replies that are not sent yet.
#[derive(Debug)]
pub(super) struct Output {
    pub(super) bytes: Vec<u8>,
    sent: usize,
    /// Share of the budget beyond the first size.
    share: BudgetShare,
}

impl Output {
    pub(super) fn new(share: BudgetShare) -> Self {
        Self {
            bytes: Vec::new(),
            sent: 0,
            share,
        }
    }

    /// Returns true if the buffer is larger than its share.
    pub(super) fn has_outgrown(&self) -> bool {
        let size = self.bytes.capacity();
        size > FIRST && size > self.share.held()
    }

    /// Draws for its present size. To be called after sending as much as possible. Returns whether the
    /// budget has as much.
    pub(super) fn draw_for_size(&mut self) -> bool {
        let large = Some(self.bytes.capacity()).filter(|size| *size > FIRST);
        if self.share.resize(large.unwrap_or_default()) {
            return true;
        }
        // An empty buffer can be given back.
        self.shrink();
        self.is_empty()
    }

    /// The bytes to be sent.
    pub(super) fn unsent(&self) -> &[u8] {
        self.bytes.get(self.sent..).unwrap_or_default()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.unsent().is_empty()
    }

    /// Notes that `count` bytes were sent.
    pub(super) fn sent(&mut self, count: usize) {
        self.sent = self.sent.saturating_add(count);
        if self.is_empty() {
            self.bytes.clear();
            self.sent = 0;
            if self.bytes.capacity() > BATCH {
                self.shrink();
            }
        } else if self.sent >= BATCH {
            // This is rare: only a slow reader leaves so much.
            self.bytes.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// Gives memory back that an idle connection does not need.
    pub(super) fn shrink(&mut self) {
        if self.is_empty() {
            self.bytes = Vec::new();
            self.share.resize(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn share() -> BudgetShare {
        Budget::new(1 << 20).of(None).share()
    }

    fn fill(input: &mut Input, bytes: &[u8]) {
        let room = input.room().unwrap();
        room[..bytes.len()].copy_from_slice(bytes);
        input.read(bytes.len());
    }

    #[test]
    fn input_grows_to_its_bound_and_no_further() {
        let mut input = Input::new(100_000, share());
        let mut total = 0;
        loop {
            let room = input.room().unwrap().len();
            if room == 0 {
                break;
            }
            input.read(room);
            total += room;
        }
        assert_eq!(total, 100_000);
        input.drop_front(99_999);
        assert_eq!(input.room().unwrap().len(), 99_999);
        input.drop_front(1);
        input.shrink();
        assert_eq!(input.bytes.capacity(), 0);
    }

    #[test]
    fn input_keeps_what_was_not_understood() {
        let mut input = Input::new(64, share());
        fill(&mut input, b"abcdef");
        input.drop_front(4);
        assert_eq!(input.filled(), b"ef");
        fill(&mut input, b"gh");
        assert_eq!(input.filled(), b"efgh");
    }

    #[test]
    fn output_remembers_what_was_sent() {
        let mut output = Output::new(share());
        output.bytes.extend_from_slice(&[7; BATCH + 10]);
        output.sent(BATCH);
        assert_eq!(output.unsent(), [7; 10]);
        output.sent(10);
        assert!(output.is_empty() && output.bytes.is_empty());
    }
}
