//! Over a network that loses, doubles, delays and damages packets, every message still arrives once and
//! whole. This holds in both modes and both directions.

use invar_core::nic::{QpOptions, SendOpcode, WcOpcode, WcStatus};
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::pattern::pattern;

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
