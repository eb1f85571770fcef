//! Over a network that loses, doubles, delays and damages packets, every message still arrives once and
//! whole. This holds in both modes and both directions.

use invar_core::conn::CommSettings;
use invar_core::nic::{Nic, QpOptions, SendFlags, SendOpcode, SendWr, WcOpcode, WcStatus};
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};
use invar_testkit::duo::{self, Buffer};
use invar_testkit::end::{End, Link};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::until;

const MESSAGES: usize = 24;
const LEN: usize = 100_001;

fn open(seed: u64) -> SoftNic {
    let mut config = SoftConfig::new("soft", "[::1]:0".parse().unwrap());
    config.impairment = Some(ImpairmentConfig {
        drop_ppm: 20_000,
        duplicate_ppm: 20_000,
        reorder_ppm: 20_000,
        corrupt_ppm: 10_000,
        seed,
    });
    SoftNic::open(&config).unwrap()
}

fn verbs(options: QpOptions) {
    let nics = [open(11), open(12)];
    // Buffers are read in words of 8 bytes.
    let len = LEN.next_multiple_of(8);
    let [a, b] = End::pair([&nics[0], &nics[1]], len, &Link { options, ..Link::default() });
    for i in 0..MESSAGES {
        let sent = pattern(i, LEN);
        a.buffer.memory.write_at(0, &sent).unwrap();
        b.post_recv(i as u64, LEN);
        let opcode = [SendOpcode::RdmaWriteWithImm, SendOpcode::Send][i % 2];
        a.post(&a.work(opcode, LEN, &b));
        let [sender, receiver] = [a.wait(), b.wait()];
        assert_eq!((sender.status, receiver.status), (WcStatus::SUCCESS, WcStatus::SUCCESS));
        assert_eq!((receiver.wr_id, receiver.byte_len as usize), (i as u64, LEN));
        assert!(b.buffer.read(0, LEN) == sent, "message {i}");

        b.buffer.memory.write_at(0, &pattern(i + 100, LEN)).unwrap();
        a.post(&a.work(SendOpcode::RdmaRead, LEN, &b));
        let done = a.wait();
        assert_eq!((done.status, done.opcode), (WcStatus::SUCCESS, WcOpcode::RDMA_READ));
        assert!(a.buffer.read(0, LEN) == pattern(i + 100, LEN), "READ {i}");
    }
    let counters = nics.map(|nic| nic.counters().device);
    assert!(counters[0].qps.packets_retransmitted > 0, "the network was bad");
    assert!(counters.iter().any(|counters| counters.icrc_bad > 0), "in every way");
}

#[test]
fn in_order_mode() {
    verbs(QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn in_adaptive_routing_mode() {
    verbs(QpOptions::ICRC_MASKS_IP_ID | QpOptions::ADAPTIVE_ROUTING);
}

#[test]
fn many_requests_at_once_complete_in_order() {
    for options in [QpOptions::empty(), QpOptions::ADAPTIVE_ROUTING] {
        let nics = [open(21), open(22)];
        let [a, b] = End::pair([&nics[0], &nics[1]], LEN, &Link { options, ..Link::default() });
        let wr = a.work(SendOpcode::RdmaWrite, 10_000, &b);
        for wr_id in 0..60 {
            let flags = if wr_id % 3 == 2 { SendFlags::SIGNALED } else { SendFlags::empty() };
            a.post(&SendWr { wr_id, flags, ..wr });
        }
        for wr_id in (2..60).step_by(3) {
            let done = a.wait();
            assert_eq!((done.wr_id, done.status), (wr_id, WcStatus::SUCCESS));
        }
        assert!(a.has_none());
    }
}

#[test]
fn a_whole_connection_of_the_protocol() {
    let nics = [open(31), open(32)];
    let settings = CommSettings { qps: 2, ..CommSettings::default() };
    let mut duo = duo::connect([&nics[0], &nics[1]], [settings; 2], || ()).unwrap();
    let len = 40_000;
    let source = Buffer::new(&nics[0], &duo.send_pd, len);
    let target = Buffer::new(&nics[1], &duo.recv_pd, len);
    for i in 0..MESSAGES {
        let sent = &pattern(i, LEN)[..len];
        source.memory.write_at(0, sent).unwrap();
        let receive = duo.irecv(&[target.room(0, len as u32, 9)]);
        let buf = source.message(0, len as u32);
        let mut send = None;
        let (mut sent_len, mut received) = (None, None);
        until("message", || {
            nics[0].progress();
            if send.is_none() {
                send = duo.send.isend(&buf, 9).unwrap();
            }
            if let Some(send) = &send
                && sent_len.is_none()
            {
                sent_len = duo.send.test(send).unwrap();
            }
            if received.is_none() {
                received = duo.recv.test(&receive).unwrap().map(<[u32]>::to_vec);
            }
            sent_len.is_some() && received.is_some()
        });
        assert_eq!(received.unwrap(), [len as u32]);
        assert!(target.read(0, len) == sent, "message {i}");
    }
}
