//! The two ends of the connection: one sends for a time, the other checks every byte.

use std::collections::VecDeque;
use std::time::{Duration, Instant};
use std::{fmt, io};

use clap::ValueEnum;
use invar::{Device, Handle, Listener, MemoryRegion, Request, SendComm, Settings};

use super::super::pattern::{Flow, Pattern};
use crate::failure::Failure;
use crate::output::print;

/// The devices of a host that has two links.
const DEVICES: &str = "soft0+soft1";
/// Bytes of a message, and messages under way.
const SIZE: u32 = 256 << 10;
const WINDOW: usize = 8;
/// The time between two lines of the sender.
const SLICE: Duration = Duration::from_millis(500);
/// The longest wait for the peer to connect.
const TIMEOUT: Duration = Duration::from_secs(30);
const SEED: u64 = 14791;

/// The part of an end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Send,
    Receive,
}

impl Role {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Role::Send => "send",
            Role::Receive => "receive",
        }
    }
}

/// A part of the time, as the sender sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slice {
    pub(super) time: Duration,
    pub(super) bytes: u64,
    /// The longest time between two messages that were done.
    pub(super) gap: Duration,
}

impl Slice {
    /// Gigabytes in a second.
    pub(super) fn rate(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.time.as_secs_f64().max(1e-9)
    }

    pub(super) fn add(&mut self, other: &Slice) {
        self.time += other.time;
        self.bytes += other.bytes;
        self.gap = self.gap.max(other.gap);
    }

    fn line(&self) -> String {
        format!("{} {} {}", self.time.as_micros(), self.bytes, self.gap.as_micros())
    }

    pub(super) fn parse(line: &str) -> Option<Slice> {
        let mut numbers = line.split(' ').map(str::parse::<u64>);
        let [time, bytes, gap] = std::array::from_fn(|_| numbers.next().and_then(Result::ok));
        let (time, gap) = (Duration::from_micros(time?), Duration::from_micros(gap?));
        Some(Slice { time, bytes: bytes?, gap })
    }
}

/// Runs an end.
pub(in super::super) fn run(
    role: Role,
    time: Duration,
    settings: &Settings,
) -> Result<(), Failure> {
    let device = Device::open_for(&Device::find(DEVICES, settings)?, settings)?;
    let region = MemoryRegion::new(&device, WINDOW * SIZE as usize)?;
    match role {
        Role::Send => send(&device, &region, time, settings),
        Role::Receive => receive(&device, &region, settings),
    }
}

/// The place of a message in the region.
fn place(message: u64) -> std::ops::Range<usize> {
    let at = (message % WINDOW as u64) as usize * SIZE as usize;
    at..at + SIZE as usize
}

fn send(
    device: &Device,
    region: &MemoryRegion,
    time: Duration,
    settings: &Settings,
) -> Result<(), Failure> {
    let mut text = String::new();
    io::stdin().read_line(&mut text).map_err(|error| Failure::io("reading the handle", &error))?;
    let mut comm = SendComm::connect(device, &parse(text.trim())?, settings)?.wait()?;
    let pattern = Pattern::new(SEED, 0, Flow::ToServer, SIZE);
    let mut under_way: VecDeque<Request> = VecDeque::new();
    let (mut written, mut started, mut slice) = (0, 0, Slice::default());
    let begin = Instant::now();
    let (mut last_line, mut last_done) = (begin, begin);
    while begin.elapsed() < time || !under_way.is_empty() {
        if begin.elapsed() < time && under_way.len() < WINDOW {
            if written == started {
                pattern.fill(region, place(started).start, started)?;
                written += 1;
            }
            if let Some(request) = comm.isend(region, place(started), 0)? {
                under_way.push_back(request);
                started += 1;
            }
        }
        while let Some(first) = under_way.front() {
            let is_done = comm.test(first)?.is_some();
            let now = Instant::now();
            slice.gap = slice.gap.max(now - last_done);
            if !is_done {
                break;
            }
            under_way.pop_front();
            slice.bytes += u64::from(SIZE);
            last_done = now;
        }
        if last_line.elapsed() >= SLICE {
            slice.time = last_line.elapsed();
            last_line = Instant::now();
            say(std::mem::take(&mut slice).line())?;
        }
    }
    slice.time = last_line.elapsed();
    say(slice.line())?;
    // An empty message says that this was all.
    comm.send(region, 0..0, 0, TIMEOUT)?;
    Ok(())
}

fn receive(device: &Device, region: &MemoryRegion, settings: &Settings) -> Result<(), Failure> {
    let listener = Listener::bind(device, settings)?;
    let handle = listener.handle();
    say(handle.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect::<String>())?;
    let mut comm = listener.accept_within(TIMEOUT)?;
    let pattern = Pattern::new(SEED, 0, Flow::ToServer, SIZE);
    let mut under_way: VecDeque<Request> = VecDeque::new();
    let (mut posted, mut done, mut wrong) = (0, 0, 0);
    loop {
        if under_way.len() < WINDOW
            && let Some(request) = comm.irecv(&[(region, place(posted), 0)])?
        {
            under_way.push_back(request);
            posted += 1;
        }
        let Some(first) = under_way.front() else { continue };
        let Some(received) = comm.test(first)? else { continue };
        under_way.pop_front();
        if received.sizes().iter().all(|size| *size == 0) {
            return say(format_args!("{} {wrong}", done * u64::from(SIZE)));
        }
        wrong += pattern.wrong(region, place(done).start, done)?;
        done += 1;
    }
}

/// Tells the first process something.
fn say(text: impl fmt::Display) -> Result<(), Failure> {
    print(io::stdout(), "to the first process", &text.to_string())
}

/// Reads a handle.
fn parse(text: &str) -> Result<Handle, Failure> {
    let refused = || Failure::new("the receiving end has told no handle");
    let byte = |at: usize| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
    let bytes: Option<Vec<u8>> = (0..text.len() / 2).map(|i| byte(2 * i)).collect();
    let bytes = bytes.and_then(|bytes| bytes.try_into().ok()).ok_or_else(refused)?;
    Handle::from_bytes(bytes).map_err(|_| refused())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slice_reads_as_it_was_written() {
        let slice = Slice {
            time: Duration::from_micros(500_123),
            bytes: 7 << 20,
            gap: Duration::from_micros(31),
        };
        assert_eq!(Slice::parse(&slice.line()), Some(slice));
        assert!(["", "1 2", "1 x 3"].iter().all(|line| Slice::parse(line).is_none()));
    }
}
