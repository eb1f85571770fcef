extern crate std;

use std::collections::VecDeque;
use std::string::ToString;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

const CHUNK: u32 = 10;

/// The same by lists: every chunk by itself, with what became of it.
#[derive(Default)]
struct Model {
    chunks: Vec<Naive>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Naive {
    transfer: u64,
    offset: u64,
    len: u32,
    is_last: bool,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Waiting,
    Filling,
    Filled,
    Draining,
    Done,
}

impl Model {
    fn push(&mut self, transfer: u64, len: u64) {
        let mut offset = 0;
        loop {
            let part = (len - offset).min(CHUNK.into()) as u32;
            let is_last = offset + u64::from(part) == len;
            let state = State::Waiting;
            self.chunks.push(Naive { transfer, offset, len: part, is_last, state });
            offset += u64::from(part);
            if is_last {
                break;
            }
        }
    }

    /// The number of the first chunk in this state.
    fn first(&self, state: State) -> Option<usize> {
        self.chunks.iter().position(|chunk| chunk.state == state)
    }

    fn next(&self, stage: Stage, slots: usize) -> Option<usize> {
        let busy = |chunk: &&Naive| ![State::Waiting, State::Done].contains(&chunk.state);
        match stage {
            Stage::Fill if self.chunks.iter().filter(busy).count() == slots => None,
            Stage::Fill => self.first(State::Waiting),
            Stage::Drain => self.first(State::Filled),
        }
    }

    fn oldest(&self, stage: Stage) -> Option<usize> {
        self.first(if stage == Stage::Fill { State::Filling } else { State::Draining })
    }

    fn is_done(&self, transfer: u64) -> bool {
        self.chunks.iter().filter(|c| c.transfer == transfer).all(|c| c.state == State::Done)
    }

    /// What the pipeline must say about a chunk.
    fn seen(&self, number: Option<usize>, slots: usize) -> Option<(u64, usize, u64, u32)> {
        let number = number?;
        let Naive { transfer, offset, len, .. } = self.chunks[number];
        Some((transfer, number % slots, offset, len))
    }
}

fn seen(chunk: Option<Chunk<'_, u64>>) -> Option<(u64, usize, u64, u32)> {
    chunk.map(|chunk| (*chunk.data, chunk.slot, chunk.offset, chunk.len))
}

#[derive(Clone, Copy, Debug)]
enum Op {
    Push(u64),
    Start(Stage),
    Finish(Stage, u32),
    Take(u64),
}

fn op() -> impl Strategy<Value = Op> {
    let stage = prop_oneof![Just(Stage::Fill), Just(Stage::Drain)];
    prop_oneof![
        2 => (0_u64..45).prop_map(Op::Push),
        4 => stage.clone().prop_map(Op::Start),
        4 => (stage, 0_u32..CHUNK + 5).prop_map(|(stage, less)| Op::Finish(stage, less)),
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
                        model.push(pushed, len);
                        live.push_back(pushed);
                        pushed += 1;
                    }
                }
                Op::Start(stage) => {
                    let chunk = model.next(stage, slots);
                    pipeline.start(stage);
                    if let Some(chunk) = chunk {
                        model.chunks[chunk].state =
                            if stage == Stage::Fill { State::Filling } else { State::Draining };
                    }
                }
                Op::Finish(stage, less) => {
                    let Some(number) = model.oldest(stage) else { continue };
                    let chunk = &mut model.chunks[number];
                    // Mostly whole, as chunks are.
                    let less = if less > CHUNK { 0 } else { less.min(chunk.len) };
                    if stage == Stage::Drain {
                        prop_assert_eq!(pipeline.finish::<()>(stage, chunk.len), Ok(()));
                        chunk.state = State::Done;
                        continue;
                    }
                    let came = chunk.len - less;
                    let finished = pipeline.finish::<()>(stage, came);
                    if less > 0 && !chunk.is_last {
                        let is_short = matches!(finished, Err(Failure::Short { came: c, offset, .. })
                            if c == came && offset == chunk.offset);
                        prop_assert!(is_short, "{finished:?}");
                        continue;
                    }
                    prop_assert_eq!(finished, Ok(()));
                    chunk.len = came;
                    chunk.state = State::Filled;
                }
                Op::Take(number) => {
                    let is_there = live.contains(&number) && model.is_done(number);
                    let moved = model.chunks.iter().filter(|c| c.transfer == number);
                    let moved: u64 = moved.map(|chunk| u64::from(chunk.len)).sum();
                    let expected = is_there.then_some((number, moved));
                    prop_assert_eq!(pipeline.take(number), expected);
                    live.retain(|other| !(is_there && *other == number));
                }
            }
            for stage in [Stage::Fill, Stage::Drain] {
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

/// Does everything at once, and keeps what it was asked.
#[derive(Default)]
struct AtOnce {
    log: Vec<(Stage, usize, u64, u32)>,
    /// How many starts of [`Stage::Drain`] are put off first.
    late: usize,
}

impl Port<()> for AtOnce {
    type Error = &'static str;

    fn start(&mut self, stage: Stage, chunk: &Chunk<'_, ()>) -> Result<bool, Self::Error> {
        if stage == Stage::Drain && self.late > 0 {
            self.late -= 1;
            return Ok(false);
        }
        self.log.push((stage, chunk.slot, chunk.offset, chunk.len));
        Ok(true)
    }

    fn finished(&mut self, _: Stage, chunk: &Chunk<'_, ()>) -> Result<Option<u32>, Self::Error> {
        if chunk.offset == 666 { Err("broken") } else { Ok(Some(chunk.len)) }
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
    let filled = [(Stage::Fill, 0, 0, 8), (Stage::Fill, 1, 8, 8)];
    assert_eq!(port.log, filled);
    advance_to_the_end(&mut pipeline, &mut port);
    let mut fills: Vec<_> = port.log.iter().filter(|(stage, ..)| *stage == Stage::Fill).collect();
    assert_eq!(fills.pop(), Some(&(Stage::Fill, 0, 16, 4)));
    assert_eq!(pipeline.take(0), Some(((), 20)));
    assert_eq!(pipeline.take(0), None);
}

#[test]
fn a_transfer_without_bytes_is_a_chunk_without_bytes() {
    let (mut pipeline, mut port) = (Pipeline::new(8, 2), AtOnce::default());
    assert_eq!(pipeline.push((), 0), Ok(0));
    advance_to_the_end(&mut pipeline, &mut port);
    assert_eq!(port.log, [(Stage::Fill, 0, 0, 0), (Stage::Drain, 0, 0, 0)]);
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
fn a_peer_that_cuts_otherwise_is_named() {
    let mut pipeline = Pipeline::new(8, 2);
    assert_eq!(pipeline.push((), 20), Ok(0));
    pipeline.start(Stage::Fill);
    let failure = pipeline.finish::<&str>(Stage::Fill, 4).unwrap_err();
    assert_eq!(
        failure.to_string(),
        "4 bytes came at byte 0 of a staged transfer of 20 bytes in chunks of 8: the peer's length \
         or its INVAR_STAGING_CHUNK_BYTES is another"
    );
}
