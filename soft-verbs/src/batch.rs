//! A batch of sends that a program builds request by request (`ibv_wr_start` to `ibv_wr_complete`).

use std::ffi::c_int;
use std::mem;
use std::ops::Range;
use std::ptr;

use invar_core::nic::SendFlags;
use invar_verbs::sys::{ibv_send_wr, ibv_sge};

/// The requests of a batch. The lists keep their memory from batch to batch.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Built>,
    sges: Vec<ibv_sge>,
    bytes: Vec<u8>,
    /// The first error of the program's calls.
    error: Option<c_int>,
}

/// A request, whose pointers are set once the batch is complete.
struct Built {
    wr: ibv_send_wr,
    /// Its buffers in the batch's list.
    sges: Range<usize>,
    /// Its inline data in the batch's bytes.
    inline: Range<usize>,
}

impl Batch {
    pub(crate) fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.bytes.clear();
        self.error = None;
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    /// Keeps the first error, which completes the batch.
    pub(crate) fn fail(&mut self, errno: c_int) {
        self.error.get_or_insert(errno);
    }

    /// Begins a request, whose other fields `set` writes.
    pub(crate) fn push(
        &mut self,
        wr_id: u64,
        (opcode, send_flags): (u32, u32),
        set: impl FnOnce(*mut ibv_send_wr),
    ) {
        // SAFETY: the structure has integers and pointers, for which zero is valid.
        let mut wr: ibv_send_wr = unsafe { mem::zeroed() };
        (wr.wr_id, wr.opcode) = (wr_id, opcode);
        // The data says whether it is inline.
        wr.send_flags = send_flags & !SendFlags::INLINE.bits();
        set(&mut wr);
        let (sges, bytes) = (self.sges.len(), self.bytes.len());
        self.requests.push(Built { wr, sges: sges..sges, inline: bytes..bytes });
    }

    /// Writes to the last request.
    pub(crate) fn set(&mut self, set: impl FnOnce(*mut ibv_send_wr)) {
        match self.requests.last_mut() {
            Some(built) => set(&mut built.wr),
            None => self.fail(libc::EINVAL),
        }
    }

    /// Sets the buffers of the last request.
    pub(crate) fn set_list(&mut self, list: &[ibv_sge]) {
        let Some(built) = self.requests.last_mut() else { return self.fail(libc::EINVAL) };
        let start = self.sges.len();
        self.sges.extend_from_slice(list);
        built.sges = start..self.sges.len();
    }

    /// Copies inline data of the last request, at most `most` bytes in all.
    ///
    /// # Safety
    /// Each piece is an address with this number of readable bytes.
    pub(crate) unsafe fn set_inline(
        &mut self,
        pieces: impl Iterator<Item = (*const u8, usize)>,
        most: usize,
    ) {
        let Some(built) = self.requests.last_mut() else { return self.fail(libc::EINVAL) };
        built.wr.send_flags |= SendFlags::INLINE.bits();
        let start = self.bytes.len();
        for (addr, len) in pieces {
            if len > most - (self.bytes.len() - start) {
                return self.fail(libc::EINVAL);
            }
            self.bytes.reserve(len);
            let end = self.bytes.len();
            // SAFETY: the caller vouches for the bytes, and there is room for them.
            unsafe {
                ptr::copy_nonoverlapping(addr, self.bytes.as_mut_ptr().add(end), len);
                self.bytes.set_len(end + len);
            }
        }
        built.inline = start..self.bytes.len();
    }

    /// Links the requests to a chain and returns its first one; null for an empty batch. The chain is
    /// valid until the batch changes.
    ///
    /// # Errors
    /// The first error of the calls that built the batch.
    pub(crate) fn chain(&mut self) -> Result<*mut ibv_send_wr, c_int> {
        if let Some(errno) = self.error {
            return Err(errno);
        }
        for built in &mut self.requests {
            let Range { start, end } = built.inline.clone();
            if start < end {
                let addr = self.bytes[start..end].as_ptr().expose_provenance() as u64;
                let at = self.sges.len();
                self.sges.push(ibv_sge { addr, length: (end - start) as u32, lkey: 0 });
                built.sges = at..at + 1;
            }
        }
        let sges = self.sges.as_mut_ptr();
        let mut next = ptr::null_mut();
        for Built { wr, sges: range, .. } in self.requests.iter_mut().rev() {
            wr.sg_list = sges.wrapping_add(range.start);
            wr.num_sge = range.len() as c_int;
            wr.next = next;
            next = ptr::from_mut(wr);
        }
        Ok(next)
    }
}
