//! `invar coll`: measures collectives among ranks, on this host or on several.
//!
//! [`launch`] starts a process for each rank of this host. [`options`] compares the flags of all ranks.
//! [`measure`] runs in each rank, on elements that [`sample`] makes. [`report`] prints, at rank 0.

mod launch;
mod measure;
mod options;
mod report;
mod sample;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::ValueEnum;
use invar::{DataType, Launch, RedOp, Settings};

use crate::failure::{Failure, WRONG};
use crate::ports::Ports;
use crate::size::Sizes;

/// The variable with the secret by which ranks join.
const SECRET: &str = "INVAR_COLL_SECRET";
/// The number of ranks on this host, if neither a flag nor a launcher gives one.
const RANKS: u32 = 2;

/// Measure collectives among ranks, and check the result.
///
/// A launcher starts the ranks on several hosts: torchrun, srun, mpirun of Open MPI or MPICH, or an
/// indexed job of Kubernetes. The command finds rank and ranks in the launcher's variables.
///
/// With --ranks, or without a launcher, every rank is a process on this host. If the host has enough
/// processors, each rank gets one of its own. Without a launcher on several hosts, start each rank with
/// --rank, --ranks, and --root HOST:PORT. Rank 0 listens at that address of its host. Give all ranks one
/// secret word in INVAR_COLL_SECRET. Without the word rank 0 makes one up and prints it.
///
/// Ranks of one host share memory, unless NCCL_SHM_DISABLE=1. All ranks must measure the same operation
/// with the same flags. The first difference is an error.
///
/// The columns follow nccl-tests: the size is that of the larger of a rank's two buffers, the time is an
/// average over iterations and ranks, and busbw is algbw times the share that each link carries. The
/// first figures are of calls with two buffers, the second of calls in place.
///
/// Exit status: 0 all is well, 1 elements were wrong, 2 a flag or variable is not allowed, 141 nobody
/// reads the results any more, 3 anything else.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Operation to measure
    #[arg(value_enum)]
    operation: Operation,

    /// Number of ranks [default: as many as the launcher started, else 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096))]
    ranks: Option<u32>,

    /// Number of this rank, from 0
    #[arg(long, requires = "root")]
    rank: Option<u32>,

    /// Address at which rank 0 listens
    #[arg(long, value_name = "HOST:PORT", requires = "rank")]
    root: Option<String>,

    /// Device to use, as `invar devices` names it, or several as in `a+b`, for ranks that share no memory
    /// [default: every RDMA device with a link, else the software NIC, or TCP, on the way to rank 0]
    #[arg(long, value_name = "NAME")]
    nic: Option<String>,

    #[command(flatten)]
    ports: Ports,

    #[command(flatten)]
    sizes: Sizes,

    /// Iterations that are timed [default: about 0.2 s of them]
    #[arg(short = 'n', long, value_parser = clap::value_parser!(u32).range(1..=100_000_000))]
    iters: Option<u32>,

    /// Iterations before the timed ones
    #[arg(short = 'w', long, default_value_t = 5)]
    #[arg(value_parser = clap::value_parser!(u32).range(..=100_000_000))]
    warmup: u32,

    /// Type of the elements: float, half, bfloat16, double, int8, uint8, int32, uint32, int64, uint64
    #[arg(short = 'd', long = "type", value_name = "TYPE", default_value = "float")]
    data_type: DataType,

    /// Reduction: sum, prod, min, max, avg
    #[arg(short = 'o', long, value_name = "OP", default_value = "sum")]
    redop: RedOp,

    /// The root of a broadcast or a reduce
    #[arg(short = 'r', long, value_name = "RANK", default_value_t = 0)]
    root_rank: u32,

    /// Leave the result unchecked
    #[arg(long)]
    no_check: bool,

    /// Write the results as JSON into FILE. With `-` JSON goes to stdout and the table to stderr
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Process with which this one must end
    #[arg(long, value_name = "PID", requires = "rank", hide = true)]
    child_of: Option<u32>,
}

/// The operation to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Operation {
    /// All ranks get the reduced inputs of all
    AllReduce,
    /// All ranks get the inputs of all
    AllGather,
    /// Each rank gets its block of the reduced inputs of all
    ReduceScatter,
    /// All ranks get the root's input
    Broadcast,
    /// The root gets the reduced inputs of all
    Reduce,
    /// Each rank sends to the next
    Sendrecv,
    /// Each rank sends a block to each
    AllToAll,
}

pub(crate) fn run(args: &Args, settings: &Settings) -> Result<ExitCode, Failure> {
    args.sizes.check()?;
    let mut settings = args.ports.apply(settings);
    if let Some(name) = &args.nic {
        settings = settings.communicator_nic(name);
    }
    let settings = &settings;
    let wrong = match (args.rank, args.ranks) {
        (Some(rank), nranks) => {
            let nranks = nranks.unwrap_or(RANKS);
            args.check(nranks)?;
            launch::one(args, settings, rank, nranks)?
        }
        (None, Some(nranks)) => {
            args.check(nranks)?;
            return launch::all(args, settings, nranks);
        }
        (None, None) => match Launch::from_env()?.filter(|launch| launch.nranks > 1) {
            Some(launch) => {
                args.check(launch.nranks)?;
                launch::launched(args, settings, &launch)?
            }
            None => {
                args.check(RANKS)?;
                return launch::all(args, settings, RANKS);
            }
        },
    };
    Ok(if wrong > 0 { ExitCode::from(WRONG) } else { ExitCode::SUCCESS })
}

impl Args {
    pub(crate) fn is_child(&self) -> bool {
        self.child_of.is_some()
    }

    /// Refuses ranks that are not among `nranks`.
    fn check(&self, nranks: u32) -> Result<(), Failure> {
        for (flag, rank) in [("--rank", self.rank), ("--root-rank", Some(self.root_rank))] {
            if let Some(rank) = rank.filter(|rank| *rank >= nranks) {
                let text = format!("{flag} {rank}: of {nranks} ranks the last is {}", nranks - 1);
                return Err(Failure::usage(text));
            }
        }
        Ok(())
    }
}
