use std::net::{Ipv4Addr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use invar_core::auth::{Secret, Service};
use invar_core::param::PortRange;
use invar_core::rendezvous::{
    COMMUNICATOR_ID_BYTES, RendezvousHeader, RendezvousKind, RendezvousMessage, Roster, Speaker,
    UniqueId, admit, join,
};
use invar_test_wait::{until, watch};

use super::connection::Connection;
use super::*;
use crate::clock::now_ns;
use crate::tcp::{AuthListener, Proof, SILENCE_MAX};

const TIMEOUT: Duration = Duration::from_secs(60);
const SECRET: Secret = Secret::new([5; 32]);

fn hub(nranks: u32, within: Duration) -> Hub {
    Hub::listen((Ipv4Addr::LOCALHOST, 0).into(), PortRange::ANY, nranks, None, within).unwrap()
}

fn meet(id: &UniqueId, who: (u32, u32), within: Duration) -> Result<Bootstrap, BootstrapError> {
    Bootstrap::join(id, who, within, SILENCE_MAX)
}

fn ranks<R: Send>(nranks: u32, run: impl Fn(Bootstrap) -> R + Sync) -> Vec<R> {
    let hub = hub(nranks, TIMEOUT);
    let (id, run) = (hub.id(), &run);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..nranks)
            .map(|rank| scope.spawn(move || run(meet(&id, (rank, nranks), TIMEOUT).unwrap())))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn all_ranks_get_what_each_says() {
    let said = |rank: u32| vec![rank as u8; rank as usize * 1500];
    let heard = ranks(5, |bootstrap| {
        let heard = bootstrap.all_gather(7, &said(bootstrap.rank()), TIMEOUT).unwrap();
        bootstrap.all_gather(8, &[], TIMEOUT).unwrap();
        heard
    });
    let all: Vec<_> = (0..5).map(said).collect();
    assert!(heard.iter().all(|heard| *heard == all));
}

/// Makes a blob that is larger than the kernel accepts at once.
fn long_blob(rank: u32) -> Vec<u8> {
    (0..32 << 20_u32).map(|at| (at ^ at >> 8 ^ at >> 16 ^ rank) as u8).collect()
}

#[test]
fn a_long_blob_comes_whole() {
    let heard = ranks(2, |bootstrap| {
        bootstrap.all_gather(7, &long_blob(bootstrap.rank()), TIMEOUT).unwrap()
    });
    assert!(heard.iter().all(|heard| *heard == [long_blob(0), long_blob(1)]));
}

#[test]
fn a_blob_that_nobody_could_take_in_is_refused() {
    ranks(1, |bootstrap| {
        let error = bootstrap.send(0, 7, &vec![0; 256 << 20]).unwrap_err();
        let text = "a rendezvous: a blob of 268435456 bytes: at most 268435324 can be";
        assert_eq!(error.to_string(), text);
    });
}

#[test]
fn a_rank_that_takes_in_slowly_holds_up_who_sends_and_misses_nothing() {
    let hub = hub(2, TIMEOUT);
    let id = hub.id();
    let blob = long_blob(0);
    thread::scope(|scope| {
        let slow = scope.spawn(|| join_by_hand(&id, (1, 2)));
        let zero = meet(&id, (0, 2), TIMEOUT).unwrap();
        let mut slow = slow.join().unwrap();
        let sent = scope.spawn(|| {
            zero.send(1, 7, &blob).unwrap();
            zero
        });
        // In this time the hub would have read everything if it had no limit.
        thread::sleep(Duration::from_secs(3));
        assert!(!sent.is_finished(), "the hub keeps all of it");
        let len = blob.len() as u32;
        let mut got = Vec::new();
        while got.len() < blob.len() + 4 {
            let (header, body) = hear(&mut slow);
            assert_eq!((header.kind, header.from, header.tag), (RendezvousKind::Blob, 0, 7));
            got.extend(body);
        }
        assert!(got == [&len.to_le_bytes()[..], &blob].concat());
        drop(sent.join().unwrap());
    });
}

#[test]
fn a_time_without_end_is_one() {
    let hub = hub(1, Duration::MAX);
    let rank = meet(&hub.id(), (0, 1), Duration::MAX).unwrap();
    assert_eq!(rank.all_gather(8, b"alone", Duration::MAX).unwrap(), [b"alone"]);
}

#[test]
fn blobs_of_a_tag_come_in_order_and_others_do_not_mix_with_them() {
    ranks(2, |bootstrap| {
        let peer = 1 - bootstrap.rank();
        for i in 0..100_u8 {
            bootstrap.send(peer, u32::from(i % 2), &[i, bootstrap.rank() as u8]).unwrap();
        }
        for i in (1..100_u8).step_by(2).chain((0..100).step_by(2)) {
            let blob = bootstrap.recv(peer, u32::from(i % 2), TIMEOUT).unwrap();
            assert_eq!(blob, [i, peer as u8]);
        }
        bootstrap.all_gather(9, &[], TIMEOUT).unwrap();
    });
}

#[test]
fn a_blob_is_looked_for_without_waiting_and_not_once_its_rank_has_left() {
    ranks(2, |bootstrap| {
        if bootstrap.rank() == 0 {
            bootstrap.send(1, 7, b"here").unwrap();
            return;
        }
        assert_eq!(bootstrap.try_recv(1, 7).unwrap(), None, "of itself");
        until("a message", || bootstrap.try_recv(0, 7).unwrap());
        let error = until("an error", || bootstrap.try_recv(0, 7).transpose()).unwrap_err();
        let text = "rank 0: it has left the communicator while others still wait for its data";
        assert_eq!(error.to_string(), text);
    });
}

#[test]
fn the_first_failure_reaches_every_rank_and_stays() {
    let failures = ranks(3, |bootstrap| {
        if bootstrap.rank() == 1 {
            bootstrap.fail(1, "out of paper");
        }
        let error = bootstrap.recv(bootstrap.rank(), 0, TIMEOUT).unwrap_err();
        let failure = bootstrap.check().unwrap_err();
        assert_eq!(error.to_string(), failure.to_string());
        bootstrap.fail(1, "too late");
        assert_eq!(bootstrap.check(), Err(failure.clone()));
        // Every rank waits until all have heard of the failure.
        if bootstrap.rank() == 0 {
            until("all to leave", || (1..3).all(|rank| bootstrap.has_left(rank)));
        }
        failure
    });
    for failure in failures {
        assert_eq!(failure.to_string(), "rank 1: out of paper");
    }
}

#[test]
fn who_leaves_has_not_failed() {
    ranks(2, |bootstrap| {
        if bootstrap.rank() == 0 {
            until("rank 1 to leave", || bootstrap.has_left(1));
            assert_eq!(bootstrap.check(), Ok(()));
        }
    });
}

#[test]
fn ranks_go_on_when_the_one_that_let_go_of_the_hub_has_left() {
    let hub = hub(3, TIMEOUT);
    let id = hub.id();
    thread::scope(|scope| {
        let join = |rank| scope.spawn(move || meet(&id, (rank, 3), TIMEOUT).unwrap());
        let [zero, one, two] = [0, 1, 2].map(join).map(|rank| rank.join().unwrap());
        drop(zero);
        drop(hub);
        one.send(2, 7, b"still here").unwrap();
        assert_eq!(two.recv(1, 7, TIMEOUT).unwrap(), b"still here");
        two.fail(2, "enough");
        let error = one.recv(2, 7, TIMEOUT).unwrap_err();
        assert_eq!(error.to_string(), "rank 2: enough");
    });
}

#[test]
fn callers_who_say_nothing_keep_no_rank_out() {
    let within = Duration::from_secs(15);
    let hub = hub(2, within);
    let id = hub.id();
    let _silent: Vec<_> = (0..300).map(|_| TcpStream::connect(id.addr()).unwrap()).collect();
    thread::scope(|scope| {
        let join = |rank| scope.spawn(move || meet(&id, (rank, 2), within));
        for rank in [0, 1].map(join) {
            assert!(rank.join().unwrap().is_ok());
        }
    });
}

/// Waits for the next message.
fn hear(connection: &mut Connection) -> (RendezvousHeader, Vec<u8>) {
    watch("a message", || connection.recv().unwrap())
}

/// Joins up to the start, and then neither sends nor receives.
fn join_by_hand(id: &UniqueId, who: (u32, u32)) -> Connection {
    let deadline = Instant::now() + TIMEOUT;
    let stream = reach::connect(id.addr(), deadline).ok().unwrap();
    let mut connection = reach::authenticate(stream, id, deadline).unwrap().unwrap();
    connection.say(&join(who.0, who.1, this_member(), 0)).unwrap();
    loop {
        let (header, _) = hear(&mut connection);
        if header.kind == RendezvousKind::Started {
            return connection;
        }
    }
}

/// Acts as a hub that rank 0 runs: admits rank 1 of two, announces that rank 0 leaves, and ends.
fn hub_of_a_rank_that_leaves(mut listener: AuthListener) {
    let (stream, session) = until("a caller", || listener.poll(now_ns()).unwrap());
    let mut connection = Connection::new(stream, &session, Speaker::Hub);
    let (header, body) = hear(&mut connection);
    admit(header, &body, &mut Roster::new(2).unwrap()).unwrap();
    connection.say(&RendezvousMessage::new(RendezvousKind::Welcome, &[])).unwrap();
    let id = [0; COMMUNICATOR_ID_BYTES];
    connection
        .send(
            RendezvousHeader { tag: 0, ..RendezvousHeader::new(RendezvousKind::Started, id.len()) },
            &id,
        )
        .unwrap();
    connection
        .send(RendezvousHeader { from: 0, ..RendezvousHeader::new(RendezvousKind::Left, 0) }, &[])
        .unwrap();
}

#[test]
fn a_hub_that_went_with_a_rank_that_had_left_is_missed_by_who_needs_it() {
    let proof = Proof::Secret(SECRET, Service::Rendezvous);
    let listener =
        AuthListener::bind((Ipv4Addr::LOCALHOST, 0).into(), PortRange::ANY, proof).unwrap();
    let id = UniqueId::new(listener.local_addr().unwrap(), &SECRET);
    thread::scope(|scope| {
        scope.spawn(|| hub_of_a_rank_that_leaves(listener));
        let one = meet(&id, (1, 2), TIMEOUT).unwrap();
        until("rank 1 to be alone", || {
            assert_eq!(one.check(), Ok(()));
            one.is_alone()
        });
        assert_eq!(one.check(), Ok(()));
        let error = one.recv(0, 7, TIMEOUT).unwrap_err().to_string();
        assert_eq!(error, "rank 0: it had the rendezvous, which others need, and has left");
        assert_eq!(one.check().unwrap_err().to_string(), error);
    });
}

#[test]
fn where_a_rank_had_another_secret_those_who_came_are_told_of_it() {
    let hub = hub(2, Duration::from_millis(300));
    let id = hub.id();
    let stranger = UniqueId::new(id.addr(), &SECRET);
    thread::scope(|scope| {
        scope.spawn(|| meet(&stranger, (0, 2), TIMEOUT).unwrap_err());
        let error = meet(&id, (1, 2), TIMEOUT).unwrap_err().to_string();
        let start = "rank 0 of 2 did not join within 300ms; a caller from 127.0.0.1:";
        assert!(error.starts_with(start) && error.contains("does not know the secret"), "{error}");
    });
}

#[test]
fn ranks_of_one_communicator_share_a_key_that_no_other_has() {
    let keys = || ranks(3, |bootstrap| *bootstrap.key());
    let (ours, theirs) = (keys(), keys());
    assert!(ours.iter().all(|key| *key == ours[0]) && ours[0] != theirs[0]);
}

#[test]
fn a_word_stands_for_one_secret() {
    let secret = secret_of("correct horse");
    assert!(secret == secret_of("correct horse") && secret != secret_of("correct house"));
    assert!(secret_of("") != Secret::PUBLIC);
}

#[test]
fn a_missing_rank_is_named_to_those_who_came() {
    let hub = hub(3, Duration::from_millis(300));
    let error = meet(&hub.id(), (1, 3), TIMEOUT).unwrap_err();
    assert_eq!(error.to_string(), "ranks 0, 2 of 3 did not join within 300ms");
}

#[test]
fn who_has_a_wrong_secret_size_or_rank_is_told_so_and_disturbs_nobody() {
    let hub = hub(2, TIMEOUT);
    let id = hub.id();
    let forged = UniqueId::new(id.addr(), &SECRET);
    let error = |id: &UniqueId, who| meet(id, who, TIMEOUT).unwrap_err().to_string();
    let other = error(&forged, (0, 2));
    assert!(other.contains("hung up before it had proved who it is: it knows another"), "{other}");
    assert!(error(&id, (0, 3)).ends_with("rank 0 counts on 3 ranks, the communicator has 2"));
    assert!(error(&id, (2, 2)).ends_with("there is no rank 2: of 2 ranks the first is 0"));
    // This caller stays silent.
    let _silent = TcpStream::connect(id.addr()).unwrap();
    thread::scope(|scope| {
        for rank in [0, 1] {
            scope.spawn(move || drop(meet(&id, (rank, 2), TIMEOUT).unwrap()));
        }
    });
}

#[test]
fn a_rank_that_is_there_twice_is_refused_once() {
    let hub = hub(2, TIMEOUT);
    let id = hub.id();
    thread::scope(|scope| {
        let twins = [(); 2].map(|()| scope.spawn(|| meet(&id, (0, 2), TIMEOUT)));
        // The refused twin returns before the other rank joins.
        let mut twins = Vec::from(twins);
        let at = until("a refused twin", || twins.iter().position(|twin| twin.is_finished()));
        let refused = twins.swap_remove(at).join().unwrap().unwrap_err();
        assert!(refused.to_string().contains("rank 0 has joined already"), "{refused}");
        let other = meet(&id, (1, 2), TIMEOUT).unwrap();
        drop((twins.pop().unwrap().join().unwrap().unwrap(), other));
    });
}

#[test]
fn a_hub_may_come_later_than_a_rank() {
    let port = TcpStream::connect(hub(1, TIMEOUT).id().addr()).unwrap().peer_addr().unwrap().port();
    let addr = (Ipv4Addr::LOCALHOST, port).into();
    let rank =
        thread::spawn(move || meet(&UniqueId::new(addr, &SECRET), (0, 1), TIMEOUT).map(drop));
    // Another test may hold the port for a moment.
    let hub =
        until("the port", || Hub::listen(addr, PortRange::ANY, 1, Some(SECRET), TIMEOUT).ok());
    rank.join().unwrap().unwrap();
    drop(hub);
}

#[test]
fn who_comes_when_all_have_joined_is_told_that_nobody_listens() {
    let hub = hub(1, TIMEOUT);
    let id = hub.id();
    let _there = meet(&id, (0, 1), TIMEOUT).unwrap();
    let late = || meet(&id, (0, 1), Duration::from_millis(50)).unwrap_err().to_string();
    // The hub may not have stopped listening yet.
    watch("a refusal", || {
        late().ends_with(
            ": nobody listens there any more, or yet, within 50ms: either all ranks have joined \
             already, or rank 0 has given up or not started",
        )
    });
}

#[test]
fn nobody_is_waited_for_longer_than_is_said() {
    let addr = hub(1, TIMEOUT).id().addr();
    let id = UniqueId::new(addr, &SECRET);
    let error = meet(&id, (0, 1), Duration::from_millis(50)).unwrap_err();
    assert!(error.to_string().contains(&format!("rank 0 joining at {addr}: ")), "{error}");
}

#[test]
fn a_rank_that_joins_after_another_has_died_is_told_so() {
    let hub = hub(3, TIMEOUT);
    let id = hub.id();
    thread::scope(|scope| {
        let join = |rank, within| scope.spawn(move || meet(&id, (rank, 3), within));
        let zero = join(0, TIMEOUT);
        // The rank gives up, which is its end for the hub.
        let one = join(1, Duration::from_millis(200));
        assert!(one.join().unwrap().is_err());
        let told = zero.join().unwrap().unwrap_err().to_string();
        let start = Instant::now();
        let late = join(2, TIMEOUT).join().unwrap().unwrap_err().to_string();
        assert!(told.starts_with("rank 1: ") && late == told, "{told}; {late}");
        assert!(start.elapsed() < TIMEOUT / 2);
    });
}
