//! The bytes of a shift over connections of this process, without a proxy.

use std::collections::VecDeque;
use std::error::Error;
use std::iter;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use invar::{Device, Handle, Listener, MemoryRegion, RecvComm, Request, SendComm, Settings};
use invar_core::math::{Protocol, STEPS};
use invar_core::proxy::Pattern;

use crate::kernel::until;
use crate::ring::STEP_BYTES;
use crate::task::Task;
use crate::{LIMIT, NRANKS, Work};

const TAG: u32 = 0;
const TASK: Task = Task::Shift(Protocol::Simple);

/// Sends over as many connections as there are ranks, and prints the rate beside those of the proxy.
pub(crate) fn run(device: &Device, settings: &Settings, work: Work) -> Result<(), Box<dyn Error>> {
    let time = thread::scope(|scope| {
        let mut ends = Vec::new();
        for _ in 0..NRANKS {
            let listener = Listener::bind(device, settings)?;
            let handle = listener.handle();
            ends.push(scope.spawn(move || {
                send(device, settings, &handle, work).map_err(|error| error.to_string())
            }));
            ends.push(scope.spawn(move || {
                receive(device, &listener, work).map_err(|error| error.to_string())
            }));
        }
        let ends = ends.into_iter().map(|end| end.join().expect("no end panics"));
        let times = ends.collect::<Result<Vec<_>, _>>()?;
        Ok::<_, Box<dyn Error>>(times.into_iter().max().expect("there are ends"))
    })?;
    work.print_row("Shift Simple, no proxy", TASK.bytes(work.elements), time);
    Ok(())
}

/// The lengths of the messages of all rounds: a chunk each, as the proxy's.
fn lengths(work: Work) -> Result<impl Iterator<Item = usize>, Box<dyn Error>> {
    let bytes = TASK.bytes(work.elements);
    let chunk = TASK.cut(Pattern::Send, bytes as u64)?.steps.payload_bytes as usize;
    let round = move || (0..bytes).step_by(chunk).map(move |at| chunk.min(bytes - at));
    Ok((0..work.rounds).flat_map(move |_| round()))
}

/// The starts of a region's slots, in turns.
fn slots() -> impl Iterator<Item = usize> {
    (0..STEPS as usize).cycle().map(|slot| slot * STEP_BYTES)
}

fn send(
    device: &Device,
    settings: &Settings,
    handle: &Handle,
    work: Work,
) -> Result<Duration, Box<dyn Error>> {
    let mut comm = SendComm::connect(device, handle, settings)?.wait()?;
    let post = |comm: &mut SendComm, region: &_, range| comm.isend(region, range, TAG);
    stream(device, work, &mut comm, post, |comm, sent| comm.wait(sent, LIMIT).map(drop))
}

fn receive(device: &Device, listener: &Listener, work: Work) -> Result<Duration, Box<dyn Error>> {
    let mut comm = listener.accept_within(LIMIT)?;
    let post = |comm: &mut RecvComm, region: &_, range| comm.irecv(&[(region, range, TAG)]);
    stream(device, work, &mut comm, post, |comm, posted| comm.wait(posted, LIMIT).map(drop))
}

/// Posts the messages of all rounds at an end, and waits for each before its slot is needed again.
fn stream<C>(
    device: &Device,
    work: Work,
    comm: &mut C,
    post: impl Fn(&mut C, &MemoryRegion, Range<usize>) -> Result<Option<Request>, invar::Error>,
    wait: impl Fn(&mut C, &Request) -> Result<(), invar::Error>,
) -> Result<Duration, Box<dyn Error>> {
    let region = MemoryRegion::new(device, STEPS as usize * STEP_BYTES)?;
    let (mut pending, start) = (VecDeque::new(), Instant::now());
    for (at, len) in iter::zip(slots(), lengths(work)?) {
        if pending.len() == STEPS as usize
            && let Some(oldest) = pending.pop_front()
        {
            wait(comm, &oldest)?;
        }
        pending.push_back(until(|| Ok(post(comm, &region, at..at + len)?))?);
    }
    pending.iter().try_for_each(|request| wait(comm, request))?;
    Ok(start.elapsed())
}
