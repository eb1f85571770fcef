use std::os::fd::AsFd;

use invar_test_wait::until;

use super::*;

fn listener(host: &str) -> OobListener {
    OobListener::bind(SocketAddr::new(host.parse().unwrap(), 0), PortRange::ANY).unwrap()
}

/// Returns both ends of a connection: the connecting one, then the accepting one.
fn pair(host: &str) -> (OobStream, OobStream) {
    let listener = listener(host);
    let mut caller = OobStream::connect(listener.local_addr().unwrap()).unwrap();
    until("connecting", || caller.poll_connected().unwrap());
    let called = until("accepting", || listener.accept().unwrap());
    (caller, called)
}

fn receive_one(stream: &mut OobStream) -> Result<u8, StreamError> {
    let mut byte = [0];
    until("receiving", || match stream.recv(&mut byte) {
        Ok(0) => None,
        Ok(_) => Some(Ok(byte[0])),
        Err(error) => Some(Err(error)),
    })
}

#[test]
fn both_ends_know_each_other_and_bytes_pass_both_ways() {
    for host in ["127.0.0.1", "::1"] {
        let (mut caller, mut called) = pair(host);
        assert_eq!(caller.peer_addr(), called.local_addr().ok());
        assert_eq!(called.peer_addr(), caller.local_addr().ok());
        assert_eq!(caller.send(&[7]), Ok(1));
        assert_eq!(receive_one(&mut called), Ok(7));
        assert_eq!(called.send(&[8]), Ok(1));
        assert_eq!(receive_one(&mut caller), Ok(8));
    }
}

#[test]
fn a_peer_that_is_not_reached_has_an_address_too() {
    let addr = listener("127.0.0.1").local_addr().unwrap();
    let caller = OobStream::connect(addr).unwrap();
    assert_eq!(caller.peer_addr(), Some(addr));
}

#[test]
fn nobody_waits_where_there_is_nothing() {
    assert!(listener("127.0.0.1").accept().unwrap().is_none());
    let (mut caller, mut called) = pair("127.0.0.1");
    assert_eq!(called.recv(&mut [0; 8]), Ok(0));
    assert_eq!(called.recv(&mut []), Ok(0));
    let bytes = vec![0; 1 << 16];
    // The receiver reads nothing, so only a limited amount fits.
    let sent = until("filling the buffers", || {
        (caller.send(&bytes) == Ok(0)).then(|| caller.send(&bytes))
    });
    assert_eq!(sent, Ok(0));
}

#[test]
fn every_byte_of_a_long_message_arrives_in_order() {
    let (mut caller, mut called) = pair("127.0.0.1");
    let message: Vec<u8> = (0..1_000_000u32).map(|i| ((i * 31) >> 3) as u8).collect();
    let (mut sent, mut received) = (0, Vec::new());
    let mut buf = [0; 4099];
    until("the message", || {
        sent += caller.send(&message[sent..]).unwrap();
        let n = called.recv(&mut buf).unwrap();
        received.extend_from_slice(&buf[..n]);
        received.len() == message.len()
    });
    assert_eq!(received, message);
}

#[test]
fn a_peer_that_closes_is_told_apart_from_one_that_breaks_off() {
    let (mut caller, mut called) = pair("127.0.0.1");
    assert_eq!(caller.send(&[7]), Ok(1));
    drop(caller);
    assert_eq!(receive_one(&mut called), Ok(7), "what was sent before still comes");
    assert_eq!(receive_one(&mut called), Err(StreamError::Closed));
    assert_eq!(receive_one(&mut called), Err(StreamError::Closed));
    // The kernel answers bytes to a closed socket with a reset, and then knows no peer any more.
    let error = until("the reset", || called.send(&[9]).err());
    assert!([StreamError::Os(libc::ECONNRESET), StreamError::Closed].contains(&error));

    let (mut caller, called) = pair("127.0.0.1");
    SockRef::from(&*called.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(called);
    assert_eq!(receive_one(&mut caller), Err(StreamError::Os(libc::ECONNRESET)));
}

#[test]
fn a_reset_that_a_send_has_met_is_not_taken_for_a_close() {
    let (mut caller, mut called) = pair("127.0.0.1");
    assert_eq!(called.send(&[7]), Ok(1));
    SockRef::from(&*called.stream).set_linger(Some(Duration::ZERO)).unwrap();
    drop(called);
    let reset = StreamError::Os(libc::ECONNRESET);
    assert_eq!(until("the reset", || caller.send(&[9]).err()), reset);
    // What was sent before may still come.
    let error = until("the error", || caller.recv(&mut [0]).err());
    assert_eq!(error, reset);
}

#[test]
fn a_port_where_nobody_listens_refuses() {
    let gone = listener("127.0.0.1").local_addr().unwrap();
    let error = until("the refusal", || match OobStream::connect(gone) {
        Err(error) => Some(error),
        Ok(mut stream) => Some(until("the refusal", || stream.poll_connected().err())),
    });
    assert_eq!(error, StreamError::Os(libc::ECONNREFUSED));
}

#[test]
fn a_socket_that_the_kernel_has_connected_to_itself_has_been_refused_and_frees_the_port() {
    for host in ["127.0.0.1", "::1"] {
        // The test binds the socket to the port that it calls, as chance may do with an ephemeral port.
        let addr = SocketAddr::new(host.parse().unwrap(), 0);
        let socket = new_socket(addr).unwrap();
        socket.bind(&addr.into()).unwrap();
        let addr = socket.local_addr().unwrap().as_socket().unwrap();
        let under_way = |error: &io::Error| error.raw_os_error() == Some(libc::EINPROGRESS);
        assert!(socket.connect(&addr.into()).as_ref().err().is_none_or(under_way));
        let mut stream = OobStream::new(socket.into(), addr);
        let error = until("the refusal", || stream.poll_connected().err());
        assert_eq!(error, StreamError::Os(libc::ECONNREFUSED));
        drop(stream);
        OobListener::bind(addr, PortRange::ANY).unwrap();
    }
}

#[test]
fn a_connection_under_way_neither_sends_nor_fails() {
    // A listener whose queue is full answers no more callers.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let addr = full.local_addr().unwrap().as_socket().unwrap();
    let mut callers: Vec<_> = (0..4).map(|_| OobStream::connect(addr).unwrap()).collect();
    let waiting = callers.last_mut().unwrap();
    assert_eq!(waiting.poll_connected(), Ok(false));
    assert_eq!(waiting.send(&[1]), Ok(0));
    assert_eq!(waiting.recv(&mut [0]), Ok(0));
}

#[test]
fn both_ends_look_after_a_silent_peer_for_as_long_as_they_are_told() {
    let (mut caller, mut called) = pair("127.0.0.1");
    for stream in [&mut caller, &mut called] {
        assert!(SockRef::from(&*stream.stream).tcp_nodelay().unwrap());
        let keepalive = |stream: &OobStream| {
            let socket = SockRef::from(&*stream.stream);
            assert!(socket.keepalive().unwrap());
            let [time, interval] =
                [socket.tcp_keepalive_time(), socket.tcp_keepalive_interval()].map(Result::unwrap);
            time + interval * socket.tcp_keepalive_retries().unwrap()
        };
        let user_timeout =
            |stream: &OobStream| SockRef::from(&*stream.stream).tcp_user_timeout().unwrap();
        assert_eq!((keepalive(stream), user_timeout(stream)), (SILENCE_MAX, Some(SILENCE_MAX)));
        for [asked, given] in
            [[60, 60], [1, 5], [86_400, 80_000]].map(|s| s.map(Duration::from_secs))
        {
            stream.bear_silence(asked).unwrap();
            assert_eq!((keepalive(stream), user_timeout(stream)), (given, Some(asked)));
            stream.wait_for_reader().unwrap();
            assert_eq!((keepalive(stream), user_timeout(stream)), (given, None));
        }
        let flags = rustix::io::fcntl_getfd(stream.stream.as_fd()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }
}
