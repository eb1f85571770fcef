//! Measures the MR cache under callgrind. `bench_mr_cache LIVE ITERS` looks up and releases one of
//! `LIVE` registrations, `ITERS` times. Two runs with different `ITERS` give the cost of one such pair:
//! the difference of their instructions, divided by that of their `ITERS`.

use std::hint::black_box;

use invar_core::mr_cache::{Lookup, MrCache, MrSlot};
use invar_core::nic::Access;

const PAGE: u64 = 4096;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<u64> =
        std::env::args().skip(1).map(|arg| arg.parse()).collect::<Result<_, _>>()?;
    let &[live, iters] = args.as_slice() else {
        return Err("usage: bench_mr_cache LIVE ITERS".into());
    };
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
    let slots: Vec<MrSlot<u64>> = (0..live).map(|_| MrSlot::default()).collect();
    let mut cache = MrCache::new(slots, PAGE)?;
    // Buffers of two pages, two pages apart, in a scattered order.
    let place = |i: u64| i.wrapping_mul(0x9e37_79b1) % live * 4 * PAGE;
    let buffers: Vec<u64> = (0..live).map(place).collect();
    for &addr in &buffers {
        if let Lookup::Miss(pages) = cache.lookup(0, access, addr, 2 * PAGE)? {
            let _ = cache.insert(pages, addr)?;
        }
    }
    for &addr in buffers.iter().cycle().take(iters as usize) {
        if let Lookup::Hit(handle) =
            cache.lookup(0, black_box(access), black_box(addr), 2 * PAGE)?
        {
            black_box(cache.release(handle)?);
        }
    }
    Ok(())
}
