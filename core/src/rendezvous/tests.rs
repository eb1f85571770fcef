//! Ranks and a hub, and what hostile ones say.

extern crate std;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const SECRET: [u8; SECRET_BYTES] = [3; SECRET_BYTES];

fn rank(secret: [u8; SECRET_BYTES], rank: u32, nranks: u32) -> Joining {
    Joining::new(secret, [rank as u8; NONCE_BYTES], (rank, nranks), Member::default())
}

/// What a hub and a rank come to; the hub's side, and the rank's.
fn meet(
    roster: &mut Roster,
    mut joining: Joining,
    meddle: impl Fn(Message) -> Message,
) -> (Result<u32, Refusal>, Result<(), JoinError>) {
    let (admission, challenge) = Admission::new([200; NONCE_BYTES]);
    let challenge = meddle(challenge);
    let join = match joining.handle(challenge.header, &challenge.body) {
        Ok(JoinStep::Say(join)) => meddle(join),
        Ok(JoinStep::Joined) => panic!("in without a word"),
        Err(error) => return (Err(Refusal::Secret), Err(error)),
    };
    let (admitted, answer) = match admission.handle(join.header, &join.body, &SECRET, roster) {
        Ok((rank, _, welcome)) => (Ok(rank), welcome),
        Err(refusal) => (Err(refusal), Message::new(Kind::Refused, refusal.to_string().as_bytes())),
    };
    let answer = meddle(answer);
    let joined = joining.handle(answer.header, &answer.body).map(|step| match step {
        JoinStep::Joined => (),
        JoinStep::Say(_) => panic!("nothing is left to say"),
    });
    (admitted, joined)
}

#[test]
fn who_knows_the_secret_joins() {
    let mut roster = Roster::new(2).unwrap();
    for number in [1, 0] {
        let met = meet(&mut roster, rank(SECRET, number, 2), |message| message);
        assert_eq!(met, (Ok(number), Ok(())));
    }
    assert!(roster.is_complete());
}

#[test]
fn who_does_not_is_told_so_and_takes_no_place() {
    let mut roster = Roster::new(2).unwrap();
    let (hub, joined) = meet(&mut roster, rank([4; SECRET_BYTES], 0, 2), |message| message);
    assert_eq!(hub, Err(Refusal::Secret));
    let text = "refused: it does not know the secret of this communicator";
    assert_eq!(joined.unwrap_err().to_string(), text);
    let (hub, joined) = meet(&mut roster, rank(SECRET, 0, 3), |message| message);
    assert_eq!(hub, Err(Refusal::Size { rank: 0, theirs: 3, ours: 2 }));
    let text = "refused: rank 0 counts on 3 ranks, the communicator has 2";
    assert_eq!(joined.unwrap_err().to_string(), text);
    assert!(meet(&mut roster, rank(SECRET, 0, 2), |message| message).1.is_ok());
}

#[test]
fn a_hub_that_does_not_know_the_secret_is_found_out() {
    let forge = |mut message: Message| {
        if message.header.kind == Kind::Welcome {
            message.body[0] ^= 1;
        }
        message
    };
    let (_, joined) = meet(&mut Roster::new(1).unwrap(), rank(SECRET, 0, 1), forge);
    assert_eq!(joined, Err(JoinError::Secret));
}

#[test]
fn a_join_that_was_heard_before_is_worth_nothing() {
    let (first, challenge) = Admission::new([1; NONCE_BYTES]);
    let mut joining = rank(SECRET, 0, 1);
    let Ok(JoinStep::Say(join)) = joining.handle(challenge.header, &challenge.body) else {
        panic!("a join")
    };
    let mut roster = Roster::new(1).unwrap();
    let (second, _) = Admission::new([2; NONCE_BYTES]);
    let replayed = second.handle(join.header, &join.body, &SECRET, &mut roster);
    assert_eq!(replayed.unwrap_err(), Refusal::Secret);
    assert!(first.handle(join.header, &join.body, &SECRET, &mut roster).is_ok());
}

#[test]
fn another_version_is_named() {
    let newer = |mut message: Message| {
        if message.header.kind == Kind::Challenge {
            message.body[4] = 2;
        }
        message
    };
    let (_, joined) = meet(&mut Roster::new(1).unwrap(), rank(SECRET, 0, 1), newer);
    assert_eq!(joined, Err(JoinError::Version(2)));
}

proptest! {
    #[test]
    fn no_changed_bit_lets_anybody_in(kind in 0..3_usize, byte: usize, bit in 0..8_u32) {
        let kind = [Kind::Challenge, Kind::Join, Kind::Welcome][kind];
        let meddle = |mut message: Message| {
            if message.header.kind == kind {
                let byte = byte % message.body.len();
                message.body[byte] ^= 1 << bit;
            }
            message
        };
        let (hub, joined) = meet(&mut Roster::new(1).unwrap(), rank(SECRET, 0, 1), meddle);
        prop_assert!(joined.is_err());
        prop_assert_eq!(hub.is_ok(), kind == Kind::Welcome);
    }

    #[test]
    fn any_bytes_are_messages_or_an_error(
        bytes in prop::collection::vec(any::<u8>(), 0..3000),
        piece in 1..200_usize,
    ) {
        let (mut incoming, mut joining) = (Incoming::default(), rank(SECRET, 0, 1));
        let mut roster = Roster::new(1).unwrap();
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let space = incoming.space();
            let n = piece.min(space.len()).min(rest.len());
            space[..n].copy_from_slice(&rest[..n]);
            rest = &rest[n..];
            let Ok(message) = incoming.filled(n) else { break };
            if let Some((header, body)) = message {
                let _ = joining.handle(header, body);
                let (admission, _) = Admission::new([0; NONCE_BYTES]);
                prop_assert!(admission.handle(header, body, &SECRET, &mut roster).is_err());
            }
        }
    }

    #[test]
    fn messages_survive_their_bytes(from: u32, to: u32, tag: u32, body in prop::collection::vec(any::<u8>(), 0..1024)) {
        let header = Header { from, to, tag, ..Header::new(Kind::Blob, body.len()) };
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
