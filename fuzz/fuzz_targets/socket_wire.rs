//! Feeds any bytes from a hostile peer, in pieces of any size, to the sockets of the socket transport.
//! The result is a connection, a place for each byte, or a lasting error. Nothing panics, and no byte
//! lands outside its buffer.
#![no_main]

use invar_core::auth::Session;
use invar_core::conn::Stream;
use invar_core::error::Error;
use invar_core::socket::{
    AHEAD_BYTES, HandshakeSettings, PendingConnections, Posted, Receiver, RecvStep, Sender,
    SocketConnector, Target,
};
use invar_simulator::pipe::Pipe;
use libfuzzer_sys::fuzz_target;

fn settings() -> HandshakeSettings {
    HandshakeSettings { device: "eth0".try_into().expect("short"), timeout_ns: 1, resumes: true }
}

fn connect<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let (control, mut there) = Pipe::pair();
    let (main, _kept) = Pipe::pair();
    let mut connector = SocketConnector::new([(control, None), (main, None)], 7, &settings(), 0);
    let mut end = Ok(None);
    for piece in pieces {
        let _ = there.send(piece);
        end = connector.poll(0);
        if !matches!(end, Ok(None)) {
            break;
        }
    }
    match end {
        Ok(None) => assert!(connector.poll(1).is_err(), "the deadline has passed"),
        Ok(Some(_)) => assert!(matches!(connector.poll(1), Err(Error::State { .. }))),
        Err(error) => assert_eq!(connector.poll(1).map(drop), Err(error), "an error stays"),
    }
}

fn accept<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let mut pending = PendingConnections::new(settings());
    let mut theirs = Vec::new();
    for _ in 0..3 {
        let (here, there) = Pipe::pair();
        pending.enter(here, Session::UNKNOWN_PEER, 0);
        theirs.push(there);
    }
    for (i, piece) in pieces.enumerate() {
        let _ = theirs[i % 3].send(piece);
        let _ = pending.poll(0).map_err(|refused| refused.to_string());
    }
    // In the end every caller that has not become a connection is refused.
    (0..3).for_each(|_| drop(pending.poll(1)));
    assert!(matches!(pending.poll(1), Ok(None)));
}

fn receive<'a>(lanes: u16, pieces: impl Iterator<Item = &'a [u8]>) {
    const ROOM: u32 = 1 << 17;
    let mut receiver = Receiver::new(lanes).resuming(true);
    let mut staged = Vec::new();
    let mut parked = [0; 256];
    for (i, piece) in (0..).zip(pieces) {
        let _ = receiver.irecv(&[Posted { len: ROOM, tag: i % 3 }]);
        staged.extend_from_slice(piece);
        loop {
            let step = match receiver.next(&staged) {
                Ok(Some(step)) => step,
                Ok(None) => break,
                Err(error) => {
                    assert_eq!(receiver.next(&staged), Err(error), "an error stays");
                    return;
                }
            };
            let room = |to, parked: &[u32; 256]| match to {
                Target::Buffer { .. } => ROOM,
                Target::Parked(place) => parked[usize::from(place)],
            };
            match step {
                RecvStep::Skip(bytes) => drop(staged.drain(..bytes)),
                RecvStep::Place { to, offset, len } => {
                    assert!(offset + len <= room(to, &parked));
                    let now = staged.len().min(len as usize);
                    staged.drain(..now);
                    receiver.placed(now as u32);
                }
                RecvStep::Spread { to, chunks } => {
                    assert!(chunks.clone().all(|c| c.offset + c.len <= room(to, &parked)));
                    chunks.for_each(|_| receiver.chunk_done(to));
                }
                RecvStep::Park { place, len } => parked[usize::from(place)] = len,
                RecvStep::Unpark { len, .. } => assert!(len <= ROOM),
            }
            assert!(staged.len() < piece.len() + AHEAD_BYTES as usize);
        }
    }
}

fuzz_target!(|data: &[u8]| {
    let Some(([what, lanes, piece], data)) = data.split_first_chunk() else { return };
    let pieces = data.chunks(usize::from(*piece) * 4 + 1);
    match what % 4 {
        0 => connect(pieces),
        1 => accept(pieces),
        2 => receive(u16::from(lanes % 65), pieces),
        _ => {
            let mut sender = Sender::new(0).resuming(lanes & 1 != 0);
            for (tag, piece) in (0..).zip(pieces) {
                let _ = sender.isend(100, tag % 3);
                if let Err(error) = sender.take_control(piece) {
                    assert_eq!(sender.isend(0, 0), Err(error), "an error stays");
                    break;
                }
            }
        }
    }
});
