//! The measurement, as each rank runs it.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use invar::{Communicator, DataType, RedOp, Settings, TransportChoice};
use rustix::system::uname;

use super::report::{Figures, Header, Host, Report, Row};
use super::sample::{Sample, input, is_right, reduced};
use super::{Args, Operation};
use crate::failure::Failure;
use crate::output::Outputs;

/// Time for the iterations of one size, if no flag sets their number.
const TIMED: Duration = Duration::from_millis(200);
/// The name that a communicator has for shared memory.
const SHARED_MEMORY: &str = "shared memory";
/// Iterations that find out how long one takes.
const TRIAL: u32 = 3;
/// The value of elements that no rank has written.
const UNTOUCHED: u32 = 99;

/// Measures all sizes, and prints if this rank has outputs. Returns how many elements were wrong on all
/// ranks.
pub(super) fn run(
    communicator: &Communicator,
    args: &Args,
    settings: &Settings,
    outputs: Option<Outputs>,
) -> Result<u64, Failure> {
    let header = Header {
        transport: communicator.transport().to_owned(),
        hosts: hosts(communicator)?,
        unused: unused(communicator, args, settings),
        version: env!("CARGO_PKG_VERSION"),
        nranks: communicator.nranks(),
        operation: args.operation.name(),
        check: !args.no_check,
    };
    let mut report = outputs.map(|outputs| Report::new(outputs, header)).transpose()?;
    let mut wrong = 0;
    for size in args.sizes.series() {
        if !all_go_on(communicator, report.as_ref().is_none_or(Report::is_read))? {
            break;
        }
        let bench = Bench { communicator, args };
        let row = match args.data_type {
            DataType::I8 => bench.row::<i8>(size),
            DataType::U8 => bench.row::<u8>(size),
            DataType::I32 => bench.row::<i32>(size),
            DataType::U32 => bench.row::<u32>(size),
            DataType::I64 => bench.row::<i64>(size),
            DataType::U64 => bench.row::<u64>(size),
            DataType::F16 => bench.row::<f16>(size),
            DataType::F32 => bench.row::<f32>(size),
            DataType::F64 => bench.row::<f64>(size),
            DataType::Bf16 => bench.row::<bf16>(size),
        }?;
        wrong += row.out_of_place.wrong + row.in_place.as_ref().map_or(0, |figures| figures.wrong);
        if let Some(report) = &mut report {
            report.row(row)?;
        }
    }
    report.map_or(Ok(()), Report::finish)?;
    Ok(wrong)
}

/// The hosts of the ranks, in the order of their first ranks.
fn hosts(communicator: &Communicator) -> Result<Vec<Host>, Failure> {
    let name = uname().nodename().to_string_lossy().into_owned();
    let about = serde_json::to_vec(&(name, communicator.transport())).map_err(Failure::new)?;
    let mut hosts: Vec<Host> = Vec::new();
    for (about, rank) in communicator.exchange(&about)?.iter().zip(0..) {
        let (name, transport): (String, String) =
            serde_json::from_slice(about).map_err(|error| {
                Failure::new(format_args!("rank {rank} does not name its host: {error}"))
            })?;
        match hosts.iter_mut().find(|host| host.name == name && host.transport == transport) {
            Some(host) => host.ranks.push(rank),
            None => hosts.push(Host { name, transport, ranks: vec![rank] }),
        }
    }
    Ok(hosts)
}

/// The flags and variables that have no effect because all ranks share memory.
fn unused(communicator: &Communicator, args: &Args, settings: &Settings) -> Option<String> {
    let transport = settings.transport();
    let asked = match &args.nic {
        Some(name) => format!("--nic {name}"),
        None if transport != TransportChoice::Auto => {
            format!("INVAR_TRANSPORT={}", transport.as_str())
        }
        None => return None,
    };
    match communicator.transport() {
        SHARED_MEMORY => Some(format!(
            "{asked} does not apply: all ranks share memory; NCCL_SHM_DISABLE=1 has them use the \
             network"
        )),
        _ => None,
    }
}

/// Tells all ranks whether rank 0 goes on.
fn all_go_on(communicator: &Communicator, goes_on: bool) -> Result<bool, Failure> {
    let mut goes_on = [u8::from(goes_on)];
    communicator.broadcast(&mut goes_on, 0)?;
    Ok(goes_on[0] != 0)
}

struct Bench<'a> {
    communicator: &'a Communicator,
    args: &'a Args,
}

impl Bench<'_> {
    fn row<T: Sample>(&self, size: u32) -> Result<Row, Failure> {
        let Args { operation, redop, root_rank, .. } = self.args;
        let (rank, nranks) = (self.communicator.rank(), self.communicator.nranks());
        let all = nranks as usize;
        let elements = size as usize / size_of::<T>();
        let count = if operation.has_blocks() { elements / all } else { elements };
        let (inputs, outputs) = match operation {
            Operation::AllGather => (count, count * all),
            Operation::ReduceScatter => (count * all, count),
            Operation::AllToAll => (count * all, count * all),
            _ => (count, count),
        };
        let value = |i: usize| T::of(input(*redop, i, rank, nranks));
        let source: Vec<T> = (0..inputs).map(value).collect();
        let mut target = vec![T::of(0); outputs];
        let bytes = inputs.max(outputs) * size_of::<T>();
        let (iters, seconds) = self.timed(|| self.call(&source, &mut target))?;
        let wrong = match self.args.no_check {
            true => 0,
            false => self.wrong(&source, &mut target)?,
        };
        let in_place = match self.in_place_at(inputs) {
            None => None,
            Some(at) => {
                let mut data = vec![T::of(UNTOUCHED); inputs.max(outputs)];
                data[at..][..inputs].copy_from_slice(&source);
                let (_, seconds) = self.timed(|| self.call_in_place(&mut data))?;
                let wrong = match self.args.no_check {
                    true => 0,
                    false => self.wrong_in_place(&source, &mut data, at)?,
                };
                Some(Figures::new(bytes, seconds, operation.bus_factor(nranks), wrong))
            }
        };
        Ok(Row {
            op: operation.name(),
            size: bytes,
            count,
            data_type: self.args.data_type.name(),
            redop: if operation.reduces() { redop.name() } else { "none" },
            root: if operation.has_root() { i64::from(*root_rank) } else { -1 },
            iters,
            out_of_place: Figures::new(bytes, seconds, operation.bus_factor(nranks), wrong),
            in_place,
        })
    }

    /// Warms up, and then measures calls. Returns their number, and the seconds of one by the average of all
    /// ranks.
    fn timed(
        &self,
        mut call: impl FnMut() -> Result<(), invar::Error>,
    ) -> Result<(u64, f64), Failure> {
        for _ in 0..self.args.warmup {
            call()?;
        }
        let iters = match self.args.iters {
            Some(iters) => u64::from(iters),
            None => self.agreed_iters(&mut call)?,
        };
        self.communicator.barrier()?;
        let start = Instant::now();
        for _ in 0..iters {
            call()?;
        }
        let mut seconds = [start.elapsed().as_secs_f64() / iters as f64];
        self.communicator.all_reduce_in_place(&mut seconds, RedOp::Avg)?;
        Ok((iters, seconds[0]))
    }

    /// Where a rank's input lies in its only buffer; `None` if the operation has no form in place.
    fn in_place_at(&self, inputs: usize) -> Option<usize> {
        match self.args.operation {
            Operation::AllReduce
            | Operation::Broadcast
            | Operation::Reduce
            | Operation::ReduceScatter => Some(0),
            Operation::AllGather => Some(self.communicator.rank() as usize * inputs),
            Operation::Sendrecv | Operation::AllToAll => None,
        }
    }

    /// The number of iterations that take about the wanted time, by rank 0's clock.
    fn agreed_iters(
        &self,
        call: &mut impl FnMut() -> Result<(), invar::Error>,
    ) -> Result<u64, Failure> {
        self.communicator.barrier()?;
        let start = Instant::now();
        for _ in 0..TRIAL {
            call()?;
        }
        let one = start.elapsed().as_nanos().max(1) / u128::from(TRIAL);
        let mut iters = [(TIMED.as_nanos() / one.max(1)).clamp(5, 200_000) as u64];
        self.communicator.broadcast(&mut iters, 0)?;
        Ok(iters[0])
    }

    fn call<T: Sample>(&self, source: &[T], target: &mut [T]) -> Result<(), invar::Error> {
        let Args { operation, redop, root_rank, .. } = self.args;
        let communicator = self.communicator;
        let (rank, nranks) = (communicator.rank(), communicator.nranks());
        let at_root = rank == *root_rank;
        match operation {
            Operation::AllReduce => communicator.all_reduce(source, target, *redop),
            Operation::AllGather => communicator.all_gather(source, target),
            Operation::ReduceScatter => communicator.reduce_scatter(source, target, *redop),
            Operation::AllToAll => communicator.all_to_all(source, target),
            Operation::Broadcast => {
                let source = if at_root { source } else { &[] };
                communicator.broadcast_from(source, target, *root_rank)
            }
            Operation::Reduce => {
                let target = if at_root { target } else { &mut [] };
                communicator.reduce(source, target, *redop, *root_rank)
            }
            Operation::Sendrecv => {
                let mut group = communicator.group();
                group.send(source, (rank + 1) % nranks)?;
                group.recv(target, (rank + nranks - 1) % nranks)?;
                group.run()
            }
        }
    }

    fn call_in_place<T: Sample>(&self, data: &mut [T]) -> Result<(), invar::Error> {
        let Args { operation, redop, root_rank, .. } = self.args;
        let communicator = self.communicator;
        match operation {
            Operation::AllReduce => communicator.all_reduce_in_place(data, *redop),
            Operation::AllGather => communicator.all_gather_in_place(data),
            Operation::ReduceScatter => communicator.reduce_scatter_in_place(data, *redop),
            Operation::Broadcast => communicator.broadcast(data, *root_rank),
            Operation::Reduce => communicator.reduce_in_place(data, *redop, *root_rank),
            Operation::Sendrecv | Operation::AllToAll => unreachable!("no form in place"),
        }
    }

    /// Runs the operation once more, into fresh memory. Returns how many elements are wrong on all ranks.
    fn wrong<T: Sample>(&self, source: &[T], target: &mut [T]) -> Result<u64, Failure> {
        target.fill(T::of(UNTOUCHED));
        self.call(source, target)?;
        self.count_wrong(target)
    }

    /// Runs the operation once more, in place. Returns how many elements are wrong on all ranks. A reduce must not
    /// change the data of a rank that is not the root.
    fn wrong_in_place<T: Sample>(
        &self,
        source: &[T],
        data: &mut [T],
        at: usize,
    ) -> Result<u64, Failure> {
        data.fill(T::of(UNTOUCHED));
        data[at..][..source.len()].copy_from_slice(source);
        self.call_in_place(data)?;
        let Args { operation, root_rank, .. } = self.args;
        let (rank, nranks) = (self.communicator.rank(), self.communicator.nranks());
        if *operation == Operation::Reduce && rank != *root_rank {
            let changed = data.iter().zip(source).filter(|(a, b)| a.value() != b.value()).count();
            return self.total(changed);
        }
        let block = data.len() / nranks as usize;
        let result = match operation {
            Operation::ReduceScatter => &data[rank as usize * block..][..block],
            _ => &data[..],
        };
        self.count_wrong(result)
    }

    /// Compares a result with the operation's definition. Returns how many elements are wrong on all ranks.
    fn count_wrong<T: Sample>(&self, result: &[T]) -> Result<u64, Failure> {
        let Args { operation, redop, root_rank, .. } = self.args;
        let (rank, nranks) = (self.communicator.rank(), self.communicator.nranks());
        let block = result.len() / nranks as usize;
        let of = |i: usize, rank: u32| f64::from(input(*redop, i, rank, nranks));
        let want = |i: usize| match operation {
            Operation::AllReduce => reduced(*redop, i, nranks),
            Operation::ReduceScatter => reduced(*redop, rank as usize * result.len() + i, nranks),
            Operation::AllGather => of(i % block, (i / block) as u32),
            Operation::AllToAll => of(rank as usize * block + i % block, (i / block) as u32),
            Operation::Broadcast => of(i, *root_rank),
            Operation::Reduce if rank == *root_rank => reduced(*redop, i, nranks),
            Operation::Reduce => f64::from(UNTOUCHED),
            Operation::Sendrecv => of(i, (rank + nranks - 1) % nranks),
        };
        let wrong = result.iter().enumerate().filter(|(i, got)| !is_right(**got, want(*i)));
        self.total(wrong.count())
    }

    /// Adds up a number of all ranks.
    fn total(&self, number: usize) -> Result<u64, Failure> {
        let mut total = [number as u64];
        self.communicator.all_reduce_in_place(&mut total, RedOp::Sum)?;
        Ok(total[0])
    }
}

impl Operation {
    pub(super) fn name(self) -> &'static str {
        match self {
            Operation::AllReduce => "all_reduce",
            Operation::AllGather => "all_gather",
            Operation::ReduceScatter => "reduce_scatter",
            Operation::Broadcast => "broadcast",
            Operation::Reduce => "reduce",
            Operation::Sendrecv => "sendrecv",
            Operation::AllToAll => "all_to_all",
        }
    }

    /// Whether the size counts the blocks of all ranks.
    fn has_blocks(self) -> bool {
        matches!(self, Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll)
    }

    fn has_root(self) -> bool {
        matches!(self, Operation::Broadcast | Operation::Reduce)
    }

    fn reduces(self) -> bool {
        matches!(self, Operation::AllReduce | Operation::ReduceScatter | Operation::Reduce)
    }

    /// The least share of each byte that every link carries (nccl-tests, PERFORMANCE.md).
    fn bus_factor(self, nranks: u32) -> f64 {
        let others = f64::from(nranks - 1) / f64::from(nranks);
        match self {
            Operation::AllReduce => 2.0 * others,
            Operation::AllGather | Operation::ReduceScatter | Operation::AllToAll => others,
            Operation::Broadcast | Operation::Reduce | Operation::Sendrecv => 1.0,
        }
    }
}
