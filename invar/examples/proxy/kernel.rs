//! The part of a GPU's kernel: it fills and empties slots, and waits on flags in memory.

use std::collections::HashMap;
use std::error::Error;
use std::iter;
use std::time::Instant;

use invar_core::math::{Protocol, STEPS};
use invar_core::topology::Direction;

use crate::LIMIT;
use crate::ring::{STEP_BYTES, SharedRing};

/// The rings of one operation, by direction and peer.
pub(crate) struct Rings<'r>(pub(crate) HashMap<(Direction, u32), Slices<'r>>);

impl<'r> Rings<'r> {
    pub(crate) fn has(&self, direction: Direction, peer: u32) -> bool {
        self.0.contains_key(&(direction, peer))
    }

    pub(crate) fn send(&mut self, peer: u32, chunk: &[u32]) -> Result<(), Box<dyn Error>> {
        let slices = self.of(Direction::Send, peer)?;
        slices.ranges(chunk.len()).try_for_each(|range| slices.send(&chunk[range]))
    }

    /// Waits for a chunk, which must be as long as `chunk`.
    pub(crate) fn recv(&mut self, peer: u32, chunk: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let slices = self.of(Direction::Recv, peer)?;
        slices.ranges(chunk.len()).try_for_each(|range| slices.recv(&mut chunk[range]))
    }

    /// Waits for a chunk and adds it to `chunk`.
    pub(crate) fn add(&mut self, peer: u32, chunk: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let mut came = vec![0; chunk.len()];
        self.recv(peer, &mut came)?;
        iter::zip(chunk, came).for_each(|(sum, other)| *sum = sum.wrapping_add(other));
        Ok(())
    }

    fn of(&mut self, direction: Direction, peer: u32) -> Result<&mut Slices<'r>, Box<dyn Error>> {
        let slices = self.0.get_mut(&(direction, peer));
        slices.ok_or_else(|| format!("the operation has no {direction:?} with rank {peer}").into())
    }
}

/// One end of an operation, at a slice after the other.
pub(crate) struct Slices<'r> {
    pub(crate) ring: &'r SharedRing,
    pub(crate) protocol: Protocol,
    /// The first step of the next slice.
    pub(crate) step: u64,
    /// Steps of a slice.
    pub(crate) steps: u64,
    /// Slices of a chunk.
    pub(crate) count: usize,
    /// Elements that a full slice carries.
    pub(crate) room: usize,
}

impl Slices<'_> {
    /// The elements of each slice of a chunk. The last slices of a short chunk are empty.
    fn ranges(&self, len: usize) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let (count, room) = (self.count, self.room);
        (0..count).map(move |slice| (slice * room).min(len)..((slice + 1) * room).min(len))
    }

    /// The flag of the lines of the next slice.
    fn flag(&self) -> u32 {
        self.step as u32 + 1
    }

    /// Fills the next slice, once the network has emptied it.
    fn send(&mut self, elements: &[u32]) -> Result<(), Box<dyn Error>> {
        let end = self.step + self.steps;
        until(|| Ok((self.ring.head() + u64::from(STEPS) >= end).then_some(())))?;
        match self.protocol {
            Protocol::Simple => self.fill(elements),
            _ => self.fill(&with_flags(self.protocol, elements, self.flag())),
        }
        self.step = end;
        Ok(())
    }

    fn fill(&self, words: &[u32]) {
        let (slot, len) = (self.ring.slot(self.step), size_of_val(words));
        assert!(len <= self.steps as usize * STEP_BYTES, "a slice has no room for {len} bytes");
        // SAFETY: a slice's slots lie one behind the other, and are this kernel's until it says that they
        // are filled.
        unsafe { slot.as_ptr().copy_from_nonoverlapping(words.as_ptr().cast(), len) };
        self.ring.fill(self.step, self.steps, len as u32);
    }

    /// Waits for the next slice and copies it to `elements`, which must be as long.
    fn recv(&mut self, elements: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let end = self.step + self.steps;
        until(|| Ok((self.ring.tail() >= end).then_some(())))?;
        match line(self.protocol) {
            None => self.empty(elements)?,
            Some((words, of_data)) => {
                let mut lines = vec![0; elements.len().div_ceil(of_data) * words];
                self.empty(&mut lines)?;
                for (elements, line) in elements.chunks_mut(of_data).zip(lines.chunks(words)) {
                    let (data, flags) = line.split_at(of_data);
                    if flags.iter().any(|flag| *flag != self.flag()) {
                        return Err("a line came without its flag".into());
                    }
                    elements.copy_from_slice(&data[..elements.len()]);
                }
            }
        }
        self.ring.empty(end);
        self.step = end;
        Ok(())
    }

    fn empty(&self, words: &mut [u32]) -> Result<(), Box<dyn Error>> {
        let (size, len) = (self.ring.size(self.step) as usize, size_of_val(words));
        if size != len || len > self.steps as usize * STEP_BYTES {
            return Err(format!("a slice of {size} bytes where {len} are to come").into());
        }
        let slot = self.ring.slot(self.step);
        // SAFETY: as above; this kernel's until it says that they are empty.
        unsafe { slot.as_ptr().copy_to_nonoverlapping(words.as_mut_ptr().cast(), len) };
        Ok(())
    }
}

/// The words of a protocol's line, and how many of them are data. The others are flags.
fn line(protocol: Protocol) -> Option<(usize, usize)> {
    match protocol {
        Protocol::Ll => Some((2, 1)),
        Protocol::Ll128 => Some((32, 30)),
        Protocol::Simple => None,
    }
}

/// The elements in whole lines of the protocol, with flags.
fn with_flags(protocol: Protocol, elements: &[u32], flag: u32) -> Vec<u32> {
    let Some((words, of_data)) = line(protocol) else { return elements.to_vec() };
    let mut lines = vec![0; elements.len().div_ceil(of_data) * words];
    for (elements, line) in elements.chunks(of_data).zip(lines.chunks_mut(words)) {
        line[..elements.len()].copy_from_slice(elements);
        line[of_data..].fill(flag);
    }
    lines
}

/// Asks until there is an answer. A GPU would spin; here the others need the processors too.
pub(crate) fn until<T>(
    mut ask: impl FnMut() -> Result<Option<T>, Box<dyn Error>>,
) -> Result<T, Box<dyn Error>> {
    let start = Instant::now();
    loop {
        if let Some(answer) = ask()? {
            return Ok(answer);
        }
        if start.elapsed() > LIMIT {
            return Err(format!("nothing was moved for {LIMIT:?}; is the proxy alive?").into());
        }
        std::thread::yield_now();
    }
}
