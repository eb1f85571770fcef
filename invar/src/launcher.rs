//! Finds a process' rank, the number of ranks and the meeting place in the environment of its launcher.
//!
//! | launcher | rank and ranks | meeting place | secret |
//! |---|---|---|---|
//! | torchrun | `RANK`, `WORLD_SIZE` | `MASTER_ADDR` | derived from the run's id |
//! | Open MPI's `mpirun` | `OMPI_COMM_WORLD_RANK`, `…_SIZE` | this host if it has all ranks, else `MASTER_ADDR` or the host of `mpirun` | made by the `mpirun` of Open MPI 4; derived from the job's name under Open MPI 5 |
//! | MPICH's `mpirun`, `srun --mpi=pmi2` | `PMI_RANK`, `PMI_SIZE` | rank 0 tells it over PMI-1 | made by rank 0 |
//! | Slurm's `srun` | `SLURM_PROCID`, `SLURM_STEP_NUM_TASKS` | the step's first node | derived from the step's id |
//! | Kubernetes' indexed job | `JOB_COMPLETION_INDEX`, `WORLD_SIZE` | the pod of index 0 | derived from the job's name |
//!
//! The launcher in the first row that fits wins, since the launchers below may have started it.
//! `INVAR_COLL_SECRET` goes before each secret that a launcher or Invar derives. A derived secret keeps
//! other jobs out, but not people who know the job.
//!
//! [`Launch::from_env`] reads the variables, and [`Launch::meet`] brings the ranks together.

mod description;
mod hostlist;
mod meeting;

use std::fmt;

use invar_core::rendezvous::UniqueId;

use crate::{Error, Hub, Settings};
use description::MeetingPoint;

/// The variable with the word by which ranks join.
const SECRET: &str = "INVAR_COLL_SECRET";

/// A process of a job, as its launcher describes it.
///
/// ```no_run
/// # fn main() -> Result<(), invar::Error> {
/// let settings = invar::Settings::from_env()?;
/// if let Some(launch) = invar::Launch::from_env()? {
///     let meeting = launch.meet(&settings)?;
///     let ranks = invar::Communicator::join(&meeting.id, launch.rank, launch.nranks, &settings)?;
///     ranks.barrier()?;
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Launch {
    /// The launcher whose variables describe the job.
    pub launcher: Launcher,
    /// The number of this process, from 0.
    pub rank: u32,
    /// The number of processes.
    pub nranks: u32,
    place: MeetingPoint,
    /// The word in `INVAR_COLL_SECRET`.
    word: Option<String>,
}

/// The program that started the processes of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// PyTorch's torchrun, and operators that set the same variables.
    Torchrun,
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// A launcher that speaks PMI-1: MPICH's and Intel MPI's `mpirun`, and `srun --mpi=pmi2`.
    Pmi,
    /// The launcher is Slurm's `srun`.
    Slurm,
    /// An indexed job of Kubernetes.
    Kubernetes,
}

/// A meeting place of ranks. Rank 0 keeps it until it has no more use for the communicator.
#[derive(Debug)]
pub struct Meeting {
    /// The id with which each rank joins.
    pub id: UniqueId,
    /// Whether the secret comes from facts that others may know, so that they can join too.
    pub is_public: bool,
    /// The hub, at rank 0.
    _hub: Option<Hub>,
}

impl Launch {
    /// Reads the variables of the launcher. Returns `None` if no launcher started this process.
    ///
    /// # Errors
    /// A variable of the launcher is missing or has no valid value.
    pub fn from_env() -> Result<Option<Self>, Error> {
        Self::from_lookup(invar_linux::env::var)
    }

    /// Reads the variables from `lookup`, which returns `None` for a variable that is not set.
    ///
    /// # Errors
    /// Fails as [`Launch::from_env`] does.
    pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Error> {
        description::read(&lookup)
    }

    /// Brings the ranks together: rank 0 listens, and the others learn where. All ranks must call this.
    ///
    /// # Errors
    /// Rank 0 cannot listen at the meeting place, or a rank does not learn of it within
    /// `INVAR_CONNECT_TIMEOUT_MS`.
    pub fn meet(&self, settings: &Settings) -> Result<Meeting, Error> {
        meeting::meet(self, settings)
    }
}

impl fmt::Debug for Launch {
    /// Hides the word and the meeting place, which may tell a secret of the job.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Launch { launcher, rank, nranks, .. } = self;
        let mut shown = f.debug_struct("Launch");
        shown.field("launcher", launcher).field("rank", rank).field("nranks", nranks);
        shown.finish_non_exhaustive()
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "torchrun",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI",
            Launcher::Slurm => "Slurm",
            Launcher::Kubernetes => "Kubernetes",
        })
    }
}
