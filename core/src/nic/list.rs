//! Work requests that are posted time and again, from where they lie.

use core::ptr;

use super::{Link, NumSge, SendFlags, SendWr, Sge};

/// Send work requests, which a driver can take as they lie: each is linked to its buffer and to the
/// next, as long as the list stays where it was when it was posted before. So only the first post
/// from a place looks at each of them.
///
/// An adapter of such a driver takes them by [`SendList::linked`]. A request has a buffer, or none,
/// for good: the one it is made with says so, by its `num_sge`.
#[derive(Debug)]
pub struct SendList<const N: usize> {
    wrs: [SendWr; N],
    /// The address at which they were linked; 0 for none.
    linked_at: usize,
}

/// A work request of a list, to be changed in what does not touch its links.
pub struct Listed<'a>(&'a mut SendWr);

impl<const N: usize> SendList<N> {
    /// Not linked yet.
    pub const fn new(wrs: [SendWr; N]) -> Self {
        SendList { wrs, linked_at: 0 }
    }

    /// The requests.
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

    /// Changes how request number `i` is carried out.
    pub fn set_flags(&mut self, i: usize, flags: SendFlags) {
        self.wrs[i % N].flags = flags;
        self.linked_at = 0;
    }

    /// Where request number `from` lies, the head of a chain of it and all behind it that ends, if
    /// the list is linked. It holds until the list is moved.
    #[inline(always)]
    pub fn linked(&mut self, from: usize) -> Option<*mut SendWr> {
        if self.linked_at != self.wrs.as_ptr().addr() {
            return None;
        }
        self.wrs.get_mut(from).map(ptr::from_mut)
    }

    /// Links each request to its buffer and to the next; not if one has bytes that are taken while
    /// posting ([`SendFlags::INLINE`]), as those are to be looked at each time.
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
    /// What comes back in the completion.
    #[inline(always)]
    pub const fn set_id(&mut self, wr_id: u64) {
        self.0.wr_id = wr_id;
    }

    /// Immediate data.
    #[inline(always)]
    pub const fn set_imm(&mut self, imm_data: u32) {
        self.0.imm_data = imm_data;
    }

    /// The peer's memory.
    #[inline(always)]
    pub const fn set_remote(&mut self, addr: u64, rkey: u32) {
        (self.0.remote_addr, self.0.rkey) = (addr, rkey);
    }

    /// Local bytes, of a request that has a buffer. While there are none the list is not to be posted.
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

    /// What a driver finds that begins at `from`.
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
