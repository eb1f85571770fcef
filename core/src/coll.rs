//! Collectives: what each rank receives, reduces, stores and sends, and when.
//!
//! Nothing here touches data. A [`Schedule`] says for one rank and one channel, step by step, what
//! NCCL's device code does with its primitives (`prims_simple.h`): which peers' slots are operands,
//! which elements of the rank's input are one, and where the result goes, to the output, to the
//! slots of peers, or both. Whoever runs it moves and reduces the elements.
//!
//! 0. [`DataType`], [`RedOp`] — of what, and by what.
//! 1. [`Order`] — the ranks in a row: who is beside whom on the ring, and in the trees.
//! 2. [`Task`] — an [`Operation`] by an [`Algorithm`], as one rank sees it on one channel.
//! 3. [`Schedule`] — its [`Step`]s.

mod data_type;
mod order;
mod schedule;
mod task;

pub use data_type::{DataType, ParseError, RedOp};
pub use order::{Order, OrderError, RANKS_MAX};
pub use schedule::{Peers, Schedule, Step};
pub use task::{Algorithm, ONE_SHOT_RANKS_MAX, Operation, Task, TaskError};
