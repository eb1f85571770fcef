//! Measures bare UDP over loopback with segmentation offload, as the software NIC sends. This is the
//! throughput that the kernel leaves to a protocol above UDP.

use std::io::ErrorKind;
use std::net::{Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use invar_linux::memory::Gather;
use invar_linux::udp::{RxBatch, RxSocket, TxSocket};

/// The size of a full RoCEv2 packet of path MTU 4096: BTH, payload, ICRC.
const DATAGRAM_BYTES: usize = 12 + 4096 + 4;
/// The number of datagrams for each system call.
const TRAIN: usize = 15;
/// The number of trains that the receiver takes with one call.
const BATCH_TRAINS: usize = 8;
/// The most bytes that are sent and not yet received. They fit well into a receive buffer of 16 MiB.
const IN_FLIGHT_BYTES: u64 = 1 << 20;
/// A run fails after this time without a received byte.
const STALL: Duration = Duration::from_secs(5);

/// Half the median round trip of a datagram of 8 bytes, in microseconds. Two threads exchange it by
/// polling.
pub(super) fn half_round_trip_us(round_trips: usize) -> Result<f64> {
    let bind = || -> Result<UdpSocket> {
        let socket = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0))?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    };
    let (near, far) = (bind()?, bind()?);
    let (near_addr, far_addr) = (near.local_addr()?, far.local_addr()?);
    thread::scope(|scope| {
        let echo = scope.spawn(|| -> Result<()> {
            for _ in 0..round_trips {
                await_datagram(&far)?;
                far.send_to(&[0; 8], near_addr)?;
            }
            Ok(())
        });
        let mut half_us = Vec::with_capacity(round_trips);
        for _ in 0..round_trips {
            let start = Instant::now();
            near.send_to(&[0; 8], far_addr)?;
            await_datagram(&near)?;
            half_us.push(start.elapsed().as_secs_f64() * 0.5e6);
        }
        echo.join().expect("the echo does not panic")?;
        half_us.sort_by(f64::total_cmp);
        Ok(half_us[round_trips / 2])
    })
}

fn await_datagram(socket: &UdpSocket) -> Result<()> {
    let mut stall = StallTimer::default();
    loop {
        match socket.recv(&mut [0; 8]) {
            Err(error) if error.kind() == ErrorKind::WouldBlock => stall.check(0)?,
            result => return Ok(result.map(|_| ())?),
        }
    }
}

/// The seconds that it takes to move at least `bytes` from one thread to another.
pub(super) fn seconds(bytes: usize) -> Result<f64> {
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let rx = RxSocket::bind(loopback)?;
    let tx = TxSocket::bind(loopback)?;
    let to = rx.local_addr()?;
    let received = AtomicU64::new(0);
    let bytes = bytes as u64;
    let begin = Instant::now();
    thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(&rx, bytes, &received));
        let sent = send(&tx, to, bytes, &received);
        receiver.join().expect("the receiver does not panic").and(sent)
    })?;
    Ok(begin.elapsed().as_secs_f64())
}

fn send(tx: &TxSocket, to: SocketAddr, bytes: u64, received: &AtomicU64) -> Result<()> {
    let train = vec![0x5a; TRAIN * DATAGRAM_BYTES];
    let mut sent = 0;
    let mut stall = StallTimer::default();
    while sent < bytes {
        let there = received.load(Ordering::Relaxed);
        stall.check(there)?;
        if sent - there < IN_FLIGHT_BYTES {
            let datagrams = tx.send_segments(to, &[Gather::bytes(&train)], DATAGRAM_BYTES)?;
            sent += (datagrams * DATAGRAM_BYTES) as u64;
        }
    }
    Ok(())
}

fn receive(rx: &RxSocket, bytes: u64, received: &AtomicU64) -> Result<()> {
    let mut batch = RxBatch::new(BATCH_TRAINS);
    let mut stall = StallTimer::default();
    let mut total = 0;
    while total < bytes {
        if rx.recv_batch(&mut batch)? > 0 {
            total += batch.datagrams().map(|datagram| datagram.bytes.len() as u64).sum::<u64>();
            received.store(total, Ordering::Relaxed);
        }
        stall.check(total)?;
    }
    Ok(())
}

/// Ends the run with an error when nothing moves any more, because a datagram was lost.
#[derive(Default)]
struct StallTimer {
    calls: u32,
    seen: Option<(u64, Instant)>,
}

impl StallTimer {
    fn check(&mut self, now_at: u64) -> Result<()> {
        self.calls = self.calls.wrapping_add(1);
        if !self.calls.is_multiple_of(4096) {
            return Ok(());
        }
        match self.seen {
            Some((at, since)) if at == now_at => {
                ensure!(since.elapsed() < STALL, "nothing received for {STALL:?}: a lost datagram");
            }
            _ => self.seen = Some((now_at, Instant::now())),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn all_bytes_arrive() {
        assert!(super::seconds(4 << 20).unwrap() > 0.0);
    }

    #[test]
    fn datagrams_go_to_and_fro() {
        assert!(super::half_round_trip_us(100).unwrap() > 0.0);
    }
}
