//! The sender keeps messages, and makes connections anew, so that lost sockets go on over new ones.

use std::mem;
use std::ptr::NonNull;

use invar_core::error::Error;
use invar_core::fifo::DEPTH_MAX;
use invar_core::socket::{COPIED_BYTES, COPIES_BYTES, FRAME_BYTES, KEPT_BYTES, Sender, SocketNews};

use super::SendComm;
use crate::clock::now_ns;

/// Number of fruitless looks after which the sender copies messages that the receiver has not read, number of bytes of
/// the longest message that need one more look, and number of looks that a sleep counts for.
const KEEP_LOOKS: u32 = 256;
const KEEP_BYTES_PER_LOOK: usize = 1 << 10;
pub(super) const SLEEP_LOOKS: u32 = KEEP_LOOKS / 16;

/// Length of the longest copy, room for its frame included, that a row keeps for its next message, and of the longest
/// that any row may use again.
const ROW_BYTES: usize = FRAME_BYTES + KEPT_BYTES as usize;
const SPARE_BYTES: usize = FRAME_BYTES + COPIED_BYTES as usize;

/// Number of copies that wait for their next use.
const SPARES: usize = (COPIES_BYTES / COPIED_BYTES) as usize;

impl SendComm {
    /// Whether a send may be done as soon as the receiver has acknowledged it.
    pub(super) fn awaits_ack(&self) -> bool {
        self.sender.awaits_ack() || self.resumption.is_some() && self.lanes.await_acks()
    }

    /// Notes looks that may have found no acknowledge. After many of them, copies the messages that the kernel has taken,
    /// so that their sends are done however late the receiver is.
    pub(super) fn idle(&mut self, looks: u32) {
        self.idle_looks += looks;
        if self.idle_looks < KEEP_LOOKS {
            return;
        }
        // The network may still carry a long message, and its copy takes long.
        let longest = self.lanes.awaited_bytes_max().max(self.sender.held_bytes() as usize);
        if (self.idle_looks as usize) < longest / KEEP_BYTES_PER_LOOK {
            return;
        }
        self.idle_looks = 0;
        let Self { lanes, sender, starts, copies, .. } = self;
        while let Some((index, len)) = sender.keep_written() {
            if let Some(start) = starts[index].take() {
                // SAFETY: The caller of `isend` keeps the message, whose send is done only now.
                unsafe { copy(&mut copies[index], start, len) };
            }
        }
        lanes.keep_moved(|index| sender.chunk_done(index));
    }

    /// Frees long copies of messages that the receiver has read.
    pub(super) fn free_copies(&mut self) {
        if free_copies(&self.sender, &mut self.copies, &mut self.spare, &mut self.freed) {
            self.idle_looks = 0;
        }
    }

    /// Whether the peer has not closed its end, after a socket has failed. The peer may have sent the reason.
    #[cold]
    pub(super) fn is_peer_open(&mut self) -> bool {
        self.read_control().is_ok()
    }

    /// Notes that a socket is lost, or that it is not resumed.
    #[cold]
    pub(super) fn lost(&mut self, lost: Result<(), Error>) {
        match lost {
            Ok(()) => self.resumption.iter_mut().for_each(|resumption| resumption.is_whole = false),
            Err(error) => self.sender.fail(error),
        }
    }

    /// Makes lost sockets go on over new connections. An acceptor also looks whether the peer has called.
    #[cold]
    pub(super) fn mend(&mut self) {
        if self.sender.end().is_some() {
            return;
        }
        if let Err(error) = self.try_to_mend() {
            self.sender.fail(error);
        }
    }

    fn try_to_mend(&mut self) -> Result<(), Error> {
        let Self { lanes, sender, main, control, resumption, copies, spare, ends, .. } = self;
        let Some(resumption) = resumption else { return Ok(()) };
        let now_ns = now_ns();
        let sockets = [&mut *control, main].into_iter().chain(lanes.sockets_mut());
        // The peer tells again what a reset of control discards.
        resumption.attend(sockets, now_ns, usize::MAX)?;
        match resumption.poll(control, now_ns, ends)? {
            SocketNews::None | SocketNews::Lost(_) => {}
            SocketNews::Renewed => {
                sender.control_renewed();
                self.view_unsent = 0..0;
                control.resume(sender.buffers_known());
            }
            // The receiver takes views only, and those that are lost are not sent again.
            SocketNews::Resumed(_) => {}
        }
        match resumption.poll(main, now_ns, ends)? {
            SocketNews::None | SocketNews::Lost(_) => {}
            SocketNews::Renewed => main.resume(0),
            SocketNews::Resumed(position) => {
                sender.main_resumed(position)?;
                free_copies(sender, copies, spare, &mut self.freed);
            }
        }
        lanes.mend(now_ns, resumption, ends)?;
        resumption.note(control.is_up() && main.is_up() && lanes.are_up(), ends);
        Ok(())
    }
}

/// Copies a message behind room for its frame.
///
/// # Safety
/// `len` bytes from `start` on are valid, and nobody writes them.
pub(super) unsafe fn copy(copy: &mut Vec<u8>, start: NonNull<u8>, len: usize) {
    copy.clear();
    copy.reserve_exact(FRAME_BYTES + len);
    copy.extend_from_slice(&[0; FRAME_BYTES]);
    // SAFETY: The caller promises the bytes, and there is room for them. They are not those of the copy.
    unsafe {
        copy.as_mut_ptr().add(FRAME_BYTES).copy_from_nonoverlapping(start.as_ptr(), len);
        copy.set_len(FRAME_BYTES + len);
    }
}

/// Frees long copies of messages that the receiver has read, and returns whether it has read any since `freed`.
fn free_copies(
    sender: &Sender,
    copies: &mut [Vec<u8>; DEPTH_MAX],
    spare: &mut Vec<Vec<u8>>,
    freed: &mut u64,
) -> bool {
    let is_news = *freed != sender.acknowledged();
    for number in *freed..sender.acknowledged() {
        let copy = &mut copies[number as usize % DEPTH_MAX];
        if copy.capacity() > ROW_BYTES {
            let copy = mem::take(copy);
            if copy.capacity() <= SPARE_BYTES && spare.len() < SPARES {
                spare.push(copy);
            }
        }
    }
    *freed = sender.acknowledged();
    is_news
}
