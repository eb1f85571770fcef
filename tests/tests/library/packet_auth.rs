//! Tests packets of the software NIC that carry tags.

use crate::*;

fn set(value: &'static str) -> Settings {
    Settings::from_lookup(|asked| (asked == "INVAR_SOFT_AUTH").then(|| value.to_owned())).unwrap()
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
    let recv = listener.accept_within(TIMEOUT).map(drop).map_err(|error| error.to_string());
    [sender.join().unwrap(), recv]
}

#[test]
fn messages_of_all_lengths_arrive_with_tags_and_flush() {
    for lens in [[0, 1, 8], [4095, 4096, 8128], [8129, 65_537, 1 << 20]] {
        let mut pair = Pair::new(&set("1"), 1 << 20);
        for len in lens {
            let recv = pair.recv.irecv(&[(&pair.to, 0..len, 1)]).unwrap().unwrap();
            let send = pair.isend(len, 1);
            until("the receive", || pair.recv.test(&recv).unwrap());
            until("the send", || pair.send.test(&send).unwrap());
            let mut got = vec![0; len];
            pair.to.read_at(0, &mut got).unwrap();
            assert!(got == pattern(1 << 20)[..len], "{len}");
        }
    }
}

#[test]
fn who_insists_on_tags_refuses_a_peer_without_and_says_what_to_set() {
    let [sender, receiver] = ends(&set("1"), &set("0"));
    let error = sender.unwrap_err();
    assert!(error.contains("does not authenticate its packets"), "{error}");
    assert!(error.contains("set INVAR_SOFT_AUTH=1 on both sides"), "{error}");
    assert!(receiver.is_err());
    let [sender, receiver] = ends(&set("0"), &set("1"));
    let error = receiver.unwrap_err();
    assert!(error.contains("set INVAR_SOFT_AUTH=1 on both sides"), "{error}");
    assert!(sender.is_err());
    for (ours, theirs) in [("1", "1"), ("0", "0"), ("0", "-2"), ("-2", "-2")] {
        assert_eq!(ends(&set(ours), &set(theirs)), [Ok(()), Ok(())], "{ours} {theirs}");
    }
}
