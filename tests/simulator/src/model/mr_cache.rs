//! Operations on an MR cache, and the model that judges them: a list with a linear search.

use invar_core::mr_cache::{Lookup, MrCache, MrCacheError, MrHandle, MrSlot, PageRange};
use invar_core::nic::Access;

/// The page size of every [`World`].
pub const PAGE: u64 = 4096;

/// One call, or a few that belong together.
#[derive(Clone, Copy, Debug)]
pub enum Op {
    /// Looks up a range and, on a miss, registers it.
    Register(Request),
    /// Looks up a range. On a miss the registration fails.
    FailToRegister(Request),
    /// Two threads look up before either inserts.
    Race(Request, Request),
    /// Releases one of the references held. The index is taken modulo their number.
    Release(usize),
    /// Releases a released reference once more. The index is taken modulo their number.
    ReleaseAgain(usize),
}

/// The arguments of a lookup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "those of `MrCache::lookup`")]
pub struct Request {
    pub domain: u32,
    pub access: Access,
    pub addr: u64,
    pub len: u64,
}

/// A cache beside its model. Registrations are numbers.
#[derive(Debug)]
pub struct World {
    cache: MrCache<u64, Vec<MrSlot<u64>>>,
    model: Vec<Entry>,
    held: Vec<(MrHandle, u64)>,
    released: Vec<MrHandle>,
    next_mr: u64,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    mr: u64,
    refs: u64,
    pages: Request,
}

impl Op {
    /// The bytes of an encoded operation.
    pub const BYTES: usize = 12;

    /// Decodes any bytes as an operation, for a fuzzer.
    pub fn decode(bytes: [u8; Self::BYTES]) -> Op {
        let [kind, rest @ ..] = bytes;
        let pick = usize::from(u16::from_le_bytes([rest[0], rest[1]]));
        let request = |b: &[u8]| Request {
            domain: u32::from(b[0] >> 4 & 1),
            access: if b[0] & 1 == 0 { Access::LOCAL_WRITE } else { Access::REMOTE_READ },
            addr: u64::from(u16::from_le_bytes([b[1], b[2]])) << (b[0] >> 1 & 7),
            len: u64::from(u16::from_le_bytes([b[3], b[4]])),
        };
        match kind % 8 {
            0..3 => Op::Register(request(&rest)),
            3 => Op::FailToRegister(request(&rest)),
            4 => Op::Race(request(&rest), request(&rest[5..])),
            5 => Op::ReleaseAgain(pick),
            _ => Op::Release(pick),
        }
    }
}

impl Default for World {
    fn default() -> Self {
        World {
            cache: MrCache::new(Vec::new(), PAGE).expect("a power of two"),
            model: Vec::new(),
            held: Vec::new(),
            released: Vec::new(),
            next_mr: 0,
        }
    }
}

impl World {
    /// Carries out the operations, then releases everything. Panics if cache and model differ.
    pub fn run(ops: impl IntoIterator<Item = Op>) {
        let mut world = World::default();
        for op in ops {
            world.apply(op);
        }
        while !world.held.is_empty() {
            world.apply(Op::Release(0));
        }
        assert!(world.model.is_empty() && world.cache.is_empty());
    }

    /// Carries out one operation on both cache and model.
    pub fn apply(&mut self, op: Op) {
        match op {
            Op::Register(request) => {
                if let Some(pages) = self.look_up(request) {
                    self.insert(request, pages);
                }
            }
            Op::FailToRegister(request) => {
                let _ = self.look_up(request);
            }
            Op::Race(a, b) => {
                let (a_pages, b_pages) = (self.look_up(a), self.look_up(b));
                if let Some(pages) = a_pages {
                    self.insert(a, pages);
                }
                if let Some(pages) = b_pages {
                    self.insert(b, pages);
                }
            }
            Op::Release(pick) => {
                if !self.held.is_empty() {
                    self.release(pick % self.held.len());
                }
            }
            Op::ReleaseAgain(pick) => {
                if !self.released.is_empty() {
                    let handle = self.released[pick % self.released.len()];
                    let answer = self.cache.release(handle);
                    assert!(matches!(answer, Err(MrCacheError::StaleHandle { .. })), "{answer:?}");
                    assert_eq!(self.cache.get(handle), None);
                }
            }
        }
        self.compare();
    }

    /// Looks up a range in both cache and model. Returns the pages of a miss.
    fn look_up(&mut self, request: Request) -> Option<PageRange> {
        let Request { domain, access, addr, len } = request;
        let answer = self.cache.lookup(domain, access, addr, len);
        if len == 0 {
            assert_eq!(answer, Err(MrCacheError::EmptyRange { addr }));
            return None;
        }
        match answer.expect("a range inside the address space") {
            Lookup::Hit(handle) => {
                self.hold(request, handle);
                None
            }
            Lookup::Miss(pages) => {
                assert!(!self.model.iter().any(|entry| entry.is_of(request)), "missed {request:?}");
                let want = request.in_pages();
                assert_eq!((pages.addr(), pages.len()), (want.addr, want.len));
                assert_eq!((pages.domain(), pages.access()), (want.domain, want.access));
                Some(pages)
            }
        }
    }

    fn insert(&mut self, request: Request, pages: PageRange) {
        let mr = self.next_mr;
        self.next_mr += 1;
        let inserted = self.cache.insert(pages, mr).unwrap_or_else(|full| {
            assert_eq!((full.mr, self.cache.is_full()), (mr, true));
            let more = self.cache.len() * 2 + 1;
            let larger = (0..more).map(|_| MrSlot::default()).collect();
            self.cache.grow(larger).expect("larger storage");
            self.cache.insert(pages, mr).expect("a free slot")
        });
        let twin = self.model.iter().any(|entry| entry.is_of(request));
        assert_eq!(inserted.unused, twin.then_some(mr));
        if !twin {
            self.model.push(Entry { mr, refs: 0, pages: request.in_pages() });
        }
        self.hold(request, inserted.handle);
    }

    /// Counts a reference that the cache gave out for `request`.
    fn hold(&mut self, request: Request, handle: MrHandle) {
        let mr = *self.cache.get(handle).expect("a live handle");
        let entry = self.model.iter_mut().find(|entry| entry.mr == mr).expect("a live MR");
        assert!(entry.is_of(request), "{request:?} got {entry:?}");
        entry.refs += 1;
        self.held.push((handle, mr));
    }

    fn release(&mut self, index: usize) {
        let (handle, mr) = self.held.swap_remove(index);
        let at = self.model.iter().position(|entry| entry.mr == mr).expect("a live MR");
        self.model[at].refs -= 1;
        let last = self.model[at].refs == 0;
        assert_eq!(self.cache.release(handle), Ok(last.then_some(mr)));
        if last {
            self.model.swap_remove(at);
            self.released.push(handle);
        }
    }

    fn compare(&self) {
        assert_eq!(self.cache.len(), self.model.len());
        let mut have: Vec<_> = self
            .cache
            .iter()
            .map(|(pages, refs, mr)| (*mr, refs, pages.addr(), pages.len()))
            .collect();
        let mut want: Vec<_> =
            self.model.iter().map(|e| (e.mr, e.refs, e.pages.addr, e.pages.len)).collect();
        have.sort_unstable();
        want.sort_unstable();
        assert_eq!(have, want);
    }
}

impl Request {
    fn in_pages(self) -> Request {
        let first = self.addr / PAGE;
        let last = (self.addr + self.len - 1) / PAGE;
        Request { addr: first * PAGE, len: (last - first + 1) * PAGE, ..self }
    }
}

impl Entry {
    fn is_of(&self, request: Request) -> bool {
        self.pages == request.in_pages()
    }
}
