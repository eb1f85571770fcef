//! Every operation of the software NIC moves exactly the right bytes, over both IP versions and in both
//! modes.

use invar_core::nic::{
    Nic, QpOptions, Refusal, SendFlags, SendList, SendOpcode, SendWr, WcFlags, WcOpcode, WcStatus,
};
use invar_linux::soft::{SoftConfig, SoftNic};
use invar_testkit::end::{End, Link};
use invar_testkit::pattern::pattern;
use invar_testkit::wait::until;

const MTU: usize = 4096;
const SIZES: [usize; 9] = [0, 1, 3, MTU - 1, MTU, MTU + 1, 64 << 10, (64 << 10) + 7, 1 << 20];
/// The bytes behind the message, which must not change.
const GUARD: usize = 64;

fn open(ip: &str) -> SoftNic {
    SoftNic::open(&SoftConfig::new("soft", format!("{ip}:0").parse().unwrap())).unwrap()
}

fn fill(end: &End<SoftNic>, len: usize, seed: usize) -> Vec<u8> {
    let bytes = pattern(seed, len);
    end.buffer.write(0, &bytes);
    bytes
}

/// Runs `opcode` from one end to the other. Checks that the other end's memory holds the sent bytes and
/// that nothing behind them has changed.
fn transfer([a, b]: &[End<SoftNic>; 2], opcode: SendOpcode, len: usize, flags: SendFlags) {
    let what = format!("{opcode:?} of {len} bytes");
    let sent = fill(a, len + GUARD, len);
    let old = fill(b, len + GUARD, !len);
    let received = match opcode {
        SendOpcode::RdmaWrite | SendOpcode::RdmaRead => None,
        SendOpcode::RdmaWriteWithImm => Some((WcOpcode::RECV_RDMA_WITH_IMM, true)),
        SendOpcode::Send | SendOpcode::SendWithInv => Some((WcOpcode::RECV, false)),
        SendOpcode::SendWithImm => Some((WcOpcode::RECV, true)),
    };
    if received.is_some() {
        b.post_recv(7, len);
    }
    let wr = a.work(opcode, len, b);
    a.post(&SendWr { flags: flags | SendFlags::SIGNALED, ..wr });

    let done = a.wait();
    assert_eq!((done.wr_id, done.status), (wr.wr_id, WcStatus::SUCCESS), "{what}");
    let (target, expected, untouched) = match opcode {
        SendOpcode::RdmaRead => (a, &old[..len], &sent[len..]),
        _ => (b, &sent[..len], &old[len..]),
    };
    if let Some((opcode, with_imm)) = received {
        let done = b.wait();
        assert_eq!(
            (done.wr_id, done.status, done.opcode),
            (7, WcStatus::SUCCESS, opcode),
            "{what}"
        );
        assert_eq!(
            (done.byte_len as usize, done.flags.contains(WcFlags::WITH_IMM)),
            (len, with_imm),
            "{what}"
        );
        if with_imm {
            assert_eq!(done.imm_data, wr.imm_data, "{what}");
        }
    }
    let now = target.buffer.read(0, len + GUARD);
    assert!(now[..len] == *expected, "{what}: bytes differ");
    assert!(now[len..] == *untouched, "{what}: more than the message was written");
    assert!(a.has_none() && b.has_none(), "{what}: one completion too many");
}

fn all_operations(ip: &str, options: QpOptions) {
    use SendOpcode::{RdmaRead, RdmaWrite, RdmaWriteWithImm, Send, SendWithImm};
    let nics = [open(ip), open(ip)];
    let link = Link { options, ..Link::default() };
    let ends = End::pair([&nics[0], &nics[1]], (1 << 20) + GUARD, &link);
    for len in SIZES {
        for opcode in [RdmaWrite, RdmaWriteWithImm, Send, SendWithImm, RdmaRead] {
            transfer(&ends, opcode, len, SendFlags::empty());
        }
    }
    for opcode in [RdmaWrite, RdmaWriteWithImm, Send, SendWithImm] {
        transfer(&ends, opcode, 33, SendFlags::INLINE);
    }
    for nic in nics {
        let counters = nic.counters();
        let device = counters.device;
        assert_eq!((counters.send_errors, device.icrc_bad, device.malformed), (0, 0, 0));
        let verifies = ip.contains(':') || options.contains(QpOptions::ICRC_MASKS_IP_ID);
        assert_eq!(device.icrc_unverified > 0, !verifies);
    }
}

#[test]
fn over_ipv6() {
    all_operations("[::1]", QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn over_ipv4_with_the_identification_masked() {
    all_operations("127.0.0.1", QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn over_ipv4_as_with_a_foreign_peer() {
    all_operations("127.0.0.1", QpOptions::empty());
}

#[test]
fn each_packet_of_a_write_by_itself_over_ipv6() {
    all_operations("[::1]", QpOptions::ADAPTIVE_ROUTING);
}

#[test]
fn each_packet_of_a_write_by_itself_over_ipv4() {
    all_operations("127.0.0.1", QpOptions::ADAPTIVE_ROUTING | QpOptions::ICRC_MASKS_IP_ID);
}

#[test]
fn a_queue_pair_that_is_its_own_peer_reads_back() {
    let nic = open("[::1]");
    let end = End::new(&nic, 16);
    end.connect(&end, &Link::default());
    end.buffer.memory.write_at(0, b"ABCDEFGH________").unwrap();
    let wr = SendWr { sge: end.sge(8, 8), ..end.work(SendOpcode::RdmaRead, 8, &end) };
    end.post(&wr);
    assert_eq!(end.wait().status, WcStatus::SUCCESS);
    assert_eq!(end.buffer.read(0, 16), b"ABCDEFGHABCDEFGH");
}

#[test]
fn a_list_of_requests_is_posted_up_to_the_one_that_is_refused() {
    let nics = [open("[::1]"), open("[::1]")];
    let [a, b] = End::pair([&nics[0], &nics[1]], 64, &Link::default());
    let good = a.work(SendOpcode::RdmaWrite, 8, &b);
    let long = SendWr { sge: a.sge(0, 65), flags: SendFlags::INLINE, ..good };
    let error = a.nic.post_send(&a.qp, &[good, good, long, good]).unwrap_err();
    assert_eq!(error.index, 2);
    assert_eq!([a.wait().wr_id, a.wait().wr_id], [good.wr_id; 2]);
    assert!(a.has_none());
}

#[test]
fn what_is_posted_ahead_leaves_in_one_train_and_also_where_no_call_follows() {
    let [a, b] = End::pair([&open("[::1]"), &open("[::1]")], 64, &Link::default());
    let post_ahead = |flags| {
        let wr = SendWr { flags, ..a.work(SendOpcode::RdmaWrite, 64, &b) };
        a.nic.post_list_ahead(&a.qp, &mut SendList::new([wr]), 0, &mut Refusal::default()).unwrap();
    };
    let sent = fill(&a, 64, 1);
    post_ahead(SendFlags::empty());
    until("a write that nobody hurries", || b.buffer.read(0, 64) == sent);

    let trains = || a.nic.counters().device.trains_sent;
    // The NIC's thread may interfere now and then, so retry.
    until("a train of four", || {
        let before = trains();
        (0..3).for_each(|_| post_ahead(SendFlags::empty()));
        post_ahead(SendFlags::SIGNALED);
        assert_eq!(a.wait().status, WcStatus::SUCCESS);
        trains() - before == 1
    });
}
