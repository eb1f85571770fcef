use std::convert::Infallible;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::memory::HostMemory;
use crate::soft::device::region::MemoryRegion;

/// Queue pairs: two of one protection domain, and one of another.
const USERS: [User; 3] = [(1, 10), (1, 11), (2, 20)];
const WINDOWS: [(u32, WindowType); 4] = [
    (1, WindowType::Domain),
    (1, WindowType::QueuePair),
    (2, WindowType::QueuePair),
    (2, WindowType::Domain),
];
/// Regions: domain, address and length. The third one ends at the end of the address space.
const REGIONS: [(u32, u64, usize); 4] =
    [(1, 0x1000, 32), (1, 0x2000, 8), (2, u64::MAX - 15, 16), (1, 0x3000, 0)];
/// The lower eight bits of the keys that a program chooses.
const LOWS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    /// Binds a window with a low byte for its key to a part of a region: first byte and length.
    Bind {
        user: usize,
        window: usize,
        low: u32,
        region: usize,
        part: (i8, u64),
        access: Access,
        zero_based: bool,
    },
    /// Invalidates a key, by a request of this end or by a SEND of the peer.
    Invalidate {
        user: usize,
        window: usize,
        low: u32,
        by_peer: bool,
    },
    EndRegion(usize),
    EndQueuePair(usize),
    EndWindow(usize),
}

fn rights() -> impl Strategy<Value = Access> {
    let (read, write) = (Access::REMOTE_READ, Access::REMOTE_WRITE);
    select(vec![read, write, read | write, Access::REMOTE_ATOMIC, Access::empty()])
}

fn step() -> impl Strategy<Value = Step> {
    let (user, window, region) = (0..USERS.len(), 0..WINDOWS.len(), 0..REGIONS.len());
    let key = (user.clone(), window.clone(), 0..LOWS);
    let part = (-1..34i8, prop_oneof![0..34u64, Just(u64::MAX)]);
    prop_oneof![
        12 => (key.clone(), region.clone(), part, rights(), any::<bool>()).prop_map(
            |((user, window, low), region, part, access, zero_based)| {
                Step::Bind { user, window, low, region, part, access, zero_based }
            }
        ),
        6 => (key, any::<bool>()).prop_map(|((user, window, low), by_peer)| {
            Step::Invalidate { user, window, low, by_peer }
        }),
        1 => region.prop_map(Step::EndRegion),
        1 => user.prop_map(Step::EndQueuePair),
        1 => window.prop_map(Step::EndWindow),
    ]
}

/// Memory that a window's key gives access to, as the model has it.
#[derive(Clone, Copy, Debug)]
struct Shown {
    window: usize,
    low: u32,
    user: usize,
    region: usize,
    /// Number of the first byte in the region, and the length.
    part: (i128, i128),
    /// Address of the first byte.
    addr: i128,
    access: Access,
}

/// A model that keeps all that is shown in a list.
struct Model {
    shown: Vec<Shown>,
    regions: [Option<Access>; REGIONS.len()],
    windows: [bool; WINDOWS.len()],
}

impl Model {
    fn carry_out(&mut self, step: &Step) -> Result<(), WcStatus> {
        match *step {
            Step::Bind { user, window, low, region, part: (first, len), access, zero_based } => {
                let refused = Err(WcStatus::MW_BIND_ERR);
                let (pd, kind) = WINDOWS[window];
                if !self.windows[window] || pd != USERS[user].0 {
                    return refused;
                }
                let is_bound = self.shown.iter().any(|shown| shown.window == window);
                let of_queue_pair = kind == WindowType::QueuePair;
                if of_queue_pair && (is_bound || len == 0) {
                    return refused;
                }
                let mut shown = None;
                if len > 0 {
                    let (region_pd, region_addr, size) = REGIONS[region];
                    let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
                    let has = self.regions[region];
                    let allowed = has.is_some_and(|has| {
                        has.contains(Access::MW_BIND)
                            && (!writes || has.contains(Access::LOCAL_WRITE))
                    });
                    let part = (i128::from(first), i128::from(len));
                    let inside = part.0 >= 0 && part.0 + part.1 <= size as i128;
                    if !allowed || !inside || region_pd != pd {
                        return refused;
                    }
                    let addr = if zero_based { 0 } else { i128::from(region_addr) + part.0 };
                    shown = Some(Shown { window, low, user, region, part, addr, access });
                }
                self.shown.retain(|shown| shown.window != window);
                self.shown.extend(shown);
            }
            Step::Invalidate { user, window, low, .. } => {
                let before = self.shown.len();
                self.shown.retain(|shown| {
                    let is_meant = (shown.window, shown.low, shown.user) == (window, low, user);
                    !is_meant || WINDOWS[window].1 == WindowType::Domain
                });
                if self.shown.len() == before {
                    return Err(WcStatus::LOC_QP_OP_ERR);
                }
            }
            // A window stays bound to a region that ends, and shows nothing.
            Step::EndRegion(region) => self.regions[region] = None,
            Step::EndQueuePair(user) => self.shown.retain(|shown| {
                shown.user != user || WINDOWS[shown.window].1 == WindowType::Domain
            }),
            Step::EndWindow(window) => {
                self.windows[window] = false;
                self.shown.retain(|shown| shown.window != window);
            }
        }
        Ok(())
    }

    /// The region, and the number of the byte there, that an access means.
    fn resolve(
        &self,
        (user, window, low): (usize, usize, u32),
        (addr, len): (u64, u32),
        need: Access,
    ) -> Option<(usize, u64)> {
        let is_meant = |shown: &&Shown| (shown.window, shown.low) == (window, low);
        let shown = self.shown.iter().find(is_meant)?;
        let (pd, kind) = WINDOWS[window];
        let serves = match kind {
            WindowType::Domain => USERS[user].0 == pd,
            WindowType::QueuePair => shown.user == user,
        };
        let first = i128::from(addr) - shown.addr;
        let inside = first >= 0 && first + i128::from(len) <= shown.part.1;
        let alive = self.regions[shown.region].is_some();
        let found = (shown.region, (shown.part.0 + first) as u64);
        (serves && inside && alive && shown.access.contains(need)).then_some(found)
    }
}

/// Regions with these rights, and their keys.
fn regions(rights: [Access; REGIONS.len()]) -> (Regions, [u32; REGIONS.len()]) {
    let mut regions = Regions::new(Table::new(16, Names::new(&[1; 32], b'r', 32)));
    let mut number = 0;
    let keys = REGIONS.map(|(pd, addr, len)| {
        let memory = HostMemory::alloc(len.max(1)).unwrap();
        // SAFETY: the bytes are those of `memory`, which the region keeps.
        let memory = unsafe {
            HostMemory::from_raw(std::ptr::NonNull::new(memory.as_ptr()).unwrap(), len, memory)
        };
        let region = MemoryRegion { memory, addr, access: rights[number], pd };
        number += 1;
        let Some(Ok(key)) = regions.table.insert(|_| false, |_| Ok::<_, Infallible>(region)) else {
            panic!("no room for a region")
        };
        key
    });
    (regions, keys)
}

fn windows() -> (Windows, [u32; WINDOWS.len()]) {
    let mut windows = Windows::new(Names::new(&[1; 32], b'w', 24));
    let firsts = WINDOWS.map(|(pd, kind)| {
        let make = |index| Ok::<_, Infallible>(Window { pd, kind, key: index << 8, bound: None });
        let Some(Ok(index)) = windows.0.insert(|_| false, make) else { panic!("no room") };
        index << 8
    });
    (windows, firsts)
}

proptest! {
    #[test]
    fn a_key_shows_what_its_window_was_bound_to_and_nothing_else(
        rights in prop::array::uniform4(select(vec![
            Access::MW_BIND | Access::LOCAL_WRITE,
            Access::MW_BIND | Access::LOCAL_WRITE,
            Access::MW_BIND,
            Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ,
        ])),
        steps in vec(step(), 1..40),
    ) {
        let (mut regions, keys) = regions(rights);
        let (mut windows, firsts) = windows();
        let mut model = Model {
            shown: Vec::new(),
            regions: rights.map(Some),
            windows: [true; WINDOWS.len()],
        };
        for step in &steps {
            let expected = model.carry_out(step);
            let outcome = match *step {
                Step::Bind { user, window, low, region, part, access, zero_based } => {
                    let addr = REGIONS[region].1.wrapping_add_signed(part.0.into());
                    let (key, region) = (firsts[window] | low, keys[region]);
                    let bind = Bind { key, region, addr, len: part.1, access, zero_based };
                    windows.carry_out(&regions, USERS[user], &LocalWork::Bind(bind))
                }
                Step::Invalidate { user, window, low, by_peer } => {
                    let key = firsts[window] | low;
                    if by_peer {
                        let refused = |_| WcStatus::LOC_QP_OP_ERR;
                        windows.invalidate(USERS[user], key).map_err(refused)
                    } else {
                        let work = LocalWork::Invalidate(key);
                        windows.carry_out(&regions, USERS[user], &work)
                    }
                }
                Step::EndRegion(region) => {
                    regions.remove(keys[region]);
                    Ok(())
                }
                Step::EndQueuePair(user) => {
                    windows.forget_qp(USERS[user].1);
                    Ok(())
                }
                Step::EndWindow(window) => {
                    windows.0.remove(index(firsts[window]));
                    Ok(())
                }
            };
            prop_assert_eq!(outcome, expected, "{:?}", step);
            for (number, key) in keys.iter().enumerate() {
                let uses = model.shown.iter().any(|shown| shown.region == number);
                prop_assert_eq!(windows.use_region(*key), uses);
            }
            let names = (0..USERS.len()).flat_map(|user| {
                (0..WINDOWS.len()).flat_map(move |window| {
                    (0..LOWS).map(move |low| (user, window, low))
                })
            });
            for name in names {
                let (user, window, low) = name;
                // Look at both ends of what the window shows, whether it shows it by this key or not.
                let shown = model.shown.iter().find(|shown| shown.window == window);
                let (addr, len) = shown.map_or((0x1000, 8), |shown| (shown.addr, shown.part.1));
                for (at, count) in [(0, 1), (0, len), (-1, 1), (0, len + 1), (len - 1, 1), (len, 1)] {
                    let range = ((addr + at) as u64, count as u32);
                    for need in [Access::REMOTE_READ, Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
                        let key = firsts[window] | low;
                        let found = windows.resolve(&regions, USERS[user], key, range, need).ok();
                        let found = found.map(|found| (found.index, found.offset));
                        let expected = model.resolve(name, range, need);
                        let expected = expected.map(|(region, offset)| (keys[region], offset));
                        prop_assert_eq!(found, expected, "{:?} {:?} {:?}", name, range, need);
                    }
                }
            }
        }
    }
}
