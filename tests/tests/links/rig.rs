//! Ranks with links to each other, and the messages that go over them.

use std::ptr::NonNull;
use std::time::Instant;

use invar::net::{LinkAttempt, NetRecv, NetSend, NetSettings, Network, wait_for_links};
use invar::{Device, Error, Settings};
use invar_linux::abort::Abort;
use invar_testkit::library::{self, first_device};
use invar_testkit::pattern::pattern_byte;
use invar_testkit::random::Random;
use invar_testkit::wait::LIMIT;

pub(crate) const SLOT_BYTES: usize = 8 << 10;

/// Devices on loopback, for each transport that every host has.
pub(crate) const DEVICES: [&str; 5] =
    ["soft IPv4", "soft IPv6", "socket IPv4", "socket IPv6", SHARED];
/// The device on which the links of both directions share a connection.
const SHARED: &str = "shared socket IPv4";

pub(crate) fn open(device: &str) -> Device {
    let family = match device {
        "soft IPv4" => return Device::open_at("127.0.0.1:0".parse().unwrap()).unwrap(),
        "soft IPv6" => return Device::open_at("[::1]:0".parse().unwrap()).unwrap(),
        "socket IPv4" | SHARED => "AF_INET",
        _ => "AF_INET6",
    };
    first_device(&library::settings(&[
        ("INVAR_TRANSPORT", "socket"),
        ("NCCL_SOCKET_IFNAME", "=lo"),
        ("NCCL_SOCKET_FAMILY", family),
    ]))
}

pub(crate) fn settings() -> NetSettings {
    NetSettings { slot_bytes: SLOT_BYTES, ..Settings::default().into() }
}

/// One of two ranks. On each channel it has a link to the other rank and a link from it.
pub(crate) struct Rank {
    pub(crate) sends: Vec<NetSend>,
    pub(crate) recvs: Vec<NetRecv>,
    pub(crate) network: Network,
    pub(crate) abort: Abort,
    pub(crate) number: u32,
}

/// Ranks 0 and 1.
pub(crate) fn pair(device: &str, channels: u16) -> [Rank; 2] {
    let mut ranks = [0, 1].map(|number| {
        let abort = Abort::default();
        let network = Network::open(vec![open(device)], &settings(), abort.clone()).unwrap();
        Rank { sends: Vec::new(), recvs: Vec::new(), network, abort, number }
    });
    let mut attempts: Vec<(usize, LinkAttempt)> = Vec::new();
    for channel in 0..channels {
        if device.ends_with(SHARED) {
            let [zero, one] = &ranks;
            let (listening, handle) = one.network.listen_both_ways(0, channel, 0).unwrap();
            attempts.push((1, listening));
            attempts.push((0, zero.network.connect_both_ways(1, channel, 0, &handle).unwrap()));
            continue;
        }
        for to in 0..2 {
            let from = 1 - to;
            let network = &ranks[to].network;
            let (listening, handle) = network.listen(from as u32, channel, 0).unwrap();
            attempts.push((to, listening));
            let network = &ranks[from].network;
            attempts.push((from, network.connect(to as u32, channel, 0, &handle).unwrap()));
        }
    }
    let (numbers, attempts): (Vec<usize>, Vec<LinkAttempt>) = attempts.into_iter().unzip();
    for (number, ends) in numbers.into_iter().zip(wait_for_links(attempts, LIMIT).unwrap()) {
        ranks[number].sends.extend(ends.send);
        ranks[number].recvs.extend(ends.recv);
    }
    ranks
}

impl Rank {
    /// Sends and receives `steps` slots on each channel, and checks the received ones. `seed` decides
    /// the lengths.
    pub(crate) fn exchange(&mut self, seed: u64, steps: u64) -> Result<(), Error> {
        let start = Instant::now();
        let channels = self.sends.len();
        let (mut sent, mut received) = (vec![0; channels], vec![0; channels]);
        loop {
            let mut settled = true;
            for (channel, link) in self.sends.iter_mut().enumerate() {
                let message = Message { seed, from: self.number, channel, step: sent[channel] };
                if sent[channel] < steps
                    && let Some(slot) = link.free(message.len())?
                {
                    // SAFETY: the slot belongs to this rank until it is published.
                    unsafe { message.write(slot) };
                    link.publish(message.len())?;
                    sent[channel] += 1;
                }
                settled &= link.progress()?;
            }
            for (channel, link) in self.recvs.iter_mut().enumerate() {
                let message =
                    Message { seed, from: 1 - self.number, channel, step: received[channel] };
                if received[channel] < steps
                    && let Some((slot, len)) = link.full()?
                {
                    assert_eq!(len, message.len(), "{message:?}");
                    // SAFETY: the slot belongs to this rank until it is released.
                    unsafe { message.check(slot) };
                    link.release();
                    received[channel] += 1;
                }
            }
            if settled && sent.iter().chain(&received).all(|done| *done == steps) {
                return Ok(());
            }
            assert!(start.elapsed() < LIMIT, "{}", self.network.dump());
            std::thread::yield_now();
        }
    }
}

/// Runs `work` on both ranks at once, each in a thread of its own.
pub(crate) fn both(ranks: &mut [Rank; 2], work: impl Fn(&mut Rank) + Sync) {
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| work(rank));
        }
    });
}

/// The content of a slot.
#[derive(Clone, Copy, Debug)]
struct Message {
    seed: u64,
    from: u32,
    channel: usize,
    step: u64,
}

impl Message {
    fn random(&self) -> Random {
        let Message { seed, from, channel, step } = *self;
        Random::new(seed ^ step << 20 ^ (channel as u64) << 4 ^ u64::from(from))
    }

    fn len(&self) -> usize {
        match self.random().below(8) {
            0 => 0,
            1 => SLOT_BYTES,
            2..4 => self.random().next() as usize % 64,
            _ => self.random().next() as usize % SLOT_BYTES,
        }
    }

    fn byte(&self, at: usize) -> u8 {
        pattern_byte(self.random().next() as usize, at)
    }

    unsafe fn write(&self, slot: NonNull<u8>) {
        for at in 0..self.len() {
            // SAFETY: the caller promises that the slot is its own, and no message is longer than a
            // slot.
            unsafe { slot.add(at).write(self.byte(at)) };
        }
    }

    unsafe fn check(&self, slot: NonNull<u8>) {
        for at in 0..self.len() {
            // SAFETY: the caller promises that the slot is its own, and no message is longer than a
            // slot.
            assert_eq!(unsafe { slot.add(at).read() }, self.byte(at), "byte {at} of {self:?}");
        }
    }
}
