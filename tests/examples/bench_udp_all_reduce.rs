//! An all-reduce of floats by two threads over bare UDP, with the ICRC of each packet computed and
//! verified, and nothing else of a protocol: no connection, no acknowledge, nothing sent again. It shows
//! what the kernel and the ICRC leave to the software NIC.
//!
//! `bench_udp_all_reduce BEGIN END FACTOR WARMUP ROUNDS` prints a line "bytes µs", the median, for each
//! size that fits into a socket's buffer; "bytes NaN" for the others.

#![allow(clippy::print_stdout, reason = "a command line tool")]

use std::net::{Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};
use std::{env, thread};

use invar_core::roce::{Flow, Ipv4Id};
use invar_linux::memory::Gather;
use invar_linux::processors;
use invar_linux::udp::{RxBatch, RxSocket, TxSocket};
use rustix::thread::sched_setaffinity;

/// A packet has the parts and lengths of those between Invar's own peers over loopback.
const BTH_BYTES: usize = 12;
const PAYLOAD_BYTES: usize = 8128;
const ICRC_BYTES: usize = 4;
const DATAGRAM_BYTES: usize = BTH_BYTES + PAYLOAD_BYTES + ICRC_BYTES;
/// Packets a system call that sends, and trains one that receives.
const TRAIN: usize = 8;
const BATCH_TRAINS: usize = 8;

/// Nothing holds a sender back but the receiver's buffer, which has room for half of this.
const BYTES_MAX: usize = 16 << 20;
/// Up to here each sends all that it has, and beyond half of it and then half of the sum.
const ONE_HOP_BYTES_MAX: usize = 128 << 10;
/// Without all that has to come: a datagram was lost.
const STALL: Duration = Duration::from_secs(5);

fn main() {
    let numbers: Option<Vec<usize>> = env::args().skip(1).map(|arg| arg.parse().ok()).collect();
    let Some(&[begin, end, factor, warmup, rounds]) = numbers.as_deref() else {
        panic!("five numbers: BEGIN END FACTOR WARMUP ROUNDS");
    };
    assert!(begin > 0 && factor > 1 && rounds > 0, "0 bytes, or no larger size, or 0 rounds");
    let mut bytes = begin;
    while bytes <= end {
        let us = if bytes <= BYTES_MAX { median_us(bytes, warmup, rounds) } else { f64::NAN };
        println!("{bytes} {us}");
        bytes *= factor;
    }
}

fn median_us(bytes: usize, warmup: usize, rounds: usize) -> f64 {
    let loopback = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
    let ends = [(); 2].map(|()| {
        (RxSocket::bind(loopback).expect("a socket"), TxSocket::bind(loopback).expect("a socket"))
    });
    let addrs = [0, 1].map(|rank: usize| {
        let (rx, tx) = &ends[rank];
        (rx.local_addr().expect("bound"), tx.local_addr().expect("bound"))
    });
    let mut each = processors::allowed().into_iter();
    let both_ready = Barrier::new(2);
    let mut times = thread::scope(|scope| {
        let ranks = [0, 1].into_iter().zip(ends).map(|(rank, end)| {
            let (processor, both_ready) = (each.next(), &both_ready);
            scope.spawn(move || {
                // Anywhere else it is slower and as right.
                let _ = processor.map(|one| sched_setaffinity(None, &one));
                let mut rank = Rank::new(rank, end, addrs, bytes);
                both_ready.wait();
                rank.rounds(warmup, rounds)
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().map(|rank| rank.join().expect("it says why")).next().unwrap_or_default()
    });
    times.sort_by(f64::total_cmp);
    times[rounds / 2]
}

/// One of the two.
struct Rank {
    rx: RxSocket,
    tx: TxSocket,
    to: SocketAddr,
    outgoing: Flow,
    incoming: Flow,
    batch: RxBatch,
    /// The packet whose ICRC is computed.
    packet: Box<[u8; BTH_BYTES + PAYLOAD_BYTES]>,
    input: Vec<u8>,
    output: Vec<u8>,
    /// The other rank's input for the part that this rank sums up.
    slot: Vec<u8>,
    /// The part that this rank sums up, and the one that the other does.
    own: Range<usize>,
    other: Range<usize>,
    /// Bytes that have come: terms, and then sums, if not all are this rank's. Those of the next round
    /// may follow at once.
    received: usize,
}

impl Rank {
    fn new(
        rank: usize,
        (rx, mut tx): (RxSocket, TxSocket),
        addrs: [(SocketAddr, SocketAddr); 2],
        bytes: usize,
    ) -> Rank {
        let ((own_rx, own_tx), (to, from)) = (addrs[rank], addrs[1 - rank]);
        tx.expect_peer(to).expect("a route over loopback");
        let flow = |from, to| Flow::new(from, to).expect("both are IPv6");
        let half = bytes / 2;
        let (own, other) = match rank {
            _ if bytes <= ONE_HOP_BYTES_MAX => (0..bytes, 0..bytes),
            0 => (0..half, half..bytes),
            _ => (half..bytes, 0..half),
        };
        Rank {
            rx,
            tx,
            to,
            outgoing: flow(own_tx, to),
            incoming: flow(from, own_rx),
            batch: RxBatch::new(BATCH_TRAINS),
            packet: Box::new([0; BTH_BYTES + PAYLOAD_BYTES]),
            input: 1_f32.to_ne_bytes().repeat(bytes / 4),
            output: vec![0; bytes],
            slot: vec![0; own.len()],
            own,
            other,
            received: 0,
        }
    }

    /// The µs of each round but those to warm up.
    fn rounds(&mut self, warmup: usize, rounds: usize) -> Vec<f64> {
        let times = (0..warmup + rounds).map(|_| {
            let start = Instant::now();
            self.all_reduce(start + STALL);
            start.elapsed().as_secs_f64() * 1e6
        });
        let times = times.skip(warmup).collect();
        let two = 2_f32.to_ne_bytes();
        assert!(self.output.as_chunks().0.iter().all(|sum| *sum == two), "a wrong sum");
        times
    }

    fn all_reduce(&mut self, deadline: Instant) {
        let terms = self.slot.len();
        let (mut sent, mut summed) = (0, 0);
        while sent < terms || summed < terms {
            sent += self.send(false, sent);
            self.receive(deadline);
            // The bytes that have come are still in the nearest cache.
            let come = self.received.min(terms);
            self.sum(summed..come);
            summed = come;
        }
        let all = self.output.len();
        let sums = all - terms;
        let mut sent = 0;
        while sent < sums || self.received < all {
            sent += if sent < sums { self.send(true, sent) } else { 0 };
            self.receive(deadline);
        }
        self.received -= all;
    }

    /// Sends a train of the input, or of the sums, from `start` on; says how many bytes that is.
    fn send(&mut self, sums: bool, start: usize) -> usize {
        let (from, part) = match sums {
            false => (&self.input, self.other.clone()),
            true => (&self.output, self.own.clone()),
        };
        let left = &from[part][start..];
        let payloads = || left.chunks(PAYLOAD_BYTES).take(TRAIN);
        let mut icrcs = [[0; ICRC_BYTES]; TRAIN];
        for (payload, icrc) in payloads().zip(&mut icrcs) {
            let packet = &mut self.packet[..BTH_BYTES + payload.len()];
            packet[BTH_BYTES..].copy_from_slice(payload);
            *icrc = self.outgoing.icrc(Ipv4Id::Masked, packet);
        }
        let pieces: Vec<Gather<'_>> = payloads()
            .zip(&icrcs)
            .flat_map(|(payload, icrc)| [&[0; BTH_BYTES], payload, icrc].map(Gather::bytes))
            .collect();
        if pieces.is_empty() {
            return 0;
        }
        let sent = self.tx.send_segments(self.to, &pieces, DATAGRAM_BYTES).expect("sent");
        payloads().take(sent).map(<[u8]>::len).sum()
    }

    /// Places what has come, which is in order.
    fn receive(&mut self, deadline: Instant) {
        if self.rx.recv_batch(&mut self.batch).expect("received") == 0 {
            assert!(Instant::now() < deadline, "a datagram was lost");
            return;
        }
        for datagram in self.batch.datagrams() {
            assert!(self.incoming.verify(Ipv4Id::Masked, datagram.bytes), "a wrong ICRC");
            let payload = &datagram.bytes[BTH_BYTES..datagram.bytes.len() - ICRC_BYTES];
            let at = self.received % self.output.len();
            let place = match at.checked_sub(self.slot.len()) {
                None => &mut self.slot[at..],
                Some(at) => &mut self.output[self.other.clone()][at..],
            };
            place[..payload.len()].copy_from_slice(payload);
            self.received += payload.len();
        }
    }

    /// Adds a part of the slot to the input.
    fn sum(&mut self, part: Range<usize>) {
        let float = |bytes: &[u8; 4]| f32::from_ne_bytes(*bytes);
        let sums = &mut self.output[self.own.clone()][part.clone()];
        let inputs = &self.input[self.own.clone()][part.clone()];
        let terms = inputs.as_chunks().0.iter().zip(self.slot[part].as_chunks().0);
        for (sum, (a, b)) in sums.as_chunks_mut().0.iter_mut().zip(terms) {
            *sum = (float(a) + float(b)).to_ne_bytes();
        }
    }
}
