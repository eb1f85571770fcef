//! Lists of work requests that are posted many times from the same memory.

use core::ptr;

use super::{Link, NumSge, SendFlags, SendWr, Sge};

/// Send work requests in a form that a driver can take directly. Each request is linked to its buffer
/// and to the next request. The links stay valid while the list stays at the address where it was
/// linked, so only the first post from an address sets them.
///
/// An adapter of such a driver gets the requests by [`SendList::linked`]. Whether a request has a
/// buffer never changes: `num_sge` of the request passed to [`SendList::new`] decides.
#[derive(Debug)]
pub struct SendList<const N: usize> {
    wrs: [SendWr; N],
    /// The address at which the requests were linked; 0 if they are not linked.
    linked_at: usize,
}

/// A work request of a list. The methods change only fields that do not affect the links.
pub struct Listed<'a>(&'a mut SendWr);

impl<const N: usize> SendList<N> {
    /// Creates a list that is not linked yet.
    pub const fn new(wrs: [SendWr; N]) -> Self {
        SendList { wrs, linked_at: 0 }
    }

    /// The requests of the list.
    #[inline(always)]
    pub const fn wrs(&self) -> &[SendWr; N] {
        &self.wrs
    }

    /// The requests from number `from` on.
    #[inline(always)]
    pub fn wrs_from(&self, from: usize) -> &[SendWr] {
        self.wrs.get(from..).unwrap_or_default()
    }

    /// Request number `i` modulo `N`.
    #[inline(always)]
    pub const fn wr(&mut self, i: usize) -> Listed<'_> {
        Listed(&mut self.wrs[i % N])
    }

    /// Sets the flags of request number `i`.
    pub fn set_flags(&mut self, i: usize, flags: SendFlags) {
        self.wrs[i % N].flags = flags;
        self.linked_at = 0;
    }

    /// A pointer to request number `from`, if the list is linked. The request is the head of a chain
    /// that ends with the last request of the list. The pointer is valid until the list is moved.
    #[inline(always)]
    pub fn linked(&mut self, from: usize) -> Option<*mut SendWr> {
        if self.linked_at != self.wrs.as_ptr().addr() {
            return None;
        }
        self.wrs.get_mut(from).map(ptr::from_mut)
    }

    /// Links each request to its buffer and to the next request. A list with [`SendFlags::INLINE`] does
    /// not count as linked: its bytes are copied while posting, so the driver must look at them each
    /// time.
    pub fn link(&mut self) {
        let (mut next, mut flags) = (Link::NULL, SendFlags::empty());
        for wr in self.wrs.iter_mut().rev() {
            flags |= wr.flags;
            (wr.next, wr.sg_list) = (next, Link::to(&raw mut wr.sge));
            next = Link::to(wr);
        }
        let is_inline = flags.contains(SendFlags::INLINE);
        self.linked_at = if is_inline { 0 } else { self.wrs.as_ptr().addr() };
    }
}

impl Listed<'_> {
    /// Sets the number that the completion returns.
    #[inline(always)]
    pub const fn set_id(&mut self, wr_id: u64) {
        self.0.wr_id = wr_id;
    }

    /// Sets the immediate data.
    #[inline(always)]
    pub const fn set_imm(&mut self, imm_data: u32) {
        self.0.imm_data = imm_data;
    }

    /// Sets address and key of the peer's memory.
    #[inline(always)]
    pub const fn set_remote(&mut self, addr: u64, rkey: u32) {
        (self.0.remote_addr, self.0.rkey) = (addr, rkey);
    }

    /// Sets the local bytes of a request that has a buffer. Do not post the list while `sge` has no
    /// bytes.
    #[inline(always)]
    pub const fn set_sge(&mut self, sge: Sge) {
        debug_assert!(matches!(self.0.num_sge, NumSge::One));
        self.0.sge = sge;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NUM_SGE: [NumSge; 3] = [NumSge::One, NumSge::Zero, NumSge::One];

    fn list() -> SendList<3> {
        let wr = |num_sge| SendWr { num_sge, ..SendWr::default() };
        SendList::new(NUM_SGE.map(wr))
    }

    /// Checks the chain that a driver finds at request number `from`.
    fn check(list: &mut SendList<3>, from: usize) {
        assert!(list.linked(from).is_none());
        list.link();
        let head = list.linked(from).expect("linked").addr();
        let wrs = list.wrs();
        assert_eq!(head, (&raw const wrs[from]).addr());
        for (i, wr) in wrs.iter().enumerate() {
            let next =
                wrs.get(i + 1).map_or(Link::NULL, |next| Link::to(ptr::from_ref(next).cast_mut()));
            assert_eq!(wr.next, next, "{i}");
            assert_eq!(wr.sg_list, Link::to((&raw const wr.sge).cast_mut()));
            assert_eq!(wr.num_sge, NUM_SGE[i]);
        }
    }

    #[test]
    fn a_list_is_linked_where_it_lies() {
        let mut lists = [list(), list()];
        check(&mut lists[0], 0);
        lists[0].wr(0).set_sge(Sge { addr: 1, length: 2, lkey: 3 });
        assert!(lists[0].linked(2).is_some() && lists[0].linked(3).is_none());
        lists.swap(0, 1);
        check(&mut lists[0], 1);
        check(&mut lists[1], 2);
    }

    #[test]
    fn inline_data_is_looked_at_each_time() {
        let mut list = list();
        check(&mut list, 0);
        list.set_flags(2, SendFlags::INLINE);
        list.link();
        assert!(list.linked(0).is_none());
        list.set_flags(2, SendFlags::SIGNALED);
        check(&mut list, 0);
    }
}
