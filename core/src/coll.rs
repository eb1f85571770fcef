//! Collectives: what each rank receives, reduces, stores and sends, and when.
//!
//! This module touches no data. A [`Schedule`] describes, for one rank and one channel, the steps that
//! NCCL's device code takes with its primitives (`prims_simple.h`). Each [`Step`] names the operands:
//! slots of peers, and elements of the rank's input. It also names the destinations of the result: the
//! output, slots of peers, or both. The caller moves and reduces the elements.
//!
//! 0. [`DataType`] and [`RedOp`] are the type of the elements and the reduction.
//! 1. [`Order`] puts the ranks in a row, which determines each rank's neighbours on the ring and in the
//!    trees.
//! 2. [`Task`] is an [`Operation`] by an [`Algorithm`], as one rank sees it on one channel.
//! 3. [`Schedule`] iterates over the [`Step`]s of a task.

mod data_type;
mod order;
mod schedule;
mod task;

pub use data_type::{DataType, ParseError, RedOp};
pub use order::{Order, OrderError, RANKS_MAX};
pub use schedule::{Peers, Schedule, Step};
pub use task::{Algorithm, ONE_SHOT_RANKS_MAX, Operation, Task, TaskError};
