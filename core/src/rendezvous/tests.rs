//! Tests of ranks and a hub, and of hostile messages.

extern crate std;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::auth::{SECRET_BYTES, Secret};

/// Runs a join and returns the outcomes of the hub and of the rank.
fn meet(
    roster: &mut Roster,
    (rank, nranks): (u32, u32),
) -> (Result<u32, JoinRefusal>, Result<(), JoinError>) {
    let silence_ms = 60_000 + rank;
    let said = join(rank, nranks, Member::default(), silence_ms);
    let admitted = admit(said.header, &said.body, roster).map(|admitted| {
        assert_eq!((admitted.member, admitted.silence_ms), (Member::default(), silence_ms));
        admitted.rank
    });
    let answer = match &admitted {
        Ok(_) => RendezvousMessage::new(RendezvousKind::Welcome, &[]),
        Err(refusal) => {
            RendezvousMessage::new(RendezvousKind::Refused, refusal.to_string().as_bytes())
        }
    };
    (admitted, joined(answer.header, &answer.body))
}

#[test]
fn ranks_join_in_any_order() {
    let mut roster = Roster::new(2).unwrap();
    for number in [1, 0] {
        assert_eq!(meet(&mut roster, (number, 2)), (Ok(number), Ok(())));
    }
    assert!(roster.is_complete());
}

#[test]
fn a_rank_that_counts_on_other_ranks_is_told_so_and_takes_no_place() {
    let mut roster = Roster::new(2).unwrap();
    let (hub, joined) = meet(&mut roster, (0, 3));
    assert_eq!(hub, Err(JoinRefusal::Size { rank: 0, theirs: 3, ours: 2 }));
    let text = "refused: rank 0 counts on 3 ranks, the communicator has 2";
    assert_eq!(joined.unwrap_err().to_string(), text);
    assert!(meet(&mut roster, (0, 2)).1.is_ok());
}

#[test]
fn ranks_derive_one_key_and_other_communicators_another() {
    let id = |secret| {
        UniqueId::new("127.0.0.1:1".parse().unwrap(), &Secret::new([secret; SECRET_BYTES]))
    };
    let keys = [id(1).key(&[1; 16]), id(1).key(&[2; 16]), id(2).key(&[1; 16])];
    assert!(keys[0] != keys[1] && keys[0] != keys[2]);
    assert!(id(1).key(&[1; 16]) == keys[0] && keys[0] != id(1).secret());
}

fn seal() -> Seal {
    // Everybody knows the key of this session, as each end knows the key of its own seals.
    Seal::new(&crate::auth::Session::UNKNOWN_PEER, Speaker::Rank)
}

/// Returns the header as it arrives, and the body with its tag.
fn sealed(seal: &mut Seal, header: RendezvousHeader, body: &[u8]) -> (RendezvousHeader, Vec<u8>) {
    let (_, tag) = seal.seal(header, body);
    let len = (body.len() + TAG_BYTES) as u32;
    (RendezvousHeader { len, ..header }, body.iter().copied().chain(tag).collect())
}

proptest! {
    #[test]
    fn no_changed_bit_repetition_or_omission_passes_a_seal(
        bodies in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..5),
        which: prop::sample::Index,
        byte: prop::sample::Index,
        bit in 0..8_u32,
        from: u32,
    ) {
        let (mut ours, mut theirs) = (seal(), seal());
        let header = RendezvousHeader { from, ..RendezvousHeader::new(RendezvousKind::Blob, 0) };
        let messages: Vec<_> =
            bodies.iter().map(|body| sealed(&mut ours, header, body)).collect();
        let which = which.index(messages.len());
        for (at, (header, body)) in messages.iter().enumerate() {
            if at == which {
                let mut changed = body.clone();
                changed[byte.index(body.len())] ^= 1 << bit;
                prop_assert_eq!(theirs.clone().open(*header, &changed), None);
                let other = RendezvousHeader { tag: header.tag ^ (1 << bit), ..*header };
                prop_assert_eq!(theirs.clone().open(other, body), None);
                if let Some((header, body)) = messages.get(at + 1) {
                    prop_assert_eq!(theirs.clone().open(*header, body), None, "left out");
                }
            }
            prop_assert_eq!(theirs.open(*header, body), Some(&bodies[at][..]));
            prop_assert_eq!(theirs.clone().open(*header, body), None, "said twice");
        }
    }

    #[test]
    fn any_bytes_are_messages_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        piece in 1..200_usize,
    ) {
        let mut incoming = Incoming::default();
        let mut roster = Roster::new(1).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = incoming.space();
            let n = piece.min(space.len()).min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            let Ok(message) = incoming.filled(n) else { break };
            if let Some((header, body)) = message {
                let _ = (joined(header, body), admit(header, body, &mut roster));
                prop_assert_eq!(seal().open(header, body), None);
            }
        }
    }

    #[test]
    fn messages_survive_their_bytes(from: u32, to: u32, tag: u32, body in prop::collection::vec(any::<u8>(), 0..1024)) {
        let header = RendezvousHeader { from, to, tag, ..RendezvousHeader::new(RendezvousKind::Blob, body.len()) };
        let mut incoming = Incoming::default();
        let bytes: Vec<u8> = header.to_bytes().into_iter().chain(body.clone()).collect();
        let mut rest = &bytes[..];
        loop {
            let space = incoming.space();
            let n = space.len().min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            if let Some((got, got_body)) = incoming.filled(n).unwrap() {
                prop_assert_eq!((got, got_body), (header, &body[..]));
                break;
            }
        }
    }
}
