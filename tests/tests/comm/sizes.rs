//! Messages of every size arrive whole and with their length. The sender posts the work requests that
//! NCCL posts.

use invar_core::comm::{RecvBuf, Request, SendBuf};
use invar_core::conn::{CommSettings, Wire};
use invar_core::error::Error;
use invar_core::nic::{SendFlags, SendOpcode, SendWr, WcStatus};
use invar_testkit::null::NullNic;
use invar_testkit::pattern::pattern;

use crate::line::Line;
use crate::meddler::Meddler;
use crate::queue_pairs::nics;

const BYTES_MAX: usize = 20_000;

/// Connects two ends. The sender's memory contains a pattern.
fn connected(settings: CommSettings) -> Line {
    connected_on(NullNic::ports().map(Meddler::new), settings)
}

/// Connects these ports. The memory of the first contains a pattern.
fn connected_on(nics: [Meddler; 2], settings: CommSettings) -> Line {
    let mut line = Line::on(nics, [settings; 2], BYTES_MAX);
    assert_eq!(line.duo.send.isend(&Default::default(), 0), Ok(None));
    line.from.write(0, &pattern(0, BYTES_MAX));
    line
}

fn irecv(line: &mut Line, len: u32) -> Request {
    line.to.write(0, &vec![0xee; BYTES_MAX]);
    line.duo.irecv(&[line.to.room(0, len, 1)])
}

/// Sends `len` bytes into room for `room` bytes. Returns the work requests of the sender.
fn carry(line: &mut Line, len: u32, room: u32) -> Vec<(u32, SendWr)> {
    let received = irecv(line, room);
    line.nics[0].plan.posted.borrow_mut().clear();
    let sent = line.duo.isend(&line.from.message(0, len), 1);
    let carried = len.min(room);
    assert_eq!(line.duo.send.test(&sent), Ok(Some(carried)));
    let got = line.duo.recv.test(&received).expect("test").expect("done");
    assert_eq!(got, [carried]);
    let carried = carried as usize;
    assert_eq!(line.to.read(0, carried), line.from.read(0, carried));
    assert_eq!(line.to.read(carried, 8), [0xee; 8], "behind {carried} bytes");
    line.nics[0].plan.posted.take()
}

#[test]
fn every_size_over_any_number_of_queue_pairs_arrives_whole() {
    for wire in [Wire::Invar, Wire::Nccl214] {
        for qps in [1, 2, 3, 4, 7, 128] {
            let mut line = connected(CommSettings { wire, qps, ..CommSettings::default() });
            for len in [0, 1, 127, 128, 129, 255, 256, 511, 513, 4096, 8191, 8192, 8193, 19_000] {
                let posted = carry(&mut line, len, len);
                let with_imm: Vec<_> = posted
                    .iter()
                    .filter(|(_, wr)| wr.opcode == SendOpcode::RdmaWriteWithImm)
                    .collect();
                assert_eq!(with_imm.len(), usize::from(qps), "one on each queue pair");
                assert!(with_imm.iter().all(|(_, wr)| wr.flags == SendFlags::SIGNALED));
                assert!(with_imm.iter().all(|(_, wr)| wr.imm_data == len));
                let lengths: Vec<u32> = posted.iter().map(|(_, wr)| wr.sge.length).collect();
                assert_eq!(lengths.iter().sum::<u32>(), len);
                let shares: Vec<u32> = lengths.into_iter().filter(|&len| len > 0).collect();
                if let Some((_, all_but_last)) = shares.split_last() {
                    assert!(all_but_last.iter().all(|share| share % 128 == 0), "{shares:?}");
                }
            }
        }
    }
}

#[test]
fn an_empty_message_of_a_group_takes_no_work_of_its_own() {
    let mut line = connected(CommSettings::default());
    let received = line.duo.irecv(&[0, 1, 2].map(|i: usize| line.to.room(64 * i, 64, i as u32)));
    line.nics[0].plan.posted.borrow_mut().clear();
    let sent = [(0, 8), (1, 0), (2, 16)]
        .map(|(tag, len)| (line.duo.isend(&line.from.message(0, len), tag), len));
    let posted = line.nics[0].plan.posted.take();
    let works: Vec<_> = posted.iter().map(|(_, wr)| (wr.opcode, wr.sge.length)).collect();
    let write = SendOpcode::RdmaWrite;
    // The last request carries the sizes.
    assert_eq!(works, [(write, 8), (write, 16), (SendOpcode::RdmaWriteWithImm, 32)]);
    for (request, len) in sent {
        assert_eq!(line.duo.send.test(&request), Ok(Some(len)));
    }
    assert_eq!(line.duo.recv.test(&received), Ok(Some(&[8, 0, 16][..])));
}

#[test]
fn above_the_adaptive_routing_threshold_the_immediate_goes_apart() {
    let mut line = connected(CommSettings { ar_threshold_bytes: 8192, ..CommSettings::default() });
    let posted = carry(&mut line, 8192, 8192);
    assert_eq!(posted.len(), 1);
    let posted = carry(&mut line, 8193, 8193);
    let [(_, data), (_, end)] = posted[..] else { panic!("{posted:?}") };
    assert_eq!((data.opcode, data.sge.length), (SendOpcode::RdmaWrite, 8193));
    assert_eq!(data.flags, SendFlags::empty());
    assert_eq!((end.opcode, end.sge.length), (SendOpcode::RdmaWriteWithImm, 0));
    assert_eq!((end.imm_data, end.flags), (8193, SendFlags::SIGNALED));

    let mut always = connected(CommSettings { ar_threshold_bytes: 0, ..CommSettings::default() });
    assert_eq!(carry(&mut always, 1, 1).len(), 2);
    assert_eq!(carry(&mut always, 0, 1).len(), 1);
    let never = CommSettings { ar_threshold_bytes: u32::MAX, ..CommSettings::default() };
    assert_eq!(carry(&mut connected(never), 19_000, 19_000).len(), 1);
}

/// Two ports that carry work requests of 1 KiB and some bytes.
fn short_ports() -> [Meddler; 2] {
    nics(|_, port| port.max_message_bytes = 1030)
}

fn connected_in_pieces(settings: CommSettings) -> Line {
    connected_on(short_ports(), settings)
}

#[test]
fn a_message_longer_than_a_work_request_of_the_port_arrives_whole_in_pieces() {
    let (write, end) = (SendOpcode::RdmaWrite, SendOpcode::RdmaWriteWithImm);
    let (none, signaled) = (SendFlags::empty(), SendFlags::SIGNALED);
    for wire in [Wire::Invar, Wire::Nccl214] {
        for (qps, ar_threshold_bytes) in [(1, u32::MAX), (1, 0), (3, u32::MAX), (3, 0)] {
            let settings = CommSettings { wire, qps, ar_threshold_bytes, ..Default::default() };
            let mut line = connected_in_pieces(settings);
            let posted = carry(&mut line, 2560 * u32::from(qps), 19_000);
            let mut works = vec![(write, none, 1024), (write, none, 1024)];
            match ar_threshold_bytes {
                0 => works.extend([(write, none, 512), (end, signaled, 0)]),
                _ => works.push((end, signaled, 512)),
            }
            let seen = posted.iter().map(|(_, wr)| (wr.opcode, wr.flags, wr.sge.length));
            assert_eq!(seen.collect::<Vec<_>>(), works.repeat(qps.into()));
            for len in [1024, 1025, 1030, 1031, 2048, 2049] {
                carry(&mut line, len, len);
            }
        }
    }
}

#[test]
fn a_group_with_a_message_longer_than_a_work_request_of_the_port_arrives_whole() {
    for qps in [1, 3] {
        let mut line = connected_in_pieces(CommSettings { qps, ..CommSettings::default() });
        for lens in [[8, 9000], [9000, 8], [8, 9], [0, 9000]] {
            line.to.write(0, &[0xee; BYTES_MAX]);
            let room = |i: usize| line.to.room(9100 * i, 9000, i as u32);
            let received = line.duo.irecv(&[0, 1].map(room));
            line.nics[0].plan.posted.borrow_mut().clear();
            let sent = [0, 1].map(|i: usize| {
                let message = line.from.message(9100 * i, lens[i]);
                line.duo.isend(&message, i as u32)
            });
            let posted = line.nics[0].plan.posted.take();
            assert!(posted.iter().all(|(_, wr)| wr.sge.length <= 1024), "{posted:?}");
            for (request, len) in sent.iter().zip(lens) {
                assert_eq!(line.duo.send.test(request), Ok(Some(len)));
            }
            assert_eq!(line.duo.recv.test(&received), Ok(Some(&lens[..])));
            for (i, len) in lens.into_iter().enumerate() {
                let (at, len) = (9100 * i, len as usize);
                assert_eq!(line.to.read(at, len), line.from.read(at, len));
                assert_eq!(line.to.read(at + len, 8), [0xee; 8], "behind {len} bytes");
            }
        }
    }
}

#[test]
fn the_send_queue_has_room_for_two_pieces_of_each_message_that_may_be_under_way() {
    // Two pieces.
    const LEN: u32 = 2048;
    for fifo_depth in [1, 2, 8, 32, 256] {
        let settings =
            CommSettings { fifo_depth, ar_threshold_bytes: 0, ..CommSettings::default() };
        let depth = usize::from(fifo_depth);
        let bytes = 2 * depth * LEN as usize;
        let mut line = Line::on(short_ports(), [settings; 2], bytes);
        line.from.write(0, &pattern(0, bytes));
        // The groups have as many messages as the FIFO has rows. Each further row has one message.
        let nreqs_max = depth.min(8);
        let groups = depth / nreqs_max;
        let (mut received, mut sent, mut end) = (Vec::new(), Vec::new(), 0);
        for row in 0..depth {
            let places = end..end + if row < groups { nreqs_max } else { 1 };
            end = places.end;
            let room = |place: usize| line.to.room(place * LEN as usize, LEN, 0);
            let rooms: Vec<_> = places.clone().map(room).collect();
            received.push((rooms.len(), line.duo.irecv(&rooms)));
            let message = |place: usize| line.from.message(place * LEN as usize, LEN);
            sent.extend(places.map(message).map(|message| line.duo.isend(&message, 0)));
        }
        for request in &sent {
            assert_eq!(line.duo.send.test(request), Ok(Some(LEN)));
        }
        for (nreqs, request) in &received {
            let sizes = line.duo.recv.test(request).expect("test").expect("done");
            assert_eq!(sizes, vec![LEN; *nreqs]);
        }
        let bytes = end * LEN as usize;
        assert!(line.to.read(0, bytes) == line.from.read(0, bytes), "of {depth} rows");
    }
}

#[test]
fn pieces_that_the_peer_has_missed_are_sent_again_after_a_failure() {
    let lengths = |posted: &[(u32, SendWr)]| -> Vec<u32> {
        posted.iter().map(|(_, wr)| wr.sge.length).filter(|length| *length > 0).collect()
    };
    let (single, group): (&[u32], &[u32]) = (&[9000], &[9000, 2049]);
    for (qps, lens) in [(1, single), (3, single), (1, group), (3, group)] {
        let mut line = connected_in_pieces(CommSettings { qps, ..CommSettings::default() });
        line.to.write(0, &[0xee; BYTES_MAX]);
        let room = |r: usize| line.to.room(9100 * r, 9000, r as u32);
        let rooms: Vec<_> = (0..lens.len()).map(room).collect();
        let received = line.duo.irecv(&rooms);
        // The receiver replaces its queue pairs before the sender hears of it.
        line.nics[1].complete_with(WcStatus::RETRY_EXC_ERR);
        assert_eq!(line.duo.recv.test(&received), Ok(None));
        assert_eq!(line.duo.recv.check_peer(line.now_ns), Ok(()));
        line.nics[0].plan.posted.borrow_mut().clear();
        let mut sent = Vec::new();
        for (r, len) in lens.iter().enumerate() {
            sent.push(line.duo.isend(&line.from.message(9100 * r, *len), r as u32));
        }
        let missed = lengths(&line.nics[0].plan.posted.take());
        assert!(missed.contains(&1024) && missed.iter().all(|length| *length <= 1024));
        assert!(line.to.read(0, BYTES_MAX).iter().all(|byte| *byte == 0xee), "bytes arrived");
        line.pass(5).expect("a recovery");
        assert_eq!(line.attempts(), [1, 1]);
        assert_eq!(lengths(&line.nics[0].plan.posted.take()), missed);
        for (request, len) in sent.iter().zip(lens) {
            assert_eq!(line.duo.send.test(request), Ok(Some(*len)));
        }
        assert_eq!(line.duo.recv.test(&received), Ok(Some(lens)));
        for (r, len) in lens.iter().enumerate() {
            let (at, len) = (9100 * r, *len as usize);
            assert_eq!(line.to.read(at, len), line.from.read(at, len));
            assert_eq!(line.to.read(at + len, 8), [0xee; 8], "behind {len} bytes");
        }
    }
}

#[test]
fn the_sizes_of_a_group_are_written_once_whatever_the_number_of_queue_pairs() {
    for (wire, written) in [(Wire::Invar, 1), (Wire::Nccl214, 0)] {
        let mut line = connected(CommSettings { wire, qps: 4, ..CommSettings::default() });
        let received = line.duo.irecv(&[0, 1].map(|tag| line.to.room(0, 8, tag)));
        line.nics[0].plan.posted.borrow_mut().clear();
        for tag in [0, 1] {
            let _ = line.duo.isend(&SendBuf::default(), tag);
        }
        let posted = line.nics[0].plan.posted.take();
        assert_eq!(posted.len(), 4, "an immediate on each queue pair");
        assert_eq!(posted.iter().filter(|(_, wr)| wr.sge.length > 0).count(), written);
        assert_eq!(line.duo.recv.test(&received), Ok(Some(&[0, 0][..])));
    }
}

#[test]
fn one_slot_write_in_each_turn_of_the_fifo_asks_for_a_completion() {
    let mut line =
        connected(CommSettings { fifo_depth: 4, use_inline: true, ..CommSettings::default() });
    for _ in 0..12 {
        carry(&mut line, 1, 1);
    }
    let slots = line.nics[1].plan.posted.take();
    assert_eq!(slots.len(), 12);
    for (row, (_, wr)) in slots.iter().enumerate() {
        assert_eq!((wr.opcode, wr.sge.length), (SendOpcode::RdmaWrite, 32));
        assert_eq!(wr.flags.contains(SendFlags::SIGNALED), row % 4 == 0);
        assert!(wr.flags.contains(SendFlags::INLINE));
    }
}

#[test]
fn a_send_longer_than_its_receive_is_refused_and_the_comm_goes_on() {
    let mut line = connected(CommSettings::default());
    let received = irecv(&mut line, 100);
    let [long, right] = [101, 100].map(|len| line.from.message(0, len));
    for _ in 0..2 {
        let error = line.duo.send.isend(&long, 1).expect_err("too long");
        assert_eq!(error, Error::SizeMismatch { local: 101, remote: 100, tag: 1 });
        assert!(!error.is_fatal());
    }
    assert_eq!(line.duo.send.outstanding(), 0);
    let sent = line.duo.isend(&right, 1);
    assert_eq!(line.duo.send.test(&sent), Ok(Some(100)));
    assert_eq!(line.duo.recv.test(&received).expect("test").expect("done"), [100]);
    carry(&mut line, 7, 7);
}

#[test]
fn a_send_longer_than_its_receive_is_cut_where_that_is_asked_for() {
    for qps in [1, 4] {
        let mut line = connected(CommSettings { truncate: true, qps, ..CommSettings::default() });
        carry(&mut line, 19_000, 100);
        carry(&mut line, 19_000, 9_000);
        carry(&mut line, 5, 0);
    }
}

#[test]
fn a_length_that_no_slot_can_say_is_refused_and_the_comm_goes_on() {
    let mut line = connected(CommSettings { truncate: true, ..CommSettings::default() });
    let received = irecv(&mut line, 100);
    let long = 1 << 31;
    let message = line.from.message(0, long);
    assert_eq!(line.duo.send.isend(&message, 1), Err(Error::TooLong(long)));
    let room = line.to.room(0, long, 1);
    assert_eq!(line.duo.recv.irecv(&[room]), Err(Error::TooLong(long)));
    for room in [RecvBuf { addr: 0, len: 1, ..room }, RecvBuf { rkey: 0, len: 1, ..room }] {
        let error = line.duo.recv.irecv(&[room]).expect_err("refused");
        assert!(matches!(error, Error::Argument(_)), "{error}");
    }
    let message = SendBuf { len: 10, ..message };
    let _ = line.duo.isend(&message, 1);
    assert_eq!(line.duo.recv.test(&received).expect("test").expect("done"), [10]);
}

#[test]
fn a_send_without_a_receive_for_its_tag_waits() {
    let Line { mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    let nothing = SendBuf::default();
    assert_eq!(duo.send.isend(&nothing, 1), Ok(None));
    let [first, second] = [1, 2].map(|tag| duo.irecv(&[to.room(0, 8, tag)]));
    assert_eq!(duo.send.isend(&nothing, 2), Ok(None), "tag 1 is at the head");
    let _ = duo.isend(&nothing, 1);
    assert_eq!(duo.recv.test(&second), Ok(None));
    let _ = duo.isend(&nothing, 2);
    assert_eq!(duo.recv.test(&second).expect("test").expect("done"), [0]);
    assert_eq!(duo.recv.test(&first).expect("test").expect("done"), [0]);
}

#[test]
fn the_room_for_a_message_is_that_of_the_buffer_which_it_would_meet() {
    let Line { mut duo, to, .. } = Line::new([CommSettings::default(); 2]);
    assert_eq!(duo.send.isend(&SendBuf::default(), 1), Ok(None));
    assert_eq!(duo.send.room(1), Ok(None), "nothing is posted");
    let received = duo.irecv(&[(1, 10), (2, 20), (1, 30)].map(|(tag, len)| to.room(0, len, tag)));
    assert_eq!([1, 2, 3].map(|tag| duo.send.room(tag)), [Ok(Some(10)), Ok(Some(20)), Ok(None)]);
    for (tag, next) in [(1, Some(30)), (2, None)] {
        let _ = duo.isend(&SendBuf::default(), tag);
        assert_eq!(duo.send.room(tag), Ok(next), "of tag {tag}, one is met");
    }
    let _ = duo.isend(&SendBuf::default(), 1);
    assert_eq!(duo.recv.test(&received).expect("test").expect("done"), [0, 0, 0]);
}
