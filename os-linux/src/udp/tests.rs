use super::*;
use std::io::Read;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::memory::{Gather, HostMemory};

const LOCALHOSTS: [&str; 2] = ["127.0.0.1:0", "[::1]:0"];

/// A timeout longer than any scheduling delay; a test that reaches it has failed.
const TIMEOUT: Duration = Duration::from_secs(10);

fn pair(localhost: &str) -> (TxSocket, RxSocket, SocketAddr) {
    let addr = localhost.parse().unwrap();
    let rx = RxSocket::bind(addr).unwrap();
    let to = rx.local_addr().unwrap();
    (TxSocket::bind(addr).unwrap(), rx, to)
}

/// Receives `count` datagrams, all of which must come from `source`.
fn receive(rx: &RxSocket, batch: &mut RxBatch, count: usize, source: SocketAddr) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while all.len() < count {
        if rx.recv_batch(batch).unwrap() == 0 {
            assert!(rx.wait_readable(Some(TIMEOUT)).unwrap(), "{} of {count} arrived", all.len());
        }
        for datagram in batch.datagrams() {
            assert_eq!(datagram.source, source);
            all.push(datagram.bytes.to_vec());
        }
    }
    assert_eq!(rx.recv_batch(batch).unwrap(), 0);
    assert_eq!(batch.datagrams().count(), 0);
    all
}

/// A train of datagrams of equal size, except for the last, with the positions of cuts.
fn train() -> impl Strategy<Value = (usize, Vec<u8>, Vec<usize>)> {
    (1..5000usize, 0..SEGMENTS_MAX).prop_flat_map(|(segment_bytes, segments)| {
        let whole = segments % TxSocket::segments_max(segment_bytes) * segment_bytes;
        let bytes = whole + 1..=whole + segment_bytes;
        let cuts = prop::collection::vec(0..segment_bytes, 0..PIECES_MAX - 2);
        (Just(segment_bytes), bytes.prop_map(|n| (0..n).map(|i| (i * 7) as u8).collect()), cuts)
    })
}

/// Returns the pieces of a train: every datagram is cut at `cuts`, and an empty piece ends the list.
fn pieces<'a>(bytes: &'a [u8], segment_bytes: usize, cuts: &[usize]) -> Vec<Gather<'a>> {
    let mut cuts = cuts.to_vec();
    cuts.sort_unstable();
    let mut pieces = Vec::new();
    for datagram in bytes.chunks(segment_bytes) {
        let mut start = 0;
        for &cut in &cuts {
            pieces.push(Gather::bytes(&datagram[start..cut.clamp(start, datagram.len())]));
            start = cut.clamp(start, datagram.len());
        }
        pieces.push(Gather::bytes(&datagram[start..]));
    }
    pieces.push(Gather::bytes(&[]));
    pieces
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_train_arrives_as_its_datagrams_with_offload_and_without(
        (segment_bytes, bytes, cuts) in train(),
        localhost in prop::sample::select(&LOCALHOSTS),
        offload in any::<bool>(),
    ) {
        let (mut tx, rx, to) = pair(localhost);
        tx.offload = (offload && tx.offload()).into();
        let pieces = pieces(&bytes, segment_bytes, &cuts);
        let datagrams: Vec<&[u8]> = bytes.chunks(segment_bytes).collect();
        prop_assert_eq!(tx.send_segments(to, &pieces, segment_bytes).unwrap(), datagrams.len());
        let source = tx.local_addr().unwrap();
        prop_assert_eq!(receive(&rx, &mut RxBatch::new(4), datagrams.len(), source), datagrams);
    }
}

#[test]
fn the_longest_train_of_every_path_mtu_is_one_system_call() {
    for localhost in LOCALHOSTS {
        let (tx, rx, to) = pair(localhost);
        for segment_bytes in [1, 256 + 58, 1024 + 58, 2048 + 58, 4096 + 58, 21_835] {
            let segments = TxSocket::segments_max(segment_bytes);
            let bytes = vec![7; segments * segment_bytes];
            let sent = tx.send_segments(to, &[Gather::bytes(&bytes)], segment_bytes).unwrap();
            assert_eq!(sent, segments);
            let source = tx.local_addr().unwrap();
            let received = receive(&rx, &mut RxBatch::new(1), segments, source);
            assert!(received.iter().all(|datagram| datagram.len() == segment_bytes));
        }
        assert!(tx.offload(), "this kernel cuts trains, and none of these was too long");
    }
    assert_eq!(TxSocket::segments_max(0), SEGMENTS_MAX);
    assert_eq!(TxSocket::segments_max(DATAGRAM_BYTES_MAX + 1), 1);
}

#[test]
fn a_socket_on_which_the_kernel_refuses_trains_goes_on_without() {
    let (tx, rx, to) = pair("127.0.0.1:0");
    // Without checksums the kernel refuses trains with EINVAL, as an incapable device does with EIO.
    set_option(&tx.socket, libc::SOL_SOCKET, libc::SO_NO_CHECK, 1).unwrap();
    assert!(tx.offload());
    assert_eq!((tx.ip_id(0), tx.ip_id(3)), (0, 3));
    let bytes = [7; 400];
    for _ in 0..2 {
        assert_eq!(tx.send_segments(to, &[Gather::bytes(&bytes)], 100).unwrap(), 4);
        assert!(!tx.offload());
        assert_eq!((tx.ip_id(0), tx.ip_id(3)), (0, 0));
        let received = receive(&rx, &mut RxBatch::new(16), 4, tx.local_addr().unwrap());
        assert_eq!(received, vec![vec![7; 100]; 4]);
    }
}

#[test]
fn what_is_no_train_is_refused_before_anything_is_sent() {
    let (mut tx, rx, to) = pair("127.0.0.1:0");
    let bytes = vec![0; DATAGRAM_BYTES_MAX + 1];
    for (len, segment_bytes) in [(0, 100), (100, 0), (65, 1), (DATAGRAM_BYTES_MAX + 1, 2000)] {
        let error = tx.send_segments(to, &[Gather::bytes(&bytes[..len])], segment_bytes);
        assert_eq!(error.unwrap_err().source.kind(), io::ErrorKind::InvalidInput);
    }
    tx.offload = false.into();
    let crumbs = vec![Gather::bytes(&bytes[..1]); PIECES_MAX + 1];
    let error = tx.send_segments(to, &crumbs, PIECES_MAX + 1);
    assert_eq!(error.ok(), Some(1), "one datagram goes as it is");
    let error = tx.send_segments(to, &[&crumbs[..], &crumbs[..]].concat(), PIECES_MAX + 1);
    assert!(error.unwrap_err().to_string().contains("more than 8 pieces"));
    receive(&rx, &mut RxBatch::new(1), 1, tx.local_addr().unwrap());
}

#[test]
fn the_refusal_of_one_peer_loses_nothing_that_goes_to_another() {
    for localhost in LOCALHOSTS {
        let (mut tx, rx, to) = pair(localhost);
        let gone = RxSocket::bind(localhost.parse().unwrap()).unwrap().local_addr().unwrap();
        tx.expect_peer(gone).unwrap();
        for _ in 0..3 {
            for to in [gone, to] {
                assert_eq!(tx.send_segments(to, &[Gather::bytes(&[7; 300])], 100).unwrap(), 3);
            }
            receive(&rx, &mut RxBatch::new(1), 3, tx.local_addr().unwrap());
        }
    }
}

/// The ICMP message that a datagram did not reach `to`, for the reason `code`.
fn unreachable_message(code: u8, from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let (IpAddr::V4(src), IpAddr::V4(dst)) = (from.ip(), to.ip()) else {
        panic!("the message is of IPv4");
    };
    let mut message = vec![3, code, 0, 0, 0, 0, 0, 0];
    message.extend([0x45, 0, 0, 28, 0, 0, 0x40, 0, 64, 17, 0, 0]);
    message.extend([src.octets(), dst.octets()].concat());
    message.extend([from.port().to_be_bytes(), to.port().to_be_bytes(), [0, 8], [0, 0]].concat());
    let words = message.chunks_exact(2).map(|word| u16::from_be_bytes([word[0], word[1]]));
    let sum: u32 = words.map(u32::from).sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    let checksum = !(sum + (sum >> 16)) as u16;
    message[2..4].copy_from_slice(&checksum.to_be_bytes());
    message
}

#[test]
fn a_peer_that_is_unreachable_costs_neither_packets_to_another_nor_offload() {
    const PROTOCOL_UNREACHABLE: u8 = 2;
    const FILTERED: u8 = 13;
    let icmp = match Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::ICMPV4)) {
        Ok(icmp) => icmp,
        Err(error) => return eprintln!("skipped: a raw socket sends ICMP: {error}"),
    };
    let (mut tx, rx, to) = pair("127.0.0.1:0");
    let (_, _other_rx, other) = pair("127.0.0.1:0");
    tx.expect_peer(other).unwrap();
    assert!(tx.offload());
    let source = tx.local_addr().unwrap();
    for code in [PROTOCOL_UNREACHABLE, FILTERED] {
        let message = unreachable_message(code, source, other);
        icmp.send_to(&message, &SocketAddr::new(source.ip(), 0).into()).unwrap();
        let mut fds = [PollFd::new(&tx.socket, PollFlags::empty())];
        let limit = Timespec { tv_sec: TIMEOUT.as_secs() as _, tv_nsec: 0 };
        assert_eq!(poll(&mut fds, Some(&limit)), Ok(1), "the socket has an error");
        assert_eq!(tx.send_segments(to, &[Gather::bytes(&[7; 300])], 100).unwrap(), 3);
        receive(&rx, &mut RxBatch::new(1), 3, source);
        assert!(tx.offload());
    }
}

#[test]
fn an_error_names_destination_and_cause() {
    // This length fits into a datagram, but with its headers not into loopback's 65 536 bytes.
    let (tx, _rx, to) = pair("[::1]:0");
    let bytes = vec![0; DATAGRAM_BYTES_MAX];
    let error = tx.send_segments(to, &[Gather::bytes(&bytes)], DATAGRAM_BYTES_MAX).unwrap_err();
    let error = error.to_string();
    assert!(error.starts_with(&format!("sending datagrams of 65507 bytes to {to}: ")), "{error}");
    assert!(error.ends_with(": the MTU of the interface, or of the path, is smaller"));
}

#[test]
fn registered_memory_is_sent_from_where_it_lies() {
    let (tx, rx, to) = pair("[::1]:0");
    let memory = HostMemory::alloc(8192).unwrap();
    memory.write_at(4090, b"payload").unwrap();
    let train = [
        Gather::bytes(b"header."),
        memory.gather(4090..4097).unwrap(),
        Gather::bytes(b"icrc"),
        Gather::bytes(b"next header"),
    ];
    assert_eq!(tx.send_segments(to, &train, 18).unwrap(), 2);
    let received = receive(&rx, &mut RxBatch::new(2), 2, tx.local_addr().unwrap());
    assert_eq!(received, [&b"header.payloadicrc"[..], b"next header"]);
}

#[test]
fn datagrams_without_a_checksum_are_received_over_ipv6() {
    const UDP_NO_CHECK6_TX: c_int = 101;
    let (tx, rx, to) = pair("[::1]:0");
    set_option(&tx.socket, libc::IPPROTO_UDP, UDP_NO_CHECK6_TX, 1).unwrap();
    assert_eq!(tx.send_segments(to, &[Gather::bytes(b"rxe")], 3).unwrap(), 1);
    receive(&rx, &mut RxBatch::new(1), 1, tx.local_addr().unwrap());
}

#[test]
fn traffic_class_and_hop_limit_are_set_in_both_families() {
    for localhost in LOCALHOSTS {
        let (tx, rx, to) = pair(localhost);
        tx.set_traffic_class(106 & !3).unwrap();
        tx.set_hop_limit(255).unwrap();
        let socket = &tx.socket;
        if to.is_ipv6() {
            assert_eq!(socket.tclass_v6().unwrap(), 104);
            assert_eq!(socket.unicast_hops_v6().unwrap(), 255);
        } else {
            assert_eq!(socket.tos_v4().unwrap(), 104);
            assert_eq!(socket.ttl_v4().unwrap(), 255);
        }
        assert_eq!(tx.send_segments(to, &[Gather::bytes(b"x")], 1).unwrap(), 1);
        receive(&rx, &mut RxBatch::new(1), 1, tx.local_addr().unwrap());
    }
}

#[test]
fn a_wait_ends_by_a_wake_by_a_datagram_or_in_time() {
    let (tx, rx, to) = pair("127.0.0.1:0");
    assert!(!rx.wait_readable(Some(Duration::from_millis(1))).unwrap());
    rx.wake();
    rx.wake();
    let start = Instant::now();
    assert!(!rx.wait_readable(Some(TIMEOUT)).unwrap(), "a wake before the wait counts");
    assert!(start.elapsed() < TIMEOUT);
    assert!(!rx.wait_readable(Some(Duration::ZERO)).unwrap());
    let rx = Arc::new(rx);
    let waiter = {
        let rx = Arc::clone(&rx);
        thread::spawn(move || rx.wait_readable(None).unwrap())
    };
    rx.wake();
    assert!(!waiter.join().unwrap());
    assert_eq!(tx.send_segments(to, &[Gather::bytes(b"x")], 1).unwrap(), 1);
    assert!(rx.wait_readable(None).unwrap());
    assert!(rx.buffer_bytes().unwrap() > 0);
}

#[test]
fn a_socket_that_expects_a_peer_sends_to_others_too() {
    for localhost in LOCALHOSTS {
        let (mut tx, rx, to) = pair(localhost);
        let (_, other_rx, other) = pair(localhost);
        let send = |tx: &TxSocket, to, rx, bytes: &[u8]| {
            assert_eq!(tx.send_segments(to, &[Gather::bytes(bytes)], 1).unwrap(), bytes.len());
            receive(rx, &mut RxBatch::new(2), bytes.len(), tx.local_addr().unwrap());
        };
        for expected in [to, other, other] {
            tx.expect_peer(expected).unwrap();
            let connected = tx.socket.peer_addr().ok().and_then(|peer| peer.as_socket());
            assert_eq!(connected, Some(expected));
            send(&tx, to, &rx, b"a train");
            send(&tx, other, &other_rx, b"another");
        }
    }
}

#[test]
fn a_socket_that_expects_any_peer_again_numbers_its_packets_as_before() {
    // No other test sends packets from this address.
    let (mut tx, rx, to) = pair("127.83.1.7:0");
    let source = tx.local_addr().unwrap();
    let wires = match Socket::new(Domain::IPV4, Type::from(libc::SOCK_RAW), Some(Protocol::UDP)) {
        Ok(wires) => wires,
        Err(error) => return eprintln!("skipped: a raw socket shows IP headers: {error}"),
    };
    wires.bind(&to.into()).unwrap();
    wires.set_read_timeout(Some(TIMEOUT)).unwrap();
    let send = |tx: &TxSocket| {
        assert_eq!(tx.send_segments(to, &[Gather::bytes(b"x")], 1).unwrap(), 1);
        receive(&rx, &mut RxBatch::new(1), 1, source);
        let mut packet = [0; 2048];
        let from_us = |packet: &[u8]| packet[20..22] == source.port().to_be_bytes();
        while { (&wires).read(&mut packet).unwrap() } < 22 || !from_us(&packet) {}
        u16::from_be_bytes([packet[4], packet[5]])
    };
    let before = send(&tx);
    assert_eq!(before, tx.ip_id(0));
    tx.expect_peer(to).unwrap();
    let counted = send(&tx);
    assert_eq!(send(&tx), counted.wrapping_add(1), "a connected socket's packets are counted");
    tx.expect_any().unwrap();
    assert!(tx.socket.peer_addr().is_err());
    assert_eq!((send(&tx), tx.local_addr().unwrap()), (before, source));
}
