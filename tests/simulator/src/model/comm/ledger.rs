//! Posted buffers without a message: a list that is searched from its front.

/// A buffer that waits for a message.
#[derive(Debug)]
struct Waiting {
    row: u64,
    r: usize,
    tag: u32,
    room: u32,
}

/// The receives of a connection, in the order in which they were posted.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    waiting: Vec<Waiting>,
    rows: u64,
}

/// The answer that `isend` must give.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Expected {
    /// No buffer of the oldest receive has this tag.
    Nothing,
    /// The matching buffer, in this row, is too short.
    Mismatch { row: u64, room: u32 },
    /// `len` bytes go to buffer `r` of this row.
    Start { row: u64, r: usize, len: u32 },
}

impl Ledger {
    /// Posts a receive of buffers with these tags and lengths. Returns the receive's number.
    pub(super) fn post(&mut self, bufs: impl Iterator<Item = (u32, u32)>) -> u64 {
        let row = self.rows;
        self.rows += 1;
        self.waiting.extend(bufs.enumerate().map(|(r, (tag, room))| Waiting { row, r, tag, room }));
        row
    }

    /// The number of posted receives.
    pub(super) fn rows(&self) -> u64 {
        self.rows
    }

    /// The answer that a send of `len` bytes must get.
    pub(super) fn expected(&self, tag: u32, len: u32, truncate: bool) -> Expected {
        match self.head().find(|waiting| waiting.tag == tag) {
            None => Expected::Nothing,
            Some(&Waiting { row, room, .. }) if len > room && !truncate => {
                Expected::Mismatch { row, room }
            }
            Some(&Waiting { row, r, room, .. }) => Expected::Start { row, r, len: len.min(room) },
        }
    }

    /// Notes that a message with this tag was sent.
    pub(super) fn sent(&mut self, tag: u32) {
        let first = self.waiting.iter().position(|waiting| waiting.tag == tag);
        self.waiting.remove(first.expect("a buffer waited"));
    }

    /// The tag and the length of one of the buffers that the sender may send to.
    pub(super) fn awaited(&self, which: usize) -> Option<(u32, u32)> {
        let count = self.head().count().max(1);
        self.head().nth(which % count).map(|waiting| (waiting.tag, waiting.room))
    }

    /// Whether every buffer of a receive has its message.
    pub(super) fn is_complete(&self, row: u64) -> bool {
        self.waiting.iter().all(|waiting| waiting.row != row)
    }

    /// The buffers of the oldest receive that still waits.
    fn head(&self) -> impl Iterator<Item = &Waiting> {
        let row = self.waiting.first().map(|waiting| waiting.row);
        self.waiting.iter().take_while(move |waiting| Some(waiting.row) == row)
    }
}
