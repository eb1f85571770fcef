//! A peer sends a correct hello, and any bytes after it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::thread;

use invar_core::auth::Service;
use invar_core::comm::{RecvBuf, SendBuf};
use invar_core::conn::{HANDLE_SECRET_BYTES, Handle, StreamError, Wire};
use invar_core::error::{Error, ErrorKind};
use invar_core::param::{AddressFamily, PortRange};
use invar_core::socket::{Frame, FrameKind, HELLO_BYTES, SocketFrameError, SocketHello, ViewFrame};
use invar_core::stall::EndView;
use invar_linux::clock::now_ns;
use invar_linux::socket::{Connecting, Listener, RecvComm, SendComm};
use invar_testkit::insider;
use invar_testkit::wait::until;

use crate::rig::{loopback, settings};

/// A receiver, and the hostile sender's control socket, main socket and lanes.
fn receiver(lanes: u16) -> (RecvComm, Vec<TcpStream>) {
    let device = loopback(AddressFamily::Inet);
    let mut listener = Listener::bind(&device, PortRange::ANY, &settings(lanes, 0)).unwrap();
    let handle = listener.handle();
    let addr = handle.addr(Wire::Invar).unwrap();
    let mallory = thread::spawn(move || {
        let connect = |index| {
            let mut stream = TcpStream::connect(addr).unwrap();
            insider::call(&mut stream, &handle, Service::Tcp);
            let device = "mallory0".try_into().unwrap();
            let (sockets, session) = (lanes + 2, 1);
            let hello = SocketHello {
                index,
                sockets,
                session,
                device,
                shares_views: true,
                tells_time: false,
                resumes: true,
                renewal_port: 0,
            };
            stream.write_all(&hello.to_bytes()).unwrap();
            stream
        };
        let mut streams: Vec<TcpStream> = (0..lanes + 2).map(connect).collect();
        streams[0].read_exact(&mut [0; HELLO_BYTES]).unwrap();
        streams
    });
    let comm = until("the receiver", || listener.poll(now_ns()).unwrap());
    (comm, mallory.join().unwrap())
}

/// A sender, and the hostile receiver's control socket and main socket.
fn sender() -> (SendComm, Vec<TcpStream>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let device = loopback(AddressFamily::Inet);
    let secret = [1; HANDLE_SECRET_BYTES];
    let handle = Handle::new(listener.local_addr().unwrap(), Wire::Invar, &secret);
    let mut connecting = Connecting::start(&device, &handle, &settings(0, 0), now_ns()).unwrap();
    let mallory = thread::spawn(move || {
        let mut streams: Vec<(u16, TcpStream)> = (0..2)
            .map(|_| {
                let (mut stream, _) = listener.accept().unwrap();
                insider::answer(&mut stream, &handle, Service::Tcp);
                let mut bytes = [0; HELLO_BYTES];
                stream.read_exact(&mut bytes).unwrap();
                let hello = SocketHello::parse(&bytes).unwrap();
                let index = hello.index;
                if index == 0 {
                    let answer = SocketHello { tells_time: false, ..hello };
                    stream.write_all(&answer.to_bytes()).unwrap();
                }
                (index, stream)
            })
            .collect();
        streams.sort_by_key(|(index, _)| *index);
        streams.into_iter().map(|(_, stream)| stream).collect()
    });
    let comm = until("the sender", || connecting.poll(now_ns()).unwrap());
    (comm, mallory.join().unwrap())
}

fn message(seq: u32, len: u32, tag: u32) -> [u8; 16] {
    Frame { kind: FrameKind::Message, seq, len, tag }.to_bytes()
}

/// Posts a buffer of 100 bytes and waits for the outcome.
fn outcome(comm: &mut RecvComm) -> Result<Vec<u32>, Error> {
    let mut bytes = [0u8; 100];
    let addr = bytes.as_mut_ptr().expose_provenance() as u64;
    // SAFETY: the bytes outlive the receive, which is over or has failed when this function returns.
    let request = unsafe { comm.irecv(&[RecvBuf { addr, len: 100, tag: 0, rkey: 0 }]) }?.unwrap();
    until("an outcome", || comm.test(&request).map(|sizes| sizes.map(<[u32]>::to_vec)).transpose())
}

#[test]
fn frames_that_cannot_be_end_the_connection_by_what_is_wrong() {
    let garbage = SocketFrameError::Kind { got: *b"\x01\x02\x03\x04", seq: 0 };
    let late = SocketFrameError::Seq { got: 7, want: 0 };
    let ahead = SocketFrameError::Ahead { len: (4 << 20) + 1, waiting: 0 };
    for (bytes, error) in [
        (*b"\x01\x02\x03\x04____________", Error::Frame(garbage)),
        (message(7, 1, 0), Error::Frame(late)),
        (message(0, 1 << 31, 0), Error::Frame(SocketFrameError::Len(1 << 31))),
        (message(0, 101, 0), Error::SizeMismatch { local: 101, remote: 100, tag: 0 }),
        (message(0, (4 << 20) + 1, 1), Error::Frame(ahead)),
    ] {
        let (mut comm, mut streams) = receiver(0);
        streams[1].write_all(&bytes).unwrap();
        assert_eq!(outcome(&mut comm), Err(error));
        assert_eq!(outcome(&mut comm), Err(error), "it stays");
        let text = comm.ends().report(error).to_string();
        assert!(text.starts_with("lo to peer 127.0.0.1:") && text.contains("(mallory0)"), "{text}");
        // The receiver hangs up on the hostile peer at once.
        let mut rest = Vec::new();
        let _ = streams[1].read_to_end(&mut rest);
    }
}

#[test]
fn views_without_end_and_other_bytes_on_control_leave_the_messages_alone() {
    let (mut comm, mut streams) = receiver(0);
    let view = ViewFrame { view: EndView::default(), asks: true };
    for _ in 0..100 {
        streams[0].write_all(&view.to_bytes()).unwrap();
    }
    streams[0].write_all(&message(0, 1, 0)).unwrap();
    streams[1].write_all(&[&message(0, 1, 0)[..], &[1]].concat()).unwrap();
    for _ in 0..100 {
        comm.look_for_stall(now_ns());
        comm.check_peer().unwrap();
    }
    assert_eq!(outcome(&mut comm), Ok(vec![1]));
}

#[test]
fn more_ahead_than_is_allowed_is_not_taken_in() {
    let (mut comm, mut streams) = receiver(0);
    let stranger = std::thread::spawn(move || {
        for seq in 0..300 {
            // The write fails once the receiver has hung up.
            let frame = [&message(seq, 1 << 16, 1)[..], &[0; 1 << 16]].concat();
            if streams[1].write_all(&frame).is_err() {
                break;
            }
        }
        streams
    });
    let ahead = SocketFrameError::Ahead { len: 1 << 16, waiting: 4 << 20 };
    assert_eq!(outcome(&mut comm), Err(Error::Frame(ahead)));
    stranger.join().unwrap();
}

#[test]
fn a_message_that_breaks_off_is_an_error_and_not_a_message() {
    for (lanes, bytes) in
        [(0, message(0, 50, 0)[..7].to_vec()), (0, [&message(0, 50, 0)[..], &[1; 49]].concat())]
    {
        let (mut comm, mut streams) = receiver(lanes);
        streams[1].write_all(&bytes).unwrap();
        drop(streams);
        assert_eq!(outcome(&mut comm), Err(Error::PeerClosed(StreamError::Closed)));
    }
}

#[test]
fn one_byte_at_a_time_is_as_good_as_all_at_once() {
    let (mut comm, mut streams) = receiver(0);
    let stranger = std::thread::spawn(move || {
        streams[1].set_nodelay(true).unwrap();
        for seq in 0..3 {
            for byte in [&message(seq, 20, 0)[..], &[5; 20]].concat() {
                streams[1].write_all(&[byte]).unwrap();
            }
        }
        streams
    });
    for _ in 0..3 {
        assert_eq!(outcome(&mut comm), Ok(vec![20]));
    }
    drop(stranger.join().unwrap());
}

#[test]
fn a_sender_refuses_what_no_receiver_says() {
    let buffer = |seq, len| Frame { kind: FrameKind::Buffer, seq, len, tag: 0 }.to_bytes();
    let many: Vec<u8> = (0..=2048).flat_map(|seq| buffer(seq, 1)).collect();
    let kind = SocketFrameError::Kind { got: *b"MSG\0", seq: 0 };
    for (bytes, error) in [
        (message(0, 1, 0).to_vec(), kind),
        ([buffer(0, 1), buffer(0, 1)].concat(), SocketFrameError::Seq { got: 0, want: 1 }),
        (buffer(0, u32::MAX).to_vec(), SocketFrameError::Len(u32::MAX)),
        (many, SocketFrameError::Buffers),
    ] {
        let (mut comm, mut streams) = sender();
        streams[0].write_all(&bytes).unwrap();
        let error = Error::Frame(error);
        assert_eq!(until("an error", || comm.check_peer().err()), error);
        assert_eq!(error.kind(), ErrorKind::Peer);
        let buf = SendBuf { addr: 0, len: 0, lkey: 0 };
        // SAFETY: the send has no bytes.
        assert_eq!(unsafe { comm.isend(&buf, 0) }, Err(error), "it stays");
    }
}
