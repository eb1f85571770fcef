//! Measures bytes per second between host and GPU in two ways. Staged messages copy through the slots
//! of a staging buffer; a plain copy moves all bytes at once.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::process::ExitCode;
use std::time::Instant;

use invar_cuda::{Direction, Driver, Gpu, GpuMemory, StagingBuffer};

/// The number of bytes of each measurement.
const LEN: usize = 256 << 20;
/// The number of measurements. The fastest one counts.
const TIMES: usize = 5;

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let driver = Driver::open()?;
    for info in driver.gpus()? {
        println!("GPU {}: {}", info.ordinal, info.name);
        let gpu = Gpu::open(driver, info.ordinal)?;
        let memory = GpuMemory::alloc(&gpu, LEN)?;
        let mut pageable = vec![1_u8; LEN];
        show("one copy to the GPU, pageable", || Ok(memory.write_at(0, &pageable)?))?;
        show("one copy to the host, pageable", || Ok(memory.read_at(0, &mut pageable)?))?;
        for (name, direction) in [("GPU", Direction::ToGpu), ("host", Direction::ToHost)] {
            let mut whole = StagingBuffer::new(&gpu, 1, LEN)?;
            show(&format!("one copy to the {name}, pinned"), || {
                staged(&mut whole, &memory, direction, 1)
            })?;
            for chunk in [128 << 10, 512 << 10, 2 << 20] {
                let mut slots = StagingBuffer::new(&gpu, 4, chunk)?;
                let what = format!("to the {name} through 4 slots of {} KiB", chunk >> 10);
                show(&what, || staged(&mut slots, &memory, direction, 4))?;
            }
        }
    }
    Ok(())
}

/// Copies all of `memory` through the slots. Each slot is used again as soon as it is free.
fn staged(
    buffer: &mut StagingBuffer,
    memory: &GpuMemory,
    direction: Direction,
    slots: usize,
) -> Result<()> {
    let chunk = buffer.slot_bytes();
    for (number, offset) in (0..LEN).step_by(chunk).enumerate() {
        let slot = number % slots;
        while !buffer.is_done(slot)? {}
        buffer.start(slot, direction, memory, offset, chunk.min(LEN - offset))?;
    }
    for slot in 0..slots {
        while !buffer.is_done(slot)? {}
    }
    Ok(())
}

fn show(what: &str, mut copy: impl FnMut() -> Result<()>) -> Result<()> {
    let mut best = f64::INFINITY;
    for _ in 0..TIMES {
        let start = Instant::now();
        copy()?;
        best = best.min(start.elapsed().as_secs_f64());
    }
    println!("{what:45} {:8.1} GB/s", LEN as f64 / best / 1e9);
    Ok(())
}
