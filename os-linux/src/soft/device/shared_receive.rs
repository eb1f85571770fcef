//! Shared receive queues.

use invar_core::nic::{NicError, RecvWr, Sge, Verb};

use super::lists::{Lists, SGES_MAX};
use super::{AsyncEvent, Device, Subject};

/// Maximum number of receives in a shared queue.
pub const SHARED_RECEIVES_MAX: u32 = 1 << 14;

/// A shared receive queue to be created.
#[derive(Clone, Copy, Debug)]
pub struct SrqConfig {
    /// The protection domain of the buffers.
    pub pd: u32,
    /// Maximum number of receives.
    pub receives_max: u32,
    /// Maximum number of buffers of a receive.
    pub sges_max: u32,
}

/// Receives for several queue pairs, in order.
pub(super) struct SharedQueue {
    pd: u32,
    ring: Box<[(RecvWr, bool)]>,
    lists: Lists,
    /// Slot of the oldest receive.
    head: usize,
    len: usize,
    /// The queue raises an event once it has fewer receives; 0 means never.
    limit: usize,
}

impl SharedQueue {
    fn new(config: &SrqConfig) -> Self {
        let slots = config.receives_max as usize;
        SharedQueue {
            pd: config.pd,
            ring: vec![(RecvWr::default(), false); slots].into_boxed_slice(),
            lists: Lists::new(slots, config.sges_max),
            head: 0,
            len: 0,
            limit: 0,
        }
    }

    /// The protection domain of the buffers.
    pub(super) fn pd(&self) -> u32 {
        self.pd
    }

    /// Maximum number of buffers of a receive.
    pub(super) fn sges_max(&self) -> u32 {
        self.lists.slot_sges as u32
    }

    fn post(&mut self, wr: &RecvWr, list: &[Sge]) -> Result<(), NicError> {
        if self.len == self.ring.len() {
            let cause = "shared receive queue full";
            return Err(NicError::new(Verb::PostRecv, libc::ENOMEM, cause));
        }
        let slot = (self.head + self.len) % self.ring.len();
        let mut wr = *wr;
        match list {
            [] => wr.sge = Sge::default(),
            [sge] => wr.sge = *sge,
            _ => {
                wr.sge = Sge { length: self.lists.check(list, Verb::PostRecv)?, ..Sge::default() };
                self.lists.set(slot as u16, list);
            }
        }
        self.ring[slot] = (wr, list.len() > 1);
        self.len += 1;
        Ok(())
    }

    /// Takes the oldest receive, and copies its list of buffers to a slot of `lists`. Returns the receive,
    /// whether it has a list, and whether the queue has now reached its limit.
    pub(super) fn take(&mut self, lists: &mut Lists, to: u16) -> Option<(RecvWr, bool, bool)> {
        self.len = self.len.checked_sub(1)?;
        let (wr, has_list) = self.ring[self.head];
        if has_list {
            lists.set(to, self.lists.get(self.head as u16));
        }
        self.head = (self.head + 1) % self.ring.len();
        let reached = self.len < self.limit;
        if reached {
            self.limit = 0;
        }
        Some((wr, has_list, reached))
    }
}

impl Device {
    /// Creates a shared receive queue (`ibv_create_srq`).
    ///
    /// # Errors
    /// `EINVAL`: the queue would have no receive, more than [`SHARED_RECEIVES_MAX`], or receives of more
    /// than 32 buffers.
    pub fn create_srq(&mut self, config: &SrqConfig) -> Result<u32, NicError> {
        let refuse = |errno, cause| Err(NicError::new(Verb::CreateQp, errno, cause));
        if !(1..=SHARED_RECEIVES_MAX).contains(&config.receives_max) {
            return refuse(libc::EINVAL, "a shared queue has 1 to 16384 receives");
        }
        if config.sges_max > SGES_MAX {
            return refuse(libc::EINVAL, "a receive has more than 32 buffers");
        }
        match self.srqs.insert(|_| false, |_| Ok::<_, NicError>(SharedQueue::new(config))) {
            Some(srq) => srq,
            None => refuse(libc::ENOMEM, "too many shared receive queues"),
        }
    }

    /// Destroys a shared receive queue (`ibv_destroy_srq`). Its queue pairs find no receives any more.
    pub fn destroy_srq(&mut self, srq: u32) {
        self.srqs.remove(srq);
    }

    /// Lets a shared receive queue raise one event once it has fewer than `limit` receives
    /// (`ibv_modify_srq`). 0 means never.
    ///
    /// # Errors
    /// `EINVAL`: the limit exceeds the length of the queue, or the queue does not exist.
    pub fn set_srq_limit(&mut self, srq: u32, limit: u32) -> Result<(), NicError> {
        match self.srqs.get_mut(srq).filter(|queue| limit as usize <= queue.ring.len()) {
            Some(queue) => {
                queue.limit = limit as usize;
                if queue.len < queue.limit {
                    queue.limit = 0;
                    self.notices.push((Subject::Srq(srq), AsyncEvent::SrqLimit));
                }
                Ok(())
            }
            None => {
                let cause = "the limit exceeds the shared receive queue";
                Err(NicError::new(Verb::PostRecv, libc::EINVAL, cause))
            }
        }
    }

    /// Returns the limit of a shared receive queue; 0 if it has none or has raised its event.
    pub fn srq_limit(&self, srq: u32) -> u32 {
        self.srqs.get(srq).map_or(0, |queue| queue.limit as u32)
    }

    /// Posts a receive to a shared queue (`ibv_post_srq_recv`). The buffer of `wr` has no meaning.
    ///
    /// # Errors
    /// `ENOMEM`: the queue is full. `EINVAL`: there are too many buffers or bytes.
    pub fn post_srq_recv(&mut self, srq: u32, wr: &RecvWr, list: &[Sge]) -> Result<(), NicError> {
        match self.srqs.get_mut(srq) {
            Some(queue) => queue.post(wr, list),
            None => {
                Err(NicError::new(Verb::PostRecv, libc::EINVAL, "no such shared receive queue"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sge(addr: u64) -> Sge {
        Sge { addr, length: 10, lkey: 1 }
    }

    fn post(queue: &mut SharedQueue, wr_id: u64, list: &[Sge]) -> Result<(), i32> {
        let wr = RecvWr { wr_id, ..RecvWr::default() };
        queue.post(&wr, list).map_err(|error| error.errno)
    }

    #[test]
    fn receives_leave_in_order_with_their_buffers() {
        let mut queue = SharedQueue::new(&SrqConfig { pd: 0, receives_max: 3, sges_max: 2 });
        let mut lists = Lists::new(4, 2);
        for round in 0..5 {
            for wr_id in 0..3 {
                let list = [sge(wr_id), sge(wr_id + 100)];
                assert_eq!(post(&mut queue, wr_id, &list[..wr_id as usize]), Ok(()));
            }
            assert_eq!(post(&mut queue, 9, &[]), Err(libc::ENOMEM));
            for wr_id in 0..3 {
                let (wr, has_list, _) = queue.take(&mut lists, 3).unwrap();
                assert_eq!((wr.wr_id, has_list), (wr_id, wr_id == 2), "{round}");
                assert_eq!(wr.sge.length, 10 * wr_id as u32);
            }
            let pieces: Vec<_> = lists.pieces(3, 0, 20).collect();
            assert_eq!(pieces, [sge(2), sge(102)]);
            assert!(queue.take(&mut lists, 0).is_none());
        }
        assert_eq!(post(&mut queue, 1, &[sge(1); 3]), Err(libc::EINVAL));
    }

    #[test]
    fn the_limit_is_reached_once() {
        let mut queue = SharedQueue::new(&SrqConfig { pd: 0, receives_max: 8, sges_max: 1 });
        let mut lists = Lists::new(1, 1);
        (0..8).for_each(|wr_id| post(&mut queue, wr_id, &[sge(1)]).unwrap());
        queue.limit = 6;
        let reached: Vec<bool> = (0..5).map(|_| queue.take(&mut lists, 0).unwrap().2).collect();
        assert_eq!(reached, [false, false, true, false, false]);
    }
}
