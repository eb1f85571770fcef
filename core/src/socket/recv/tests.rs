use super::*;

const ROOM: u32 = 1 << 20;
const TAG: u32 = 7;

/// A receiver that gets messages of any length, one after the other.
struct Inbound {
    receiver: Receiver,
    messages: u32,
}

impl Inbound {
    fn new() -> Self {
        Inbound { receiver: Receiver::new(0), messages: 0 }
    }

    /// Posts a buffer and returns whether the sender hears at once of all unannounced buffers.
    fn post(&mut self) -> bool {
        self.post_all(&[ROOM])
    }

    /// Posts several buffers and returns whether the sender hears at once of all unannounced buffers.
    fn post_all(&mut self, lens: &[u32]) -> bool {
        let bufs = lens.iter().map(|len| Posted { len: *len, tag: TAG });
        let bufs: heapless::Vec<_, RECVS_MAX> = bufs.collect();
        assert!(self.receiver.irecv(&bufs).unwrap().is_some());
        self.tells()
    }

    fn tells(&mut self) -> bool {
        self.receiver.take_news(&mut [0; 256 * FRAME_BYTES]) > 0
    }

    /// Delivers a message for the oldest buffer.
    fn message(&mut self, len: u32) {
        let frame = Frame { kind: FrameKind::Message, seq: self.messages, len, tag: TAG };
        let skip = self.receiver.next(&frame.to_bytes());
        assert_eq!(skip, Ok(Some(RecvStep::Skip(FRAME_BYTES))));
        assert!(matches!(self.receiver.next(&[0]), Ok(Some(RecvStep::Place { .. }))));
        self.receiver.placed(len);
        self.messages += 1;
    }
}

#[test]
fn a_sender_of_short_messages_hears_of_long_buffers_by_the_dozen() {
    let mut inbound = Inbound::new();
    assert!(inbound.post(), "the first message may be as long as its buffer");
    inbound.message(8);
    for before in 1..NEWS_MESSAGES {
        assert!(!inbound.post(), "after {before} buffers");
        inbound.message(8);
    }
    assert!(inbound.post());
}

#[test]
fn a_sender_of_long_messages_hears_of_buffers_before_it_has_to_stop() {
    let mut inbound = Inbound::new();
    assert!(inbound.post());
    inbound.message(ROOM / 2);
    assert!(!inbound.post());
    assert!(inbound.post());
}

#[test]
fn a_sender_that_may_wait_hears_of_buffers_and_one_that_goes_on_does_not() {
    let mut inbound = Inbound::new();
    assert!(inbound.post());
    inbound.message(8);
    assert!(!inbound.post());
    assert!(!inbound.post());
    for _ in 1..IDLE_LOOKS {
        inbound.receiver.idle();
    }
    inbound.message(8);
    inbound.receiver.idle();
    assert!(!inbound.tells(), "a message came between the looks");
    for _ in 1..IDLE_LOOKS {
        inbound.receiver.idle();
    }
    assert!(inbound.tells());
}

#[test]
fn a_sender_hears_at_once_of_a_buffer_whose_message_cannot_be_ahead() {
    let mut inbound = Inbound::new();
    assert!(inbound.post());
    inbound.message(8);
    assert!(!inbound.post_all(&[AHEAD_BYTES, 8]));
    let posted = inbound.receiver.irecv(&[Posted { len: AHEAD_BYTES + 1, tag: TAG }]);
    assert!(posted.unwrap().is_some());
    inbound.message(8);
    assert!(inbound.tells(), "whatever came meanwhile");
    assert!(!inbound.post());
}

#[test]
fn what_of_a_message_its_buffer_has_no_room_for_is_skipped_however_it_comes() {
    let mut inbound = Inbound::new();
    for lens in [[10, 4], [10, 0], [10, 10]] {
        let [len, room] = lens;
        let posted = Posted { len: room, tag: TAG };
        let request = inbound.receiver.irecv(&[posted]).unwrap().unwrap();
        let seq = inbound.messages;
        inbound.messages += 1;
        let frame = Frame { kind: FrameKind::MessageToFit, seq, len, tag: TAG };
        let receiver = &mut inbound.receiver;
        assert_eq!(receiver.next(&frame.to_bytes()), Ok(Some(RecvStep::Skip(FRAME_BYTES))));
        // Deliver the payload one byte at a time.
        for at in 0..len {
            assert_eq!(receiver.next(&[]), Ok(None));
            assert!(receiver.is_starved(0));
            let step = receiver.next(&[0]).unwrap().unwrap();
            if at < room {
                assert!(matches!(step, RecvStep::Place { offset, .. } if offset == at));
                receiver.placed(1);
            } else {
                assert_eq!((step, receiver.awaited()), (RecvStep::Skip(1), None));
            }
        }
        assert_eq!(receiver.test(&request), Ok(Some(&[room][..])));
    }
}

#[test]
fn a_message_over_lanes_must_fit_its_buffer() {
    let mut receiver = Receiver::new(1);
    let _ = receiver.irecv(&[Posted { len: 1, tag: TAG }]).unwrap().unwrap();
    let len = 1 << 20;
    let frame = Frame { kind: FrameKind::MessageToFit, seq: 0, len, tag: TAG };
    let error = Error::SizeMismatch { local: len, remote: 1, tag: TAG };
    assert_eq!(receiver.next(&frame.to_bytes()), Err(error));
}
