//! The two ends of a socket go on over new connections, and its bytes arrive once and in order.

use invar_core::auth::Session;
use invar_core::conn::stage::Side;
use invar_core::conn::{Stream, StreamError};
use invar_core::error::Error;
use invar_core::socket::{ResumableSocket, ResumeTimes, SocketNews};
use invar_testkit::pattern::pattern_byte;
use invar_testkit::pipe::{Cable, Pipe};
use proptest::prelude::*;

const SECOND_NS: u64 = 1_000_000_000;
const TIMES: ResumeTimes = ResumeTimes { within_ns: 60 * SECOND_NS, silence_ns: 30 * SECOND_NS };

/// One event of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    Write(usize),
    Read(usize),
    /// The writer, or the reader, looks after its socket.
    Look(bool),
    /// The connection breaks for the writer, for the reader, or for both.
    Cut([bool; 2]),
    Suspect,
}

/// An end with the number of bytes that it has written or read.
struct End {
    socket: ResumableSocket<Pipe>,
    position: u64,
    is_writer: bool,
}

impl End {
    fn look(&mut self, now_ns: u64) -> Result<(), Error> {
        match self.socket.poll(now_ns, TIMES)? {
            SocketNews::None | SocketNews::Lost(_) => {}
            SocketNews::Renewed => {
                self.socket.resume(if self.is_writer { 0 } else { self.position })
            }
            SocketNews::Resumed(read) if self.is_writer => {
                assert!(read <= self.position, "more was read than was written");
                self.position = read;
            }
            SocketNews::Resumed(read) => assert_eq!(read, 0),
        }
        Ok(())
    }

    fn write(&mut self, bytes: usize) {
        let bytes: Vec<u8> =
            (self.position..).take(bytes).map(|at| pattern_byte(0, at as usize)).collect();
        if self.socket.is_up() {
            match self.socket.stream_mut().send(&bytes) {
                Ok(sent) => self.position += sent as u64,
                Err(error) => self.socket.lose_sending(error).unwrap(),
            }
        }
    }

    fn read(&mut self, bytes: usize) {
        let mut bytes = vec![0; bytes];
        if !bytes.is_empty() && self.socket.brings_bytes() {
            match self.socket.stream_mut().recv(&mut bytes) {
                Ok(read) => {
                    for byte in &bytes[..read] {
                        assert_eq!(*byte, pattern_byte(0, self.position as usize));
                        self.position += 1;
                    }
                }
                Err(error) => self.socket.lose(error).unwrap(),
            }
        }
    }
}

/// A writer and a reader. The one or the other calls.
fn ends(writer_calls: bool) -> (End, End, Cable) {
    let (ours, theirs) = Pipe::pair();
    let cable = ours.cable();
    let (here, there) = match writer_calls {
        true => (Side::Connector, Side::Acceptor),
        false => (Side::Acceptor, Side::Connector),
    };
    let end = |pipe, side, is_writer| {
        let socket = ResumableSocket::new(pipe, side, Session::UNKNOWN_PEER, Some(1));
        End { socket, position: 0, is_writer }
    };
    (end(ours, here, true), end(theirs, there, false), cable)
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..300).prop_map(Step::Write),
        4 => (0usize..300).prop_map(Step::Read),
        6 => any::<bool>().prop_map(Step::Look),
        1 => prop_oneof![Just([true, true]), Just([true, false]), Just([false, true])]
            .prop_map(Step::Cut),
        1 => Just(Step::Suspect),
    ]
}

proptest! {
    #[test]
    fn bytes_arrive_once_and_in_order_however_often_the_connection_breaks(
        writer_calls: bool, steps in prop::collection::vec(step(), 0..300),
    ) {
        let (mut writer, mut reader, cable) = ends(writer_calls);
        for step in steps {
            match step {
                Step::Write(bytes) => writer.write(bytes),
                Step::Read(bytes) => reader.read(bytes),
                Step::Look(true) => writer.look(1).unwrap(),
                Step::Look(false) => reader.look(1).unwrap(),
                Step::Cut(ends) => cable.cut(ends),
                Step::Suspect => {
                    writer.socket.suspect(1);
                    reader.socket.suspect(1);
                }
            }
        }
        // Both ends notice each break, and the network is well from now on.
        cable.cut([true, true]);
        for _ in 0..20 {
            writer.write(1);
            reader.read(1);
            writer.look(1).unwrap();
            reader.look(1).unwrap();
        }
        prop_assert!(writer.socket.is_up() && reader.socket.is_up());
        let end = writer.position + 100;
        writer.write(100);
        reader.read(usize::from(u16::MAX));
        prop_assert_eq!((writer.position, reader.position), (end, end));
    }
}

#[test]
fn a_peer_that_is_gone_is_an_error_at_once_and_a_network_after_the_time_for_recovery() {
    for writer_calls in [false, true] {
        let (mut writer, reader, _) = ends(writer_calls);
        drop(reader);
        let error = writer.socket.stream_mut().recv(&mut [0]).unwrap_err();
        let closed = Error::PeerClosed(StreamError::Closed);
        assert_eq!(writer.socket.lose(error), Err(closed));

        let (mut writer, mut reader, cable) = ends(writer_calls);
        cable.cut([true, true]);
        cable.set_out(true);
        writer.write(1);
        reader.read(1);
        // The kernel has told of the silence after half of the time.
        for seconds in [100, 129] {
            writer.look(seconds * SECOND_NS).unwrap();
            reader.look(seconds * SECOND_NS).unwrap();
        }
        for end in [&mut writer, &mut reader] {
            let error = end.look(130 * SECOND_NS).unwrap_err();
            assert!(matches!(error, Error::Line(line) if line.lost_ms == 60_000), "{error:?}");
        }
    }
}
