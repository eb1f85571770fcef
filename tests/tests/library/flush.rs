//! Flushes read back through the NIC, where they are asked for.

use invar::Flush;

use crate::*;

#[test]
fn a_flush_is_a_request_where_it_is_on_and_there_are_bytes() {
    let mut pair = Pair::new(&Settings::default().flush(true), 64);
    let Flush::Started(request) = pair.recv.iflush(&[(&pair.to, 0..64), (&pair.to, 0..0)]).unwrap()
    else {
        panic!("not started");
    };
    assert!(pair.recv.wait(&request, TIMEOUT).unwrap().sizes().is_empty());
    let empty = pair.recv.iflush(&[(&pair.to, 3..3)]).unwrap();
    assert!(matches!(empty, Flush::NotNeeded));
}

#[test]
fn a_flush_is_not_needed_where_it_is_off() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let flush = pair.recv.iflush(&[(&pair.to, 0..64)]).unwrap();
    assert!(matches!(flush, Flush::NotNeeded));
}
