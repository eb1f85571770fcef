//! Sends where messages go ahead of their receives, as over TCP.

use super::rig::*;

#[test]
fn a_send_goes_ahead_of_its_receive() {
    let pair = Pair::new(64);
    let send = pair.send(0, 8, 1);
    wait(&[send]);
    assert_eq!(pair.to, [0; 64]);
    let recv = pair.post(&[(0, 8, 1)]);
    assert_eq!(wait(&[recv])[0][0], 8);
    assert_eq!(pair.to[..8], pair.from[..8]);
}

#[test]
fn a_send_longer_than_its_receive_is_refused_to_who_learns_of_it() {
    for connect in [connect, connect_v6] {
        let pair = Pair::with(4096, connect);
        // The receiver is the first who can know.
        let send = pair.send(0, 200, 0);
        wait(&[send]);
        let recv = pair.post(&[(0, 100, 0)]);
        let code = until("an error", || test(recv).err());
        assert_eq!(code, Code::INVALID_USAGE);
        assert_eq!(pair.to, [0; 4096]);
    }
}
