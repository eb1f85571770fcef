//! Feeds any bytes, in pieces of any size, to the two ends of a proof and to a rendezvous that has
//! accepted the peer's proof. No peer gets in without the secret, and nothing panics.
#![no_main]

use invar_core::auth::{Answering, Calling, NONCE_BYTES, SECRET_BYTES, Secret, Service, Session};
use invar_core::conn::Stream;
use invar_core::rendezvous::{Incoming, Roster, Seal, Speaker, admit, joined};
use invar_simulator::pipe::Pipe;
use libfuzzer_sys::fuzz_target;

const SECRET: Secret = Secret::new([7; SECRET_BYTES]);

fn listen<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let (mut here, mut there) = Pipe::pair();
    let mut answering = Answering::new([1; NONCE_BYTES]);
    for piece in pieces {
        let _ = there.send(piece);
        match answering.poll(&SECRET, Service::Rdma, &mut here) {
            Ok(None) => {}
            Ok(Some(_)) => panic!("a stranger got in"),
            Err(error) => return drop(error.to_string()),
        }
    }
}

fn call<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let (mut here, mut there) = Pipe::pair();
    let mut calling = Calling::new(SECRET, Service::Rdma, [1; NONCE_BYTES]);
    for piece in pieces {
        let _ = there.send(piece);
        match calling.poll(&mut here) {
            Ok(None) => {}
            Ok(Some(_)) => panic!("an impostor was believed"),
            Err(error) => return drop(error.to_string()),
        }
    }
}

fn meet<'a>(pieces: impl Iterator<Item = &'a [u8]>) {
    let (mut incoming, mut roster) = (Incoming::default(), Roster::new(3).expect("a few ranks"));
    let mut seal = Seal::new(&Session::UNKNOWN_PEER, Speaker::Rank);
    for mut piece in pieces {
        while !piece.is_empty() {
            let space = incoming.space();
            let n = space.len().min(piece.len());
            space[..n].copy_from_slice(&piece[..n]);
            piece = &piece[n..];
            match incoming.filled(n) {
                Ok(None) => {}
                Ok(Some((header, body))) => {
                    let _ = (admit(header, body, &mut roster), joined(header, body));
                    let _ = seal.open(header, body);
                }
                Err(_) => return,
            }
        }
    }
}

fuzz_target!(|input: (u8, u8, &[u8])| {
    let (which, piece_bytes, bytes) = input;
    let pieces = bytes.chunks(usize::from(piece_bytes).max(1));
    match which % 3 {
        0 => listen(pieces),
        1 => call(pieces),
        _ => meet(pieces),
    }
});
