//! Tests the protection domains of connections: a peer reaches the memory that it was told of, whatever
//! keys it knows.

use invar_core::nic::{Access, Memory, QpOptions, QpTransition, WcStatus};
use invar_linux::memory::HostMemory;

use super::{End, carry, connect, deliver, pair};

/// Ends `a` and `b`, where `b`'s queue pair has a domain of its own. Also returns memory that `b`
/// registered in the domain that all of its connections share.
fn connected() -> ([End; 2], u32, u32, HostMemory) {
    let [mut a, mut b] = pair("::1", 8, QpOptions::empty());
    let memory = HostMemory::alloc(8).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let key = b.device.reg_mr(b.pd, &memory, memory.addr(), access).unwrap();
    let pd = b.device.alloc_connection_pd(b.pd);
    let shared = std::mem::replace(&mut b.pd, pd);
    b.qpn = b.create_qp();
    b.pd = shared;
    a.device.modify_qp(a.qpn, &QpTransition::Reset).unwrap();
    a.qpn = a.create_qp();
    let qpns = [a.qpn, b.qpn];
    connect([&mut a, &mut b], qpns);
    ([a, b], pd, key, memory)
}

/// The status of a WRITE by `a` to a key of `b`.
fn write(a: &mut End, b: &mut End, to: (u64, u32)) -> WcStatus {
    a.write(a.qpn, 8, to);
    a.transmit(0);
    carry(a, b, 0, |_| false);
    deliver(b, a, 0, |_| false);
    a.poll()[0].status
}

#[test]
fn a_peer_that_guesses_a_key_does_not_reach_what_it_was_not_told_of() {
    let ([mut a, mut b], _, key, memory) = connected();
    a.memory.write_at(0, &[0xee; 8]).unwrap();
    assert_eq!(write(&mut a, &mut b, (memory.addr(), key)), WcStatus::REM_ACCESS_ERR);
    let mut bytes = [1; 8];
    memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 8]);
}

#[test]
fn a_peer_reaches_what_it_was_granted_as_long_as_that_is_registered() {
    let ([mut a, mut b], pd, key, memory) = connected();
    b.device.grant(pd, key);
    for _ in 0..2 {
        assert_eq!(write(&mut a, &mut b, (memory.addr(), key)), WcStatus::SUCCESS);
    }
    b.device.dereg_mr(key).unwrap();
    assert_eq!(write(&mut a, &mut b, (memory.addr(), key)), WcStatus::REM_ACCESS_ERR);
}

#[test]
fn a_grant_is_for_one_connection() {
    let ([mut a, mut b], _, key, memory) = connected();
    let other = b.device.alloc_connection_pd(b.pd);
    b.device.grant(other, key);
    assert_eq!(write(&mut a, &mut b, (memory.addr(), key)), WcStatus::REM_ACCESS_ERR);
}

#[test]
fn the_local_end_works_with_all_of_the_shared_domain() {
    let ([mut a, mut b], _, _, _) = connected();
    b.memory.write_at(0, &[0xdd; 8]).unwrap();
    // `b` sends from memory of the shared domain to memory in the domain of `a`'s queue pair.
    let target = (a.memory.addr(), a.key);
    assert_eq!(write(&mut b, &mut a, target), WcStatus::SUCCESS);
    let mut bytes = [0; 8];
    a.memory.read_at(0, &mut bytes).unwrap();
    assert_eq!(bytes, [0xdd; 8]);
}
