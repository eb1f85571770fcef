//! The library refuses a program's mistakes by name, and the connection still works.

use invar::{ConnectionError, Error, ErrorKind};

use crate::*;

/// Checks that a message still passes.
fn goes_on(pair: &mut Pair) {
    let receive = pair.recv.irecv(&[(&pair.to, 0..32, 1)]).unwrap().unwrap();
    let send = pair.isend(32, 1);
    assert_eq!(pair.recv.wait(&receive, LIMIT).unwrap().sizes(), [32]);
    pair.send.wait(&send, LIMIT).unwrap();
}

fn usage<T>(result: Result<T, Error>) -> String {
    let error = result.err().expect("an error");
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    error.to_string()
}

#[test]
#[expect(clippy::reversed_empty_ranges, reason = "refusing it is the point")]
fn ranges_outside_of_their_region_are_refused() {
    let mut pair = Pair::new(&Settings::default(), 64);
    for range in [0..65, 65..66, 9..8, usize::MAX..usize::MAX, 0..usize::MAX] {
        let text = format!("bytes {range:?} are not within the region, which has 64 bytes");
        assert_eq!(usage(pair.send.isend(&pair.from, range.clone(), 1)), text);
        assert_eq!(usage(pair.recv.irecv(&[(&pair.to, range, 1)])), text);
    }
    usage(pair.to.write_at(60, &[0; 5]));
    usage(pair.to.read_at(usize::MAX, &mut [0; 5]));
    goes_on(&mut pair);
}

#[test]
fn a_region_of_another_device_is_refused() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let foreign = MemoryRegion::new(&loopback(), 64).unwrap();
    assert!(usage(pair.send.isend(&foreign, 0..8, 1)).contains("opened apart"));
    assert!(usage(pair.recv.irecv(&[(&pair.to, 0..8, 1), (&foreign, 0..8, 2)])).contains("soft"));
    goes_on(&mut pair);
}

#[test]
fn a_receive_of_no_or_nine_buffers_is_refused() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let nine: Vec<_> = (0..9).map(|tag| (&pair.to, 0..4, tag)).collect();
    for bufs in [&nine[..], &[]] {
        assert!(usage(pair.recv.irecv(bufs)).ends_with("a receive takes 1 to 8 buffers"));
    }
    goes_on(&mut pair);
}

#[test]
fn a_request_ends_once_and_only_in_its_own_comm() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let (_, mut other) = connect(&pair.device, &Settings::default());
    let receive = pair.recv.irecv(&[(&pair.to, 0..32, 1)]).unwrap().unwrap();
    let others = other.irecv(&[(&pair.to, 0..32, 1)]).unwrap().unwrap();
    let text = "this request is of another connection end: test it at the `SendComm` or `RecvComm` that \
                returned it";
    assert_eq!(usage(other.test(&receive)), text);
    assert_eq!(usage(pair.send.test(&others)), text);
    let send = pair.isend(32, 1);
    pair.recv.wait(&receive, LIMIT).unwrap();
    pair.send.wait(&send, LIMIT).unwrap();
    assert!(usage(pair.recv.test(&receive)).contains("done already"));
    assert!(usage(pair.send.test(&send)).contains("done already"));
    goes_on(&mut pair);
}

#[test]
fn a_send_longer_than_its_receive_names_both_sizes_or_is_cut() {
    let mut pair = Pair::new(&Settings::default(), 64);
    let receive = pair.recv.irecv(&[(&pair.to, 0..16, 1)]).unwrap().unwrap();
    let error = until("a slot", || match pair.send.isend(&pair.from, 0..64, 1) {
        Ok(None) => None,
        Ok(Some(_)) => panic!("sent"),
        Err(error) => Some(error),
    });
    let expected = ConnectionError::SizeMismatch { local: 64, remote: 16, tag: 1 };
    assert_eq!(error.connection(), Some(&expected));
    assert!(!error.is_connection_lost(), "{error}");
    assert!(error.to_string().contains("send of 64 bytes meets a receive of 16 bytes"), "{error}");
    let send = pair.isend(16, 1);
    pair.recv.wait(&receive, LIMIT).unwrap();
    pair.send.wait(&send, LIMIT).unwrap();
    goes_on(&mut pair);

    let mut cut = Pair::new(&Settings::default().truncate(true), 64);
    let receive = cut.recv.irecv(&[(&cut.to, 0..16, 1)]).unwrap().unwrap();
    let send = cut.isend(64, 1);
    assert_eq!(cut.recv.wait(&receive, LIMIT).unwrap().sizes(), [16]);
    assert_eq!(cut.send.wait(&send, LIMIT).unwrap(), 16);
    assert_eq!(content(&cut.to, 64), [&pattern(0, 16)[..], &[0; 48]].concat());
}

#[test]
fn devices_and_regions_that_cannot_be_are_refused() {
    let names = usage(Device::open("mlx5_7"));
    assert!(names.starts_with("no device is called 'mlx5_7'; there is: "), "{names}");
    assert!(names.contains(", soft0 (") || names.contains(": soft0 ("), "{names}");
    assert!(usage(Device::open_at("203.0.113.77:0".parse().unwrap())).contains("203.0.113.77"));
    assert!(usage(MemoryRegion::new(&loopback(), 0)).contains("at least one byte"));
    let error = MemoryRegion::new(&loopback(), 1 << 60).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Local);
}

#[test]
fn settings_that_a_device_does_not_fit_are_named() {
    let device = loopback();
    for word in ["ib", "socket"] {
        let settings = settings(&[("INVAR_TRANSPORT", word)]);
        let text = usage(Listener::bind(&device, &settings));
        let name = &device.info().name;
        let expected = format!(
            "INVAR_TRANSPORT={word}: {name} is a device of transport soft; open a device of transport \
             {word} (`invar devices` lists them), or unset INVAR_TRANSPORT"
        );
        assert_eq!(text, expected);
    }
    for word in ["auto", "soft"] {
        assert!(Listener::bind(&device, &settings(&[("INVAR_TRANSPORT", word)])).is_ok());
    }
    let text = usage(Listener::bind(&device, &settings(&[("INVAR_WIRE", "nccl-2.14")])));
    assert!(
        text.starts_with("INVAR_WIRE=nccl-2.14: ")
            && text.ends_with("only 4791: set INVAR_SOFT_PORT=4791"),
        "{text}"
    );
}
