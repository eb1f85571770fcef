//! Ranks with links to each other, and what goes over them.

use std::ptr::NonNull;
use std::time::{Duration, Instant};

use invar::net::{NetProxy, NetRecv, NetSend, NetSettings, Receiving, Sending};
use invar::{Device, Error, Settings};
use invar_linux::proxy::Abort;
use invar_testkit::sim::Random;

/// Long enough for whatever a test waits for, on any machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
pub(crate) const SLOT_BYTES: usize = 8 << 10;

/// Loopback, by each transport that any host has.
pub(crate) const DEVICES: [&str; 5] =
    ["soft IPv4", "soft IPv6", "socket IPv4", "socket IPv6", SHARED];
/// Where links both ways share a connection.
const SHARED: &str = "shared socket IPv4";
/// Links that do without the proxy.
pub(crate) const DIRECT: [&str; 4] =
    ["direct soft IPv4", "direct soft IPv6", "direct socket IPv6", "direct shared socket IPv4"];
const WITHOUT_PROXY: &str = "direct ";

pub(crate) fn open(device: &str) -> Device {
    let family = match device.trim_start_matches(WITHOUT_PROXY) {
        "soft IPv4" => return Device::open_at("127.0.0.1:0".parse().unwrap()).unwrap(),
        "soft IPv6" => return Device::open_at("[::1]:0".parse().unwrap()).unwrap(),
        "socket IPv4" | SHARED => "AF_INET",
        _ => "AF_INET6",
    };
    let settings = Settings::from_lookup(|name| {
        let value = match name {
            "INVAR_TRANSPORT" => "socket",
            "NCCL_SOCKET_IFNAME" => "=lo",
            "NCCL_SOCKET_FAMILY" => family,
            _ => return None,
        };
        Some(value.to_owned())
    });
    let settings = settings.unwrap();
    let survey = Device::survey(&settings).unwrap();
    Device::open_for(&survey.devices[0], &settings).unwrap()
}

pub(crate) fn settings() -> NetSettings {
    NetSettings { slot_bytes: SLOT_BYTES, timeout: LIMIT, ..Settings::default().into() }
}

/// One of two ranks, with a link to the other and one from it on each channel.
pub(crate) struct Rank {
    pub(crate) sends: Vec<NetSend>,
    pub(crate) recvs: Vec<NetRecv>,
    pub(crate) proxy: NetProxy,
    pub(crate) abort: Abort,
    pub(crate) number: u32,
}

/// Who moves what ranks publish.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Moved {
    /// The rank, while it waits.
    ByRank,
    /// The proxy's thread.
    ByThread,
}

/// Ranks 0 and 1.
pub(crate) fn pair(device: &str, channels: u16) -> [Rank; 2] {
    let settings = NetSettings { without_proxy: device.starts_with(WITHOUT_PROXY), ..settings() };
    let mut proxies = [(); 2].map(|()| {
        let abort = Abort::default();
        (NetProxy::start(vec![open(device)], &settings, abort.clone()).unwrap(), abort)
    });
    let mut coming: [Vec<(Receiving, Sending)>; 2] = Default::default();
    for channel in 0..channels {
        if device.ends_with(SHARED) {
            let [(zero, _), (one, _)] = &mut proxies;
            let (to_one, from_one, address) = one.listen_both_ways(0, channel, 0).unwrap();
            let (from_zero, to_zero) = zero.connect_both_ways(1, channel, 0, &address).unwrap();
            coming[1].push((to_one, from_zero));
            coming[0].push((to_zero, from_one));
            continue;
        }
        for to in 0..2 {
            let (receiving, address) = proxies[to].0.listen(1 - to as u32, channel, 0).unwrap();
            let sending = proxies[1 - to].0.connect(to as u32, channel, 0, &address).unwrap();
            coming[to].push((receiving, sending));
        }
    }
    let [(mut zero, zero_abort), (mut one, one_abort)] = proxies;
    let [to_zero, to_one] = coming.map(|links| links.into_iter().unzip::<_, _, Vec<_>, Vec<_>>());
    let links = |proxy: &mut NetProxy, recvs: Vec<_>, sends: Vec<_>| {
        let recvs: Vec<_> = recvs.into_iter().map(|recv| proxy.receiver(recv).unwrap()).collect();
        let sends: Vec<_> = sends.into_iter().map(|send| proxy.sender(send).unwrap()).collect();
        (sends, recvs)
    };
    let (sends, recvs) = links(&mut zero, to_zero.0, to_one.1);
    let rank_zero = Rank { sends, recvs, proxy: zero, abort: zero_abort, number: 0 };
    let (sends, recvs) = links(&mut one, to_one.0, to_zero.1);
    [rank_zero, Rank { sends, recvs, proxy: one, abort: one_abort, number: 1 }]
}

impl Rank {
    /// Sends and receives as many slots on each channel, of lengths that a seed decides, and looks
    /// at what comes.
    pub(crate) fn exchange(&mut self, seed: u64, steps: u64, moved: Moved) -> Result<(), Error> {
        for link in &mut self.sends {
            link.start(steps)?;
        }
        for link in &mut self.recvs {
            link.start(steps)?;
        }
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
                    // SAFETY: the slot is this rank's until it is published.
                    unsafe { message.write(slot) };
                    link.publish(message.len())?;
                    sent[channel] += 1;
                }
                if moved == Moved::ByRank {
                    settled &= link.progress()?;
                }
            }
            for (channel, link) in self.recvs.iter_mut().enumerate() {
                let message =
                    Message { seed, from: 1 - self.number, channel, step: received[channel] };
                if received[channel] < steps
                    && let Some((slot, len)) = link.full()?
                {
                    assert_eq!(len, message.len(), "{message:?}");
                    // SAFETY: the slot is this rank's until it is released.
                    unsafe { message.check(slot) };
                    link.release();
                    received[channel] += 1;
                }
            }
            if settled && sent.iter().chain(&received).all(|done| *done == steps) {
                return Ok(());
            }
            assert!(start.elapsed() < LIMIT, "{}", self.proxy.dump());
            std::thread::yield_now();
        }
    }
}

/// Both ranks at once, each in a thread of its own.
pub(crate) fn both(ranks: &mut [Rank; 2], work: impl Fn(&mut Rank) + Sync) {
    std::thread::scope(|scope| {
        for rank in ranks {
            scope.spawn(|| work(rank));
        }
    });
}

/// What is in a slot.
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
        (self.random().next() as usize).wrapping_add(at * 7 + at / 251) as u8
    }

    unsafe fn write(&self, slot: NonNull<u8>) {
        for at in 0..self.len() {
            // SAFETY: the caller's promise; no message is longer than a slot.
            unsafe { slot.add(at).write(self.byte(at)) };
        }
    }

    unsafe fn check(&self, slot: NonNull<u8>) {
        for at in 0..self.len() {
            // SAFETY: as above.
            assert_eq!(unsafe { slot.add(at).read() }, self.byte(at), "byte {at} of {self:?}");
        }
    }
}
