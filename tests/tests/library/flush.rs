//! Tests flushes, which read back through the NIC if the settings ask for them.

use invar::Flush;
use invar_core::nic::Nic;
use invar_linux::soft::{ImpairmentConfig, SoftConfig, SoftNic};

use crate::*;

#[test]
fn a_flush_is_a_request_where_it_is_on_and_there_are_bytes() {
    let mut pair = Pair::new(&Settings::default().flush(true), 64);
    let Flush::Started(request) = pair.recv.iflush(&[(&pair.to, 0..64), (&pair.to, 0..0)]).unwrap()
    else {
        panic!("not started");
    };
    assert!(pair.recv.wait(&request, LIMIT).unwrap().sizes().is_empty());
    let empty = pair.recv.iflush(&[(&pair.to, 3..3)]).unwrap();
    assert!(matches!(empty, Flush::NotNeeded));
}

#[test]
fn a_flush_is_not_needed_where_it_is_off() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let flush = pair.recv.iflush(&[(&pair.to, 0..64)]).unwrap();
    assert!(matches!(flush, Flush::NotNeeded));
}

#[test]
fn what_came_is_flushed_after_the_peer_has_left() {
    // Packets are lost, so that the flush does not complete at once and has to be waited for.
    let mut config = SoftConfig::new("lossy", "[::1]:0".parse().unwrap());
    config.impairment =
        Some(ImpairmentConfig { drop_ppm: 500_000, seed: 1, ..ImpairmentConfig::default() });
    let nic = SoftNic::open(&config).unwrap();
    let pd = nic.alloc_pd().unwrap();
    let device = Device::on(nic, pd, config.address.ip()).unwrap();
    let (send, mut recv) = connect(&device, &Settings::default().flush(true));
    let to = MemoryRegion::new(&device, 64).unwrap();
    let waits = recv.irecv(&[(&to, 0..8, 1)]).unwrap().unwrap();
    drop(send);
    assert!(recv.wait(&waits, LIMIT).is_err());
    let mut awaited = 0;
    for _ in 0..4 {
        let Flush::Started(request) = recv.iflush(&[(&to, 0..64)]).unwrap() else {
            panic!("not started");
        };
        let received = until("a flush", || {
            awaited += 1;
            recv.test(&request).unwrap()
        });
        assert!(received.sizes().is_empty());
    }
    assert!(awaited > 1000, "no flush had to be waited for: {awaited} tests");
}
