//! The memory and the completions of one end.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use invar_core::nic::{Access, Atomic, RecvWr, Wc, WcStatus};
use invar_core::roce::qp::{AccessFault, Destination, Env, Payload, QpSide, Queue, Region};

/// The key of [`Memory::open`].
pub const KEY: u32 = 0x77;
/// The address of [`Memory::open`].
pub const ADDR: u64 = 0x10_0000;

/// A registered region. Its lkey and rkey are equal.
#[derive(Clone, Debug)]
pub struct Memory {
    /// The region's key.
    pub key: u32,
    /// The address of the first byte.
    pub addr: u64,
    /// The permitted accesses.
    pub access: Access,
    /// The content.
    pub bytes: Vec<u8>,
}

impl Memory {
    /// A region of 16 KiB of zeros with all access rights.
    pub fn open() -> Memory {
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        Memory { key: KEY, addr: ADDR, access, bytes: vec![0; 16 * 1024] }
    }
}

/// The memory of one end, and the completions there.
#[derive(Clone, Debug, Default)]
pub struct Host {
    /// All regions.
    pub regions: Vec<Memory>,
    /// The completions of sends, in order of arrival.
    pub sends: Vec<Wc>,
    /// The completions of receives, in order of arrival.
    pub receives: Vec<Wc>,
    /// The inline bytes, by slot.
    pub inline: BTreeMap<u16, Vec<u8>>,
    /// The receives of a shared queue.
    pub shared: VecDeque<RecvWr>,
    /// The operations of posted atomics, by slot.
    pub atomics: BTreeMap<u16, Atomic>,
    /// The receivers of posted datagrams, by slot.
    pub destinations: BTreeMap<u16, Destination>,
    /// The keys that the peer may invalidate. Each may be invalidated once.
    pub keys: BTreeSet<u32>,
    /// The outcomes of posted local operations, by slot.
    pub locals: BTreeMap<u16, Result<(), WcStatus>>,
    /// The number of local operations that were carried out.
    pub locals_done: u32,
}

impl Host {
    /// The bytes that a packet carries.
    pub fn payload(&self, payload: Payload) -> &[u8] {
        let at = |offset: usize, len: u32| offset..offset + len as usize;
        match payload {
            Payload::None => &[],
            Payload::List { .. } => unreachable!("no request has several buffers"),
            Payload::Inline { slot, offset, len } => &self.inline[&slot][at(offset as usize, len)],
            Payload::Memory { region: Region { index, offset }, len } => {
                &self.regions[index as usize].bytes[at(offset as usize, len)]
            }
        }
    }
}

impl Env for Host {
    fn resolve(
        &mut self,
        key: u32,
        addr: u64,
        len: u32,
        need: Access,
        _: QpSide,
    ) -> Result<Region, AccessFault> {
        assert_ne!(len, 0, "nothing to resolve");
        let index = self.regions.iter().position(|memory| memory.key == key);
        let index = index.ok_or(AccessFault)?;
        let memory = &self.regions[index];
        let offset = addr.checked_sub(memory.addr).ok_or(AccessFault)?;
        let end = offset.checked_add(len.into()).ok_or(AccessFault)?;
        if end > memory.bytes.len() as u64 || !memory.access.contains(need) {
            return Err(AccessFault);
        }
        Ok(Region { index: index as u32, offset })
    }

    fn place(&mut self, to: Region, payload: &[u8]) {
        let at = to.offset as usize;
        self.regions[to.index as usize].bytes[at..at + payload.len()].copy_from_slice(payload);
    }

    fn take_receive(&mut self, _: u16) -> Option<(RecvWr, bool)> {
        self.shared.pop_front().map(|wr| (wr, false))
    }

    fn atomic(&mut self, slot: u16) -> Option<Atomic> {
        self.atomics.get(&slot).copied()
    }

    fn local(&mut self, slot: u16) -> Result<(), WcStatus> {
        self.locals_done += 1;
        self.locals[&slot]
    }

    fn invalidate(&mut self, key: u32) -> Result<(), AccessFault> {
        if self.keys.remove(&key) { Ok(()) } else { Err(AccessFault) }
    }

    fn destination(&mut self, slot: u16) -> Option<Destination> {
        self.destinations.get(&slot).copied()
    }

    fn update(&mut self, at: Region, atomic: Atomic) -> Result<u64, AccessFault> {
        let start = at.offset as usize;
        let word = &mut self.regions[at.index as usize].bytes[start..start + 8];
        let before = u64::from_ne_bytes(word.try_into().unwrap());
        word.copy_from_slice(&atomic.apply(before).to_ne_bytes());
        Ok(before)
    }

    fn complete(&mut self, queue: Queue, wc: Wc, _: bool) {
        match queue {
            Queue::Send => self.sends.push(wc),
            Queue::Recv => self.receives.push(wc),
        }
    }
}
