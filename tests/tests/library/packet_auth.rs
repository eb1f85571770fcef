//! Tests packets of the software NIC that carry tags.

use crate::*;

fn auth(value: &str) -> Settings {
    settings(&[("INVAR_SOFT_AUTH", value)])
}

/// The result of connecting at both ends, with an error's text.
fn ends(ours: &Settings, theirs: &Settings) -> [Result<(), String>; 2] {
    let device = loopback();
    let listener = Listener::bind(&device, theirs).unwrap();
    let handle = listener.handle();
    let ours = ours.clone();
    let sender = std::thread::spawn(move || {
        let connecting = SendComm::connect(&loopback(), &handle, &ours).unwrap();
        connecting.wait().map(drop).map_err(|error| error.to_string())
    });
    // A receiver that refuses its peer waits for another one.
    let within = Duration::from_secs(20);
    let recv = listener.accept_within(within).map(drop).map_err(|error| error.to_string());
    [sender.join().unwrap(), recv]
}

#[test]
fn messages_of_all_lengths_arrive_with_tags_and_flush() {
    for lens in [[0, 1, 8], [4095, 4096, 8128], [8129, 65_537, 1 << 20]] {
        let mut pair = Pair::new(&auth("1"), 1 << 20);
        for len in lens {
            let recv = pair.recv.irecv(&[(&pair.to, 0..len, 1)]).unwrap().unwrap();
            let send = pair.isend(len, 1);
            until("the receive", || pair.recv.test(&recv).unwrap());
            until("the send", || pair.send.test(&send).unwrap());
            let mut got = vec![0; len];
            pair.to.read_at(0, &mut got).unwrap();
            assert!(got == pattern(0, 1 << 20)[..len], "{len}");
        }
    }
}

#[test]
fn who_insists_on_tags_refuses_a_peer_without_and_says_what_to_set() {
    let [sender, receiver] = ends(&auth("1"), &auth("0"));
    let error = sender.unwrap_err();
    assert!(error.contains("does not authenticate its packets"), "{error}");
    assert!(error.contains("set INVAR_SOFT_AUTH=1 on both sides"), "{error}");
    assert!(receiver.is_err());
    let [sender, receiver] = ends(&auth("0"), &auth("1"));
    let error = receiver.unwrap_err();
    assert!(error.contains("set INVAR_SOFT_AUTH=1 on both sides"), "{error}");
    assert!(sender.is_err());
    for (ours, theirs) in [("1", "1"), ("0", "0"), ("0", "-2"), ("-2", "-2")] {
        assert_eq!(ends(&auth(ours), &auth(theirs)), [Ok(()), Ok(())], "{ours} {theirs}");
    }
}
