//! Tests sends that are longer than their receives: the result depends only on the version.

use super::rig::*;
use super::versions::connect_by;

#[test]
fn v6_refuses_a_send_that_is_longer_than_its_receive() {
    let pair = Pair::with(4096, |handle| connect_by(6, handle));
    let recv = pair.post(&[(0, 100, 0)]);
    let mut send: *mut c_void = ptr::null_mut();
    // If the sender does not know of the receive yet, both ends learn of the error by `test`.
    let code = until("an error", || {
        if send.is_null() {
            let (code, request) = pair.isend(0, 200, 0);
            send = request;
            return (code != Code::SUCCESS).then_some(code);
        }
        test(send).err().or_else(|| test(recv).err())
    });
    assert_eq!(code, Code::INVALID_USAGE);
    assert_eq!(pair.to, [0; 4096]);
}

#[test]
fn since_v7_a_send_is_cut_to_its_receive() {
    for version in 7..=12 {
        for (len, room) in [(200, 100), (200, 0), (1 << 20, 1000), (1 << 20, (1 << 20) - 1)] {
            let pair = Pair::with(2 << 20, |handle| connect_by(version, handle));
            let recv = pair.post(&[(0, room, 0)]);
            let send = pair.send(0, len, 0);
            let sizes = wait(&[recv, send]);
            assert_eq!(sizes[0][0], room as c_int, "v{version}: {len} bytes for {room}");
            assert!(pair.to[..room] == pair.from[..room]);
            assert!(pair.to[room..].iter().all(|byte| *byte == 0), "v{version}");
            // The next message arrives unharmed.
            let recv = pair.post(&[(room, 300, 0)]);
            let send = pair.send(0, 300, 0);
            assert_eq!(wait(&[recv, send])[0][0], 300);
            assert_eq!(pair.to[room..][..300], pair.from[..300]);
        }
    }
}
