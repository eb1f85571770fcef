//! A receive of up to eight buffers is one request, whatever the order of its messages.

use invar_core::comm::{RecvBuf, Request};
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_testkit::duo::{Buffer, Duo};

use crate::line::Line;
use crate::meddler::Meddler;

/// The room for each message, in bytes.
const ROOM: usize = 64;

struct Group {
    duo: Duo<Meddler>,
    from: Buffer<Meddler>,
    to: Buffer<Meddler>,
}

impl Group {
    fn new(settings: CommSettings) -> Self {
        let Line { mut duo, from, to, .. } = Line::with([settings; 2], 32 * 8 * ROOM);
        let bytes: Vec<u8> = (0..32 * 8 * ROOM).map(|i| (i / ROOM * 7) as u8).collect();
        from.write(0, &bytes);
        assert_eq!(duo.send.isend(&Default::default(), 0), Ok(None));
        Group { duo, from, to }
    }

    /// Posts a receive of buffers from place `first` on, with these tags.
    fn irecv(&mut self, first: usize, tags: &[u32]) -> Request {
        let bufs: Vec<RecvBuf> = (first..)
            .zip(tags)
            .map(|(place, &tag)| self.to.room(place * ROOM, ROOM as u32, tag))
            .collect();
        self.duo.irecv(&bufs)
    }

    /// Sends the message that lies at a place.
    fn isend(&mut self, place: usize, tag: u32) -> Result<Option<Request>, Error> {
        self.duo.send.isend(&self.from.message(place * ROOM, len(place)), tag)
    }

    fn check(&self, place: usize) {
        let len = len(place) as usize;
        let bytes = self.to.read(place * ROOM, ROOM);
        assert!(bytes[..len].iter().all(|&byte| byte == (place * 7) as u8), "place {place}");
        assert!(bytes[len..].iter().all(|&byte| byte == 0), "behind place {place}");
    }
}

/// The length of the message at a place. Every length from 0 on occurs.
fn len(place: usize) -> u32 {
    (place % (ROOM + 1)) as u32
}

/// All orders of `n` items.
fn permutations(n: usize) -> Vec<Vec<usize>> {
    if n == 0 {
        return vec![Vec::new()];
    }
    let shorter = permutations(n - 1);
    let with_last = |order: &Vec<usize>| {
        let order = order.clone();
        (0..n).map(move |at| {
            let mut order = order.clone();
            order.insert(at, n - 1);
            order
        })
    };
    shorter.iter().flat_map(with_last).collect()
}

#[test]
fn messages_of_a_group_may_come_in_any_order() {
    for n in 1..=6 {
        for order in permutations(n) {
            let mut group = Group::new(CommSettings { fifo_depth: 8, ..CommSettings::default() });
            let tags: Vec<u32> = (0..n as u32).map(|r| 100 + r).collect();
            let received = group.irecv(0, &tags);
            let mut sent = Vec::new();
            for (i, &r) in order.iter().enumerate() {
                assert_eq!(group.duo.recv.test(&received), Ok(None), "{i} of {n} are here");
                sent.extend(group.isend(r, tags[r]).expect("isend"));
                let done = group.duo.send.test(&sent[0]).expect("test").is_some();
                assert_eq!(done, i == n - 1, "a send goes with the last of its group");
            }
            for (request, &r) in sent[1..].iter().zip(&order[1..]) {
                assert_eq!(group.duo.send.test(request), Ok(Some(len(r))));
            }
            let got = group.duo.recv.test(&received).expect("test").expect("done");
            assert_eq!(got, (0..n).map(len).collect::<Vec<_>>());
            (0..n).for_each(|r| group.check(r));
        }
    }
}

#[test]
fn equal_tags_in_a_group_are_taken_in_order() {
    let mut group = Group::new(CommSettings::default());
    let received = group.irecv(10, &[5, 6, 5, 5]);
    for (place, tag) in [(10, 5), (12, 5), (13, 5), (11, 6)] {
        let _ = group.isend(place, tag).expect("isend").expect("a request");
    }
    let got = group.duo.recv.test(&received).expect("test").expect("done");
    assert_eq!(got, [10, 11, 12, 13]);
    (10..14).for_each(|place| group.check(place));
}

#[test]
fn a_group_waits_for_the_messages_of_all_its_tags() {
    let mut group = Group::new(CommSettings::default());
    let first = group.irecv(0, &[1, 2]);
    let second = group.irecv(2, &[3]);
    assert_eq!(group.isend(2, 3), Ok(None), "the group is at the head");
    let _ = group.isend(0, 1).expect("isend").expect("a request");
    assert_eq!(group.isend(0, 1), Ok(None), "its buffer is taken");
    assert_eq!(group.isend(2, 3), Ok(None), "the group is at the head still");
    let _ = group.isend(1, 2).expect("isend").expect("a request");
    let _ = group.isend(2, 3).expect("isend").expect("a request");
    assert_eq!(group.duo.recv.test(&second).expect("test").expect("done"), [2]);
    assert_eq!(group.duo.recv.test(&first).expect("test").expect("done"), [0, 1]);
}

#[test]
fn thirty_two_full_groups_may_be_under_way_and_end_in_any_order() {
    for qps in [1, 4] {
        let mut group = Group::new(CommSettings { qps, ..CommSettings::default() });
        let tags: Vec<u32> = (0..8).collect();
        let mut received: Vec<_> = (0..32).map(|g| (g, group.irecv(8 * g, &tags))).collect();
        let mut sent = Vec::new();
        for place in 0..32 * 8 {
            sent.push((place, group.isend(place, place as u32 % 8).expect("isend").expect("one")));
        }
        assert_eq!(group.isend(0, 0), Ok(None), "all 256 requests are under way");
        // Test in a scattered order. 7 and 31 have no factor in common with the numbers of requests.
        for i in 0..256 {
            let (place, request) = &sent[i * 31 % 256];
            assert_eq!(group.duo.send.test(request), Ok(Some(len(*place))));
        }
        for i in 0..32 {
            let (g, request) = &mut received[i * 7 % 32];
            let got = group.duo.recv.test(request).expect("test").expect("done");
            let places = 8 * *g..8 * *g + 8;
            assert_eq!(got, places.clone().map(len).collect::<Vec<_>>());
            places.for_each(|place| group.check(place));
        }
        assert_eq!((group.duo.send.outstanding(), group.duo.recv.outstanding()), (0, 0));
    }
}

#[test]
fn on_the_wire_of_nccl_2_14_a_group_learns_only_which_buffers_got_bytes() {
    let mut group = Group::new(CommSettings { wire: Wire::Nccl214, ..CommSettings::default() });
    let received = group.irecv(0, &[0, 1, 2]);
    for r in 0..3 {
        let _ = group.isend(r, r as u32).expect("isend").expect("a request");
    }
    let got = group.duo.recv.test(&received).expect("test").expect("done");
    assert_eq!(got, [0, 1, 1]);
    (0..3).for_each(|place| group.check(place));
}

#[test]
fn a_receive_takes_one_to_eight_buffers_and_no_more_than_there_are_rows() {
    let mut group = Group::new(CommSettings { fifo_depth: 4, ..CommSettings::default() });
    let buf = group.to.room(0, 1, 0);
    for count in [0, 9, 20, 5] {
        let error = group.duo.recv.irecv(&vec![buf; count]).expect_err("refused");
        assert!(matches!(error, Error::Argument(_)), "{error}");
    }
    let _ = group.irecv(0, &[0, 1, 2, 3]);
}
