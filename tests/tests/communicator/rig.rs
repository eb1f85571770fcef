//! Runs ranks in threads, on elements of every type.

use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::thread;
use std::time::Duration;

use half::{bf16, f16};
use invar::{Communicator, Element, Hub, PortRange, RedOp, Settings, UniqueId};
use invar_core::coll::Operation;
use invar_testkit::library;
use invar_testkit::model::coll::{Bytes, encode, input, output};
use invar_testkit::namespaces::{Hosts, IPV4};

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

/// The default settings of a test. They do not depend on the environment.
pub(crate) fn settings() -> Settings {
    set(&[])
}

/// The default settings of a test, with these variables set.
pub(crate) fn set(variables: &[(&str, &str)]) -> Settings {
    library::settings(variables).connect_timeout(TIMEOUT).collective_timeout(TIMEOUT)
}

/// Settings for one kind of device, on loopback.
pub(crate) fn over(transport: &str) -> Settings {
    set(&[("INVAR_TRANSPORT", transport), ("NCCL_SHM_DISABLE", "1")])
}

/// Settings for shared memory, and for each kind of device that every host has.
pub(crate) fn every_way() -> [Settings; 3] {
    [settings(), over("soft"), over("socket")]
}

/// Runs `run` as each of `nranks` ranks. Returns each rank's result.
pub(crate) fn ranks<R: Send>(
    nranks: u32,
    settings: &Settings,
    run: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let at = (Ipv4Addr::LOCALHOST, 0).into();
    let hub = Hub::listen(at, PortRange::ANY, nranks, None, TIMEOUT).unwrap();
    start(&hub.id(), nranks, settings, run, |_, rank| rank())
}

/// Runs `run` as each rank, on the host with the number in `places`. The rendezvous is on the first
/// host.
pub(crate) fn ranks_on<R: Send>(
    hosts: &Hosts,
    places: &[usize],
    settings: &Settings,
    run: impl Fn(Communicator) -> R + Sync,
) -> Vec<R> {
    let (at, nranks) = ((IPV4[0].parse::<Ipv4Addr>().unwrap(), 0).into(), places.len() as u32);
    let hub = hosts.call(0, || Hub::listen(at, PortRange::ANY, nranks, None, TIMEOUT)).unwrap();
    start(&hub.id(), nranks, settings, run, |rank, call| hosts.call(places[rank as usize], call))
}

/// Runs `run` as each rank. `place` calls a rank's function on the rank's host.
fn start<R: Send>(
    id: &UniqueId,
    nranks: u32,
    settings: &Settings,
    run: impl Fn(Communicator) -> R + Sync,
    place: impl Fn(u32, Box<dyn FnOnce() -> R + Send + '_>) -> R + Sync,
) -> Vec<R> {
    let (run, place, met) = (&run, &place, &Barrier::new(nranks as usize));
    thread::scope(|scope| {
        let rank = |rank| {
            let call = move || {
                let communicator = Communicator::join(id, rank, nranks, settings);
                // Wait until all ranks have joined, so that none still joins when another one fails.
                met.wait();
                run(communicator.unwrap())
            };
            scope.spawn(move || place(rank, Box::new(call)))
        };
        let threads: Vec<_> = (0..nranks).map(rank).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// An element type that converts from and to bytes.
pub(crate) trait Number: Element {
    fn of(bytes: &[u8]) -> Self;
    fn bytes(self) -> Bytes;
}

macro_rules! numbers {
    ($($number:ty),+) => {$(
        impl Number for $number {
            fn of(bytes: &[u8]) -> Self {
                <$number>::from_ne_bytes(bytes.try_into().unwrap())
            }

            fn bytes(self) -> Bytes {
                self.to_ne_bytes().into()
            }
        }
    )+};
}

numbers!(i8, u8, i32, u32, i64, u64, f16, bf16, f32, f64);

/// The inputs of all ranks, and the expected output of each.
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

    /// Checks that a rank got the expected output. `before` is the previous content.
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
