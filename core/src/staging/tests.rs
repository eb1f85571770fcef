extern crate std;

use std::collections::VecDeque;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const CHUNK: u32 = 10;

/// A model of the pipeline in plain lists: each chunk with its state.
#[derive(Default)]
struct Model {
    chunks: Vec<Naive>,
    transfers: Vec<NaiveTransfer>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Naive {
    transfer: usize,
    offset: u64,
    len: u32,
    state: State,
}

#[derive(Clone, Copy, Debug)]
struct NaiveTransfer {
    len: u64,
    of: Option<u64>,
    moved: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Filling,
    Filled,
    Draining,
    /// The chunk drains, and must drain once more.
    DrainingOnce,
    Done,
}

/// The visible fields of a chunk.
type Seen = (u64, usize, u64, u32, bool, u64);

fn part(len: u64, offset: u64) -> u32 {
    if offset > len { 0 } else { (len - offset).min(CHUNK.into()) as u32 }
}

impl Model {
    fn push(&mut self, len: u64) {
        let transfer = self.transfers.len();
        self.transfers.push(NaiveTransfer { len, of: None, moved: 0 });
        let offsets = (0..len.max(1)).step_by(CHUNK as usize);
        self.chunks.extend(offsets.map(|offset| Naive {
            transfer,
            offset,
            len: part(len, offset),
            state: State::Waiting,
        }));
    }

    /// The number of the first chunk in one of these states.
    fn first(&self, states: &[State]) -> Option<usize> {
        self.chunks.iter().position(|chunk| states.contains(&chunk.state))
    }

    fn next(&self, stage: ChunkStage, slots: usize) -> Option<usize> {
        let busy = |chunk: &&Naive| ![State::Waiting, State::Done].contains(&chunk.state);
        match stage {
            ChunkStage::Fill if self.chunks.iter().filter(busy).count() == slots => None,
            ChunkStage::Fill => self.first(&[State::Waiting]),
            ChunkStage::Drain if self.first(&[State::DrainingOnce]).is_some() => None,
            ChunkStage::Drain => self.first(&[State::Filled]),
        }
    }

    fn oldest(&self, stage: ChunkStage) -> Option<usize> {
        match stage {
            ChunkStage::Fill => self.first(&[State::Filling]),
            ChunkStage::Drain => self.first(&[State::Draining, State::DrainingOnce]),
        }
    }

    fn is_last(&self, number: usize) -> bool {
        let transfer = |number: usize| self.chunks.get(number).map(|chunk| chunk.transfer);
        transfer(number) != transfer(number + 1)
    }

    fn is_done(&self, transfer: u64) -> bool {
        let mut of = self.chunks.iter().filter(|chunk| chunk.transfer as u64 == transfer);
        of.all(|chunk| chunk.state == State::Done)
    }

    fn start(&mut self, stage: ChunkStage, slots: usize, started: Started) {
        let Some(number) = self.next(stage, slots) else { return };
        let is_last = self.is_last(number);
        self.chunks[number].state = match (stage, started) {
            (_, Started::Pending) => return,
            (ChunkStage::Fill, _) => State::Filling,
            (ChunkStage::Drain, Started::AwaitsMore) if is_last => State::DrainingOnce,
            (ChunkStage::Drain, _) => State::Draining,
        };
    }

    fn finish(&mut self, stage: ChunkStage, done: Done) -> Result<(), Failure<()>> {
        let Some(number) = self.oldest(stage) else { return Ok(()) };
        let Naive { transfer: at, offset, len, state } = self.chunks[number];
        if stage == ChunkStage::Drain {
            self.transfers[at].moved += u64::from(len);
            let again = Naive { len: 0, state: State::Filled, ..self.chunks[number] };
            let over = Naive { state: State::Done, ..self.chunks[number] };
            self.chunks[number] = if state == State::DrainingOnce { again } else { over };
            return Ok(());
        }
        let Done { bytes: came, of } = done;
        let NaiveTransfer { len: room, of: known, .. } = self.transfers[at];
        let len_now = known.unwrap_or(room);
        if of.is_none() && !self.is_last(number) {
            return Err(Failure::Unstaged { offset, came, chunk_bytes: CHUNK, len: len_now });
        }
        if let Some(of) = of.filter(|of| known.is_none() && *of > room) {
            return Err(Failure::TooLong { of, len: room });
        }
        if let Some(known) = known.or(of) {
            let says = of.unwrap_or(known);
            if says != known || came != part(known, offset) {
                return Err(Failure::Contradiction { offset, came, of: [known, says] });
            }
            self.end_at(at, known);
        }
        self.chunks[number].len = came.min(len);
        self.chunks[number].state = State::Filled;
        Ok(())
    }

    /// Sets the length of the chunks of transfer `at` that are still to come.
    fn end_at(&mut self, at: usize, len: u64) {
        self.transfers[at].of = Some(len);
        let is_waiting = |chunk: &Naive| chunk.transfer == at && chunk.state == State::Waiting;
        let first = self.chunks.iter().position(is_waiting);
        let mut number = 0;
        self.chunks.retain(|chunk| {
            let keep = !is_waiting(chunk) || Some(number) == first || chunk.offset < len;
            number += 1;
            keep
        });
        let is_to_come = |chunk: &&mut Naive| {
            chunk.transfer == at && [State::Waiting, State::Filling].contains(&chunk.state)
        };
        for chunk in self.chunks.iter_mut().filter(is_to_come) {
            chunk.len = part(len, chunk.offset);
        }
    }

    /// The chunk that the pipeline must report.
    fn seen(&self, number: Option<usize>, slots: usize) -> Option<Seen> {
        let number = number?;
        let Naive { transfer, offset, len, .. } = self.chunks[number];
        let of = &self.transfers[transfer];
        let of = of.of.unwrap_or(of.len);
        Some((transfer as u64, number % slots, offset, len, self.is_last(number), of))
    }
}

fn seen(chunk: Option<Chunk<'_, u64>>) -> Option<Seen> {
    chunk.map(|c| (*c.data, c.slot, c.offset, c.len, c.is_last, c.of))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u64),
    Start(ChunkStage, Started),
    /// A finished stage, the share of its room in percent that the transfer has, and the fault of the
    /// message.
    Finish(ChunkStage, u64, Wrong),
    Take(u64),
}

#[derive(Clone, Copy, Debug)]
enum Wrong {
    Nothing,
    NoTrailer,
    Length(u64),
    Bytes(u32),
}

fn op() -> impl Strategy<Value = Op> {
    let stage = prop_oneof![Just(ChunkStage::Fill), Just(ChunkStage::Drain)];
    let started = prop_oneof![
        1 => Just(Started::Pending),
        4 => Just(Started::Whole),
        4 => Just(Started::AwaitsMore),
    ];
    let wrong = prop_oneof![
        20 => Just(Wrong::Nothing),
        1 => Just(Wrong::NoTrailer),
        1 => (0_u64..60).prop_map(Wrong::Length),
        1 => (0..CHUNK + 5).prop_map(Wrong::Bytes),
    ];
    prop_oneof![
        2 => (0_u64..65).prop_map(Op::Push),
        5 => (stage.clone(), started).prop_map(|(stage, started)| Op::Start(stage, started)),
        5 => (stage, prop_oneof![Just(100), 0_u64..=100], wrong)
            .prop_map(|(stage, share, wrong)| Op::Finish(stage, share, wrong)),
        2 => (0_u64..40).prop_map(Op::Take),
    ]
}

proptest! {
    #[test]
    fn a_pipeline_is_a_list_of_chunks(
        slots in 1_usize..6,
        ops in prop::collection::vec(op(), 1..400),
    ) {
        let mut pipeline = Pipeline::new(CHUNK, slots);
        let mut model = Model::default();
        let mut live: VecDeque<u64> = VecDeque::new();
        let mut pushed = 0;
        for op in ops {
            match op {
                Op::Push(len) => {
                    let oldest_left = live.front().copied().unwrap_or(pushed);
                    let room = pushed - oldest_left < TRANSFERS_MAX as u64;
                    let given = pipeline.push(pushed, len);
                    prop_assert_eq!(given, if room { Ok(pushed) } else { Err(pushed) });
                    if room {
                        model.push(len);
                        live.push_back(pushed);
                        pushed += 1;
                    }
                }
                Op::Start(stage, started) => {
                    model.start(stage, slots, started);
                    pipeline.start(stage, started);
                }
                Op::Finish(stage, share, wrong) => {
                    let Some(number) = model.oldest(stage) else { continue };
                    let Naive { transfer, offset, .. } = model.chunks[number];
                    let NaiveTransfer { len, of, .. } = model.transfers[transfer];
                    let of = of.unwrap_or(len * share / 100);
                    let right = Done { bytes: part(of, offset), of: Some(of) };
                    let done = match wrong {
                        Wrong::Nothing => right,
                        Wrong::NoTrailer => Done { of: None, ..right },
                        Wrong::Length(of) => Done { of: Some(of), ..right },
                        Wrong::Bytes(bytes) => Done { bytes, ..right },
                    };
                    prop_assert_eq!(pipeline.finish(stage, done), model.finish(stage, done));
                }
                Op::Take(number) => {
                    let is_there = live.contains(&number) && model.is_done(number);
                    let moved = model.transfers.get(number as usize).map_or(0, |of| of.moved);
                    let expected = is_there.then_some((number, moved));
                    prop_assert_eq!(pipeline.take(number), expected);
                    live.retain(|other| !(is_there && *other == number));
                }
            }
            for stage in [ChunkStage::Fill, ChunkStage::Drain] {
                let next = model.seen(model.next(stage, slots), slots);
                prop_assert_eq!(seen(pipeline.next(stage)), next);
                let oldest = model.seen(model.oldest(stage), slots);
                prop_assert_eq!(seen(pipeline.oldest(stage)), oldest);
            }
            prop_assert!((0..pushed).all(|n| pipeline.is_done(n) == model.is_done(n)));
            let pending: Vec<u64> = pipeline.pending().copied().collect();
            let not_done = (0..pushed).filter(|number| !model.is_done(*number));
            prop_assert_eq!(pending, not_done.collect::<Vec<_>>());
            let all_done = model.chunks.iter().all(|chunk| chunk.state == State::Done);
            prop_assert_eq!(pipeline.is_idle(), all_done);
        }
    }
}

/// A port that does all work at once and logs its calls.
#[derive(Default)]
struct AtOnce {
    log: Vec<(ChunkStage, usize, u64, u32)>,
    /// The number of starts of [`ChunkStage::Drain`] to put off first.
    late: usize,
    /// The number of starts up to which the peer awaits more messages.
    awaited: usize,
    /// The reported length of a transfer, if it differs from the room.
    of: Option<u64>,
}

impl Port<()> for AtOnce {
    type Error = &'static str;

    fn start(&mut self, stage: ChunkStage, chunk: &Chunk<'_, ()>) -> Result<Started, Self::Error> {
        if stage == ChunkStage::Drain && self.late > 0 {
            self.late -= 1;
            return Ok(Started::Pending);
        }
        self.log.push((stage, chunk.slot, chunk.offset, chunk.len));
        let is_awaited = stage == ChunkStage::Drain && self.log.len() < self.awaited;
        Ok(if is_awaited { Started::AwaitsMore } else { Started::Whole })
    }

    fn finished(
        &mut self,
        _: ChunkStage,
        chunk: &Chunk<'_, ()>,
    ) -> Result<Option<Done>, Self::Error> {
        let done = Done { bytes: chunk.len, of: Some(self.of.unwrap_or(chunk.of)) };
        if chunk.offset == 666 { Err("broken") } else { Ok(Some(done)) }
    }
}

fn advance_to_the_end(pipeline: &mut Pipeline<()>, port: &mut AtOnce) {
    for _ in 0..100 {
        pipeline.advance(port).unwrap();
    }
    assert!(pipeline.is_idle());
}

#[test]
fn slots_fill_while_others_wait_to_drain() {
    let (mut pipeline, mut port) = (Pipeline::new(8, 2), AtOnce { late: 1, ..AtOnce::default() });
    assert_eq!(pipeline.push((), 20), Ok(0));
    pipeline.advance(&mut port).unwrap();
    let filled = [(ChunkStage::Fill, 0, 0, 8), (ChunkStage::Fill, 1, 8, 8)];
    assert_eq!(port.log, filled);
    advance_to_the_end(&mut pipeline, &mut port);
    let mut fills: Vec<_> =
        port.log.iter().filter(|(stage, ..)| *stage == ChunkStage::Fill).collect();
    assert_eq!(fills.pop(), Some(&(ChunkStage::Fill, 0, 16, 4)));
    assert_eq!(pipeline.take(0), Some(((), 20)));
    assert_eq!(pipeline.take(0), None);
}

#[test]
fn a_transfer_without_bytes_is_a_chunk_without_bytes() {
    let (mut pipeline, mut port) = (Pipeline::new(8, 2), AtOnce::default());
    assert_eq!(pipeline.push((), 0), Ok(0));
    advance_to_the_end(&mut pipeline, &mut port);
    assert_eq!(port.log, [(ChunkStage::Fill, 0, 0, 0), (ChunkStage::Drain, 0, 0, 0)]);
    assert_eq!(pipeline.take(0), Some(((), 0)));
}

#[test]
fn an_error_of_the_port_comes_out() {
    let (mut pipeline, mut port) = (Pipeline::new(666, 2), AtOnce::default());
    assert_eq!(pipeline.push((), 1000), Ok(0));
    let mut failure = Ok(());
    for _ in 0..3 {
        failure = failure.and_then(|()| pipeline.advance(&mut port));
    }
    assert_eq!(failure, Err(Failure::Port("broken")));
}

#[test]
fn a_receive_ends_early_with_one_more_message_than_was_posted() {
    let (mut pipeline, mut port) =
        (Pipeline::new(8, 2), AtOnce { of: Some(3), ..AtOnce::default() });
    assert_eq!(pipeline.push((), 100), Ok(0));
    pipeline.start(ChunkStage::Fill, Started::Whole);
    pipeline.start(ChunkStage::Fill, Started::Whole);
    assert_eq!(pipeline.finish::<()>(ChunkStage::Fill, Done { bytes: 3, of: Some(3) }), Ok(()));
    advance_to_the_end(&mut pipeline, &mut port);
    let fills: Vec<_> = port.log.iter().filter(|(stage, ..)| *stage == ChunkStage::Fill).collect();
    assert_eq!(fills, [&(ChunkStage::Fill, 0, 16, 0)], "two are posted already");
    assert_eq!(pipeline.take(0), Some(((), 3)));
}

#[test]
fn a_send_goes_on_as_long_as_more_is_awaited_and_none_overtakes_it() {
    let (mut pipeline, mut port) =
        (Pipeline::new(8, 4), AtOnce { awaited: 6, ..AtOnce::default() });
    assert_eq!((pipeline.push((), 12), pipeline.push((), 1)), (Ok(0), Ok(1)));
    advance_to_the_end(&mut pipeline, &mut port);
    let drains = port.log.iter().filter(|(stage, ..)| *stage == ChunkStage::Drain);
    let drains: Vec<_> = drains.map(|(_, slot, offset, len)| (*slot, *offset, *len)).collect();
    assert_eq!(drains, [(0, 0, 8), (1, 8, 4), (1, 8, 0), (2, 0, 1)]);
    assert_eq!((pipeline.take(0), pipeline.take(1)), (Some(((), 12)), Some(((), 1))));
}

#[test]
fn a_peer_that_cuts_otherwise_is_named() {
    let mut pipeline = Pipeline::new(8, 2);
    assert_eq!(pipeline.push((), 20), Ok(0));
    pipeline.start(ChunkStage::Fill, Started::Whole);
    let mut failure = |bytes, of| {
        pipeline.finish::<&str>(ChunkStage::Fill, Done { bytes, of }).unwrap_err().to_string()
    };
    assert_eq!(
        failure(4, None),
        "4 bytes came at byte 0 of a staged receive of 20 bytes in chunks of 8, without a trailer: \
         the peer does not stage it, or its INVAR_STAGING_CHUNK_BYTES is another; what meets a \
         receive longer than a chunk must be staged at both ends"
    );
    assert_eq!(
        failure(8, Some(21)),
        "a staged send of 21 bytes meets a staged receive of 20 bytes"
    );
    assert_eq!(
        failure(4, Some(5)),
        "4 bytes came at byte 0 of a staged transfer that the peer says has 5 bytes, and said had \
         5: these do not agree"
    );
}
