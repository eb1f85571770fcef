//! Ranks in threads, and elements of every type.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use invar::{Communicator, Element, Hub, RedOp, Settings};
use invar_core::coll::Operation;
use invar_testkit::model::coll::{encode, input, output};

pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What holds unless a test says otherwise; whatever the environment says.
pub(crate) fn settings() -> Settings {
    Settings::default().connect_timeout(PATIENCE).collective_timeout(PATIENCE)
}

/// Runs `run` as each of `nranks` ranks, and gives what came of each.
pub(crate) fn ranks<R: Send>(
    nranks: u32,
    settings: &Settings,
    run: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    let hub = Hub::listen(at, nranks, None, PATIENCE).unwrap();
    let (id, run, met) = (hub.id(), &run, &Barrier::new(nranks as usize));
    thread::scope(|scope| {
        let rank = |rank| {
            scope.spawn(move || {
                let communicator = Communicator::join(&id, rank, nranks, settings);
                // What one does then finds no other still on its way.
                met.wait();
                run(communicator.unwrap())
            })
        };
        let threads: Vec<_> = (0..nranks).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// An element that can be made from its bytes, and gives them.
pub(crate) trait Number: Element {
    fn of(bytes: &[u8]) -> Self;
    fn bytes(self) -> Vec<u8>;
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Number for $number {
            fn of(bytes: &[u8]) -> Self {
                <$number>::from_ne_bytes(bytes.try_into().unwrap())
            }

            fn bytes(self) -> Vec<u8> {
                self.to_ne_bytes().to_vec()
            }
        }
    )+};
}

numbers!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64);

/// The inputs of all ranks, and what each must get out.
pub(crate) struct Case {
    pub(crate) operation: Operation,
    pub(crate) op: RedOp,
    pub(crate) count: usize,
    inputs: Vec<Vec<i64>>,
}

impl Case {
    pub(crate) fn new<T: Number>(
        seed: u64,
        operation: Operation,
        op: RedOp,
        count: usize,
        nranks: u32,
    ) -> Self {
        let len = match operation {
            Operation::ReduceScatter | Operation::AllToAll => count * nranks as usize,
            _ => count,
        };
        let inputs = (0..nranks).map(|rank| input(seed, rank, T::DATA_TYPE, op, len)).collect();
        Case { operation, op, count, inputs }
    }

    pub(crate) fn input<T: Number>(&self, rank: u32) -> Vec<T> {
        let input = &self.inputs[rank as usize];
        input.iter().map(|value| T::of(&encode(T::DATA_TYPE, *value))).collect()
    }

    /// Whether a rank has got what it must; `before` is what was there.
    pub(crate) fn check<T: Number>(&self, rank: u32, before: &[T], got: &[T]) {
        let want = output(self.operation, self.op, self.count, rank, &self.inputs);
        let (operation, op, count, nranks) =
            (self.operation, self.op, self.count, self.inputs.len());
        let what = || {
            let data_type = T::DATA_TYPE;
            format!("{operation:?} {op:?} {data_type} {count} at rank {rank} of {nranks}")
        };
        assert_eq!(got.len(), want.len(), "{}", what());
        for (i, (got, want)) in got.iter().zip(want).enumerate() {
            let right = match want {
                Some(want) => want.is(T::DATA_TYPE, &got.bytes()),
                None => got.bytes() == before[i].bytes(),
            };
            assert!(right, "{}: element {i} is {:?}, not {want:?}", what(), got.bytes());
        }
    }
}
